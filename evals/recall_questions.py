"""Questions with the document that answers each, and those documents as passages: what search is measured on.

Files:
  JSON lines {question, article, history}   about the documents of the folder `knowledge` beside the file
  JSON lines {src, title, context, qas}     each different context is a document (.gz too)
"""

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from app.domain.errors import DeskError
from app.domain.settings import Settings
from cache.model.loading import load_tokenizer
from cache.prompt.parts import Text
from retrieval.documents.document import Block, Document, Passage, content_hash, split
from retrieval.errors import UnreadableDocument
from retrieval.ranking.scoring import StatementVectors
from retrieval.reading.reader import FileReader, find_files
from retrieval.search.embedding import Embedder, Vectors
from retrieval.search.keyword_index import KeywordIndex
from retrieval.search.retriever import Retriever
from retrieval.search.vector_index import VectorIndex, window_texts

PART = 256
"""Passages whose vectors are kept in one file; a line of progress follows each."""
ROLES = ("user", "agent", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question and what is known of it. right: the document it is about. is_answered: whether that document answers
    it. earlier: the question before it in its conversation.
    """

    source: str
    text: str
    earlier: str | None
    right: str | None
    is_answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """passages: by number. document_of: the document of each passage. ids: for each row of `vectors`, its passage.
    read: the vectors of the statements of passages that were found.
    """

    passages: dict[int, Passage]
    document_of: dict[int, str]
    ids: list[int]
    vectors: Vectors
    read: dict[int, StatementVectors] = field(default_factory=dict)

    def retriever(self, embedder: Embedder) -> Retriever:
        """A retriever over the passages, as the desk has one."""
        index = VectorIndex(embedder.name, embedder.dimension).updated((), self.ids, self.vectors)
        texts = {id_: window_texts(passage.heading_path, passage.text) for id_, passage in self.passages.items()}
        return Retriever(embedder, index, KeywordIndex().updated((), texts))

    def joined(self, other: "Corpus") -> "Corpus":
        """Both together; the passages of the other one get other numbers."""
        first = len(self.passages)
        return Corpus(
            passages=self.passages | {first + id_: passage for id_, passage in other.passages.items()},
            document_of=self.document_of | {first + id_: name for id_, name in other.document_of.items()},
            ids=[*self.ids, *(first + id_ for id_ in other.ids)],
            vectors=np.concatenate([self.vectors, other.vectors]),
        )


class RememberingEmbedder:
    """Embeds every text once, so that only the search is timed afterwards."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.name, self.dimension = embedder.name, embedder.dimension
        self.knows_word, self.knowledge = embedder.knows_word, embedder.knowledge
        self.embed_documents, self.count_tokens = embedder.embed_documents, embedder.count_tokens
        self._known: dict[str, Vectors] = {}

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """As the wrapped embedder; the same text is embedded once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known |= zip(new, self._embedder.embed_queries(new), strict=True)
        return np.array([self._known[text] for text in texts], np.float32).reshape(-1, self.dimension)


def read_questions(file: Path, leave_out: frozenset[str]) -> tuple[list[Question], dict[str, Document]]:
    """Questions of a file, and its documents if it holds them. leave_out: sources. Raises DeskError."""
    questions: list[Question] = []
    documents: dict[str, Document] = {}
    for row in _rows(file):
        if "article" in row:
            questions.append(_about_article(row))
            continue
        source, context = str(row.get("src", "")), str(row["context"])
        if source in leave_out or not context.strip():
            continue
        name = content_hash(context.encode())
        block = Block(kind="text", text=context)
        documents[name] = Document(path=Path(name), title=str(row["title"]), blocks=(block,), content_hash=name)
        for qa in row["qas"]:
            questions.append(
                Question(
                    source=source,
                    text=str(qa["question"]),
                    earlier=_last_question(qa.get("history")),
                    right=name,
                    is_answered=bool(qa["answers"]),
                )
            )
    if not questions:
        raise DeskError(f"there are no questions in {file}", code="no-questions")
    return questions, documents


def read_distractors(files: Sequence[Path], corpus: Corpus) -> dict[str, Document]:
    """The documents of files {title, context, qas}, without those that the corpus has. Raises DeskError."""
    documents = {name: document for file in files for name, document in read_questions(file, frozenset())[1].items()}
    there = frozenset(corpus.document_of.values())
    return {name: document for name, document in documents.items() if name not in there}


def read_folder(folder: Path) -> dict[str, Document]:
    """The documents of a folder by their path below it; what cannot be read is left out."""
    found: dict[str, Document] = {}
    with FileReader() as reader:
        for path, problem in find_files([folder]):
            if problem is None:
                with suppress(UnreadableDocument):
                    found[str(path.relative_to(folder))] = reader.load(path)
    return found


def corpus_of_folder(folder: Path, settings: Settings, embedder: Embedder, report: Callable[[str], None]) -> Corpus:
    """The documents of a folder. Raises DeskError if there are none."""
    documents = read_folder(folder)
    if not documents:
        raise DeskError(f"there are no documents in {folder}", code="no-documents")
    return build_corpus(documents, settings, embedder, report)


def build_corpus(
    documents: dict[str, Document],
    settings: Settings,
    embedder: Embedder,
    report: Callable[[str], None],
    most: int | None = None,
) -> Corpus:
    """Cut and embed documents as the desk does. Vectors are kept part by part, so that a run that was stopped goes on
    and a second one is quick. most: passages; the documents after them are left out.
    """
    tokenizer, _ = load_tokenizer(settings.model, converted=settings.models_folder)
    passages: dict[int, Passage] = {}
    document_of: dict[int, str] = {}
    for name, document in documents.items():
        if most is not None and len(passages) >= most:
            break
        for passage in split(document, lambda text: len(tokenizer.encode([Text(text=text)])), settings.passage_tokens):
            document_of[len(passages)] = name
            passages[len(passages)] = passage
    folder = settings.data_dir / "evals" / "vectors"
    folder.mkdir(parents=True, exist_ok=True)
    ids: list[int] = []
    parts: list[Vectors] = []
    for first in range(0, len(passages), PART):
        some = range(first, min(first + PART, len(passages)))
        windows = [window_texts(passages[id_].heading_path, passages[id_].text) for id_ in some]
        ids += [id_ for id_, texts in zip(some, windows, strict=True) for _ in texts]
        parts.append(_embedded(list(chain.from_iterable(windows)), embedder, folder))
        report(f"embedded {some.stop}/{len(passages)} passages")
    return Corpus(passages=passages, document_of=document_of, ids=ids, vectors=np.concatenate(parts))


def _embedded(texts: Sequence[str], embedder: Embedder, folder: Path) -> Vectors:
    """The vectors of texts, from a file named by embedder and texts if there is one."""
    file = folder / f"{content_hash(json.dumps([embedder.name, *texts]).encode())}.npy"
    if not file.exists():
        unfinished = file.with_suffix(".tmp.npy")
        np.save(unfinished, embedder.embed_documents(texts))
        unfinished.replace(file)
    vectors: Vectors = np.load(file, allow_pickle=False)
    return vectors


def _about_article(row: dict[str, Any]) -> Question:
    return Question(
        source=str(row.get("kind", "")),
        text=str(row["question"]),
        earlier=_last_question(row.get("history")),
        right=row["article"],
        is_answered=row["article"] is not None,
    )


def _last_question(history: Any) -> str | None:
    """History is a list of pairs: question and answer, or role and text."""
    for first, second in reversed(history or []):
        if first not in ROLES:
            return str(first)
        if first == "user":
            return str(second)
    return None


def is_question(row: Any) -> bool:
    """Whether a row is a question about an article."""
    return isinstance(row, dict) and {"question", "article"} <= row.keys()


def is_document(row: Any) -> bool:
    """Whether a row is a document with questions."""
    return (
        isinstance(row, dict)
        and {"title", "context", "qas"} <= row.keys()
        and all(isinstance(qa, dict) and {"question", "answers"} <= qa.keys() for qa in row["qas"])
    )


def _rows(file: Path) -> Iterable[dict[str, Any]]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                row = json.loads(line) if line.strip() else None
                if row is None:
                    continue
                if not is_question(row) and not is_document(row):
                    raise DeskError(
                        f"{file}, line {number}: question and article, or title, context and qas are needed",
                        code="bad-row",
                    )
                yield row
    except (OSError, ValueError) as error:
        raise DeskError(f"{file} cannot be read: {error}", code="bad-file") from error
