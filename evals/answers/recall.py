"""Does search find the right document? Hits and mean reciprocal rank for each source and ranker, with latency.

Rankers: dense (embeddings alone), keyword (BM25 alone), rrf (reciprocal rank fusion of both, the baseline), fused (the
product's search, which also decides whether to refuse), and reranked if the setting `reranker` is set. A document has
the rank of its best passage. Hits count questions that their document answers. Refusals count all questions of a source
that has unanswerable questions. Distractors are documents without questions; they show the results in a larger
collection. Times are of the search; embedding the question is measured separately.

Files:
  JSON lines {question, article, history}   about the documents of the folder `knowledge` next to the file
  JSON lines {src, title, context, qas}     each different context is a document (.gz also)
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from app.desk.calibration import find_classifier, find_ranker
from app.domain.errors import DeskError
from app.domain.json_lines import read_json_lines
from app.domain.settings import Settings
from app.knowledge.finder import wordings
from cache.model.source import load_tokenizer
from cache.prompt.parts import Text
from evals.report import describe_machine, percentile, table
from retrieval.answerability import FoundPassageText, judge
from retrieval.documents import Block, Document, Passage, content_hash, split, with_headings
from retrieval.errors import UnreadableDocument
from retrieval.ranking.encoder import PassageToRead, StatementEncoder, StatementVectors
from retrieval.reading import FileReader, find_files
from retrieval.search.embedding import Embedder, Vectors
from retrieval.search.keyword_index import KeywordIndex
from retrieval.search.retriever import (
    CANDIDATES,
    RERANKED,
    CrossEncoderReranker,
    PassageHit,
    Query,
    Retriever,
    rerank,
)
from retrieval.search.vector_index import VectorIndex, passage_id, window_texts
from retrieval.statements.cut import statements_of

PART = 256
"""Number of passages whose vectors are in one file. Each file gives a line of progress."""
ROLES = ("user", "agent", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to search for. right: the document that it is about. is_answered: whether that document answers it.
    earlier: the previous question of its conversation.
    """

    source: str
    text: str
    earlier: str | None
    right: str | None
    is_answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Passages, the document of each, and a retriever that returns their indices. read: statement vectors of passages
    that were found.
    """

    passages: list[Passage]
    document_of: list[str]
    retriever: Retriever
    read: dict[int, StatementVectors] = field(default_factory=dict)


def read_questions(file: Path, leave_out: frozenset[str]) -> tuple[list[Question], dict[str, Document]]:
    """Read questions, and their documents if the file has them. leave_out: sources to skip. Raises DeskError."""
    questions: list[Question] = []
    documents: dict[str, Document] = {}
    for row in read_json_lines(file, _checked, "question", "bad-row").values():
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


def read_folder(folder: Path) -> dict[str, Document]:
    found: dict[str, Document] = {}
    with FileReader() as reader:
        for path, problem in find_files([folder]):
            if problem is None:
                with suppress(UnreadableDocument):
                    found[str(path.relative_to(folder))] = reader.load(path)
    if not found:
        raise DeskError(f"there are no documents in {folder}", code="no-documents")
    return found


def build_corpus(
    documents: dict[str, Document],
    others: dict[str, Document],
    most: int | None,
    settings: Settings,
    embedder: Embedder,
    report: Callable[[str], None],
) -> Corpus:
    """Cut and embed documents as the product does. Vectors are stored in parts, so that a stopped run can continue and
    a second run is quick. most: maximum number of passages of `others`; further documents are skipped.
    """
    tokenizer = load_tokenizer(settings.model, converted=settings.models_folder)
    passages: list[Passage] = []
    document_of: list[str] = []

    def cut(some: dict[str, Document], most: int | None) -> None:
        for name, document in some.items():
            if most is not None and len(passages) >= most:
                break
            passages.extend(
                split(document, lambda text: len(tokenizer.encode([Text(text=text)])), settings.passage_tokens)
            )
            document_of.extend([name] * (len(passages) - len(document_of)))

    cut(documents, None)
    cut({name: one for name, one in others.items() if name not in documents}, most and len(passages) + most)
    folder = settings.data_dir / "evals" / "vectors"
    folder.mkdir(parents=True, exist_ok=True)
    windows = {id_: window_texts(passage.heading_path, passage.text) for id_, passage in enumerate(passages)}
    index = VectorIndex(embedder.name, embedder.dimension)
    for first in range(0, len(passages), PART):
        some = range(first, min(first + PART, len(passages)))
        ids = [id_ for id_ in some for _ in windows[id_]]
        vectors = _embedded([text for id_ in some for text in windows[id_]], embedder, folder)
        index = index.updated((), ids, vectors)
        report(f"embedded {some.stop}/{len(passages)} passages")
    retriever = Retriever(embedder, index, KeywordIndex().updated((), windows))
    return Corpus(passages=passages, document_of=document_of, retriever=retriever)


def _embedded(texts: Sequence[str], embedder: Embedder, folder: Path) -> Vectors:
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
    for first, second in reversed(history or []):
        if first not in ROLES:
            return str(first)
        if first == "user":
            return str(second)
    return None


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    is_question = {"question", "article"} <= row.keys()
    is_document = {"title", "context", "qas"} <= row.keys()
    if not is_question and not (is_document and all({"question", "answers"} <= qa.keys() for qa in row["qas"])):
        raise ValueError("question and article are needed, or title, context and qas")
    return row


IN_USE = ("fused", "reranked")  # rankers that the product uses; the others are baselines
FORMS = dict.fromkeys(("hit1", "hit3", "hit5", "mrr", "refusal_precision", "refusal_recall"), ".3f")
RANKED = 20  # number of passages ranked for a question
RRF = 60
"""Constant of reciprocal rank fusion (Cormack et al. 2009)."""


Ranker: TypeAlias = Callable[[Retriever, Sequence[Query]], list[PassageHit]]


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of one ranker for one question. rank: of the right document, from 0; None if it was not found."""

    question: Question
    rank: int | None
    refused: bool | None
    search_ms: float
    embed_ms: float


def measure_recall(
    settings: Settings,
    data: Path,
    *,
    embedder: Embedder,
    limit: int | None,
    leave_out: frozenset[str],
    report: Callable[[str], None],
    distractors: Sequence[Path] = (),
    num_distractors: int | None = None,
) -> dict[str, Any]:
    """Measure every source and ranker. leave_out: sources to skip. distractors: files of more documents to search;
    their questions are not asked. num_distractors: maximum number of their passages (the last document is complete);
    default: all. Raises DeskError.
    """
    questions, documents = read_questions(data, leave_out)
    questions = questions[:limit]
    documents = documents or read_folder(data.parent / "knowledge")
    others = dict(chain.from_iterable(read_questions(file, frozenset())[1].items() for file in distractors))
    corpus = build_corpus(documents, others, num_distractors, settings, embedder, report)
    retriever = corpus.retriever
    encoder = StatementEncoder(find_ranker(settings))
    classifier = find_classifier(settings, embedder.name, encoder.name)
    rankers: dict[str, Ranker] = dict(RANKERS)
    if settings.reranker is not None:
        rankers["reranked"] = partial(reranked, CrossEncoderReranker(settings.reranker), corpus)
    found: defaultdict[tuple[str, str], list[SearchOutcome]] = defaultdict(list)
    for number, question in enumerate(questions, start=1):
        texts = wordings(question.text, question.earlier)
        started = time.perf_counter()
        queries = retriever.queries(texts)
        embed_ms = (time.perf_counter() - started) * 1e3
        for name, search in rankers.items():
            started = time.perf_counter()
            hits = search(retriever, queries)
            search_ms = (time.perf_counter() - started) * 1e3
            names = list(dict.fromkeys(corpus.document_of[hit.id] for hit in hits))
            refused = None
            if name == "fused":
                passages = read_passages(corpus, encoder, hits)
                judged = judge(retriever, encoder, classifier, queries, passages)
                refused = not judged.ranked or classifier.is_answered(judged.features) < classifier.threshold
            outcome = SearchOutcome(
                question=question,
                rank=names.index(question.right) if question.right in names else None,
                refused=refused,
                search_ms=search_ms,
                embed_ms=embed_ms,
            )
            for source in (question.source, "all"):
                found[source, name].append(outcome)
        if number % 100 == 0 or number == len(questions):
            report(f"{number}/{len(questions)} questions")
    return {
        "machine": describe_machine(),
        "embedder": embedder.name,
        "documents": len(set(corpus.document_of)),
        "passages": len(corpus.passages),
        "vectors": len(retriever.index),
        "rows": [recall_row(source, name, outcomes) for (source, name), outcomes in found.items()],
    }


def read_passages(corpus: Corpus, encoder: StatementEncoder, hits: Sequence[PassageHit]) -> list[FoundPassageText]:
    """Return found passages with their statements. A passage is encoded when it is first found."""
    found: list[FoundPassageText] = []
    for hit in hits:
        passage = corpus.passages[hit.id]
        statements = statements_of(passage.text, passage.heading_path)
        if hit.id not in corpus.read:
            spans = [(one.start, one.end) for one in statements]
            read = PassageToRead(headings=passage.heading_path, text=passage.text, spans=spans)
            corpus.read[hit.id] = encoder.read([read])[0]
        vectors = corpus.read[hit.id]
        found.append(
            FoundPassageText(
                hit=hit, headings=passage.heading_path, text=passage.text, statements=statements, vectors=vectors
            )
        )
    return found


def by_embedding(retriever: Retriever, queries: Sequence[Query]) -> list[PassageHit]:
    hits = [hit for query in queries for hit in retriever.index.search(query.vector, CANDIDATES)]
    return ranked((passage_id(hit.id), hit.score) for hit in hits)


def by_keywords(retriever: Retriever, queries: Sequence[Query]) -> list[PassageHit]:
    scores = np.max([retriever.keywords.scores(query.text) for query in queries], axis=0)
    best = (-scores).argsort()[:CANDIDATES]
    return ranked((passage_id(int(retriever.keywords.window_ids[at])), float(scores[at])) for at in best)


def by_ranks(retriever: Retriever, queries: Sequence[Query]) -> list[PassageHit]:
    scores: defaultdict[int, float] = defaultdict(float)
    for hits in (by_embedding(retriever, queries), by_keywords(retriever, queries)):
        for rank, hit in enumerate(hits):
            scores[hit.id] += 1 / (RRF + rank)
    return ranked(scores.items())


def fused(retriever: Retriever, queries: Sequence[Query]) -> list[PassageHit]:
    return retriever.search(queries, RANKED)


def reranked(
    reranker: CrossEncoderReranker, corpus: Corpus, retriever: Retriever, queries: Sequence[Query]
) -> list[PassageHit]:
    def text_of(found: PassageHit) -> str:
        passage = corpus.passages[found.id]
        return with_headings(passage.heading_path, passage.text)

    return rerank(reranker, queries[-1].text, retriever.search(queries, RERANKED), text_of)


RANKERS: dict[str, Ranker] = {"dense": by_embedding, "keyword": by_keywords, "rrf": by_ranks, "fused": fused}


def ranked(scores: Iterable[tuple[int, float]]) -> list[PassageHit]:
    """Return passages sorted by their best score, at most RANKED."""
    best: dict[int, float] = {}
    for id_, score in scores:
        best[id_] = max(score, best.get(id_, score))
    in_order = sorted(best.items(), key=lambda entry: (-entry[1], entry[0]))[:RANKED]
    return [PassageHit(id=id_, score=score, cosine=score, share=score) for id_, score in in_order]


def recall_row(source: str, retriever: str, outcomes: Sequence[SearchOutcome]) -> dict[str, Any]:
    """Return a row. n: number of questions. answerable: number of those that have an answer. hit1, hit3, hit5: share of
    answerable questions with their document among the first 1, 3, 5. mrr: mean reciprocal rank. refusal_precision,
    refusal_recall: of the decision to refuse, None without such a decision. embed_ms_p50: time to embed one question.
    """
    ranks = [outcome.rank for outcome in outcomes if outcome.question.is_answered]
    judged = [outcome for outcome in outcomes if outcome.refused is not None]
    refused = [outcome for outcome in judged if outcome.refused]
    unanswered = [outcome for outcome in judged if not outcome.question.is_answered]
    right = sum(not outcome.question.is_answered for outcome in refused)

    def hits(most: int) -> float:
        return round(sum(rank is not None and rank < most for rank in ranks) / max(1, len(ranks)), 4)

    return {
        "source": source,
        "retriever": retriever,
        "n": len(outcomes),
        "answerable": len(ranks),
        "hit1": hits(1),
        "hit3": hits(3),
        "hit5": hits(5),
        "mrr": round(sum(1 / (rank + 1) for rank in ranks if rank is not None) / max(1, len(ranks)), 4),
        "refusal_precision": round(right / len(refused), 4) if unanswered and refused else None,
        "refusal_recall": round(right / len(unanswered), 4) if unanswered else None,
        "ms_p50": round(percentile([outcome.search_ms for outcome in outcomes], 50), 3),
        "ms_p95": round(percentile([outcome.search_ms for outcome in outcomes], 95), 3),
        "embed_ms_p50": round(percentile([outcome.embed_ms for outcome in outcomes], 50), 3),
    }


COLUMNS = {
    "source": "source",
    "retriever": "retriever",
    "answerable": "questions",
    "hit1": "hit@1",
    "hit3": "hit@3",
    "hit5": "hit@5",
    "mrr": "MRR",
    "refusal_precision": "refusals right",
    "refusal_recall": "of those due",
    "ms_p50": "ms, median",
    "ms_p95": "ms, 95 %",
}


def markdown(result: dict[str, Any], command: str) -> str:
    """Write a table: every ranker over all questions, and for each source only the product's rankers."""
    sources = {row["source"] for row in result["rows"]}
    shown = [
        row
        for row in sorted(result["rows"], key=lambda row: row["source"] != "all")
        if row["source"] == "all" or (row["retriever"] in IN_USE and len(sources) > 2)
        if row["answerable"]
    ]
    about = f"{result['documents']:,} documents, {result['passages']:,} passages, {result['vectors']:,} vectors"
    return f"`{command}`: {about}; {result['embedder']}; {result['machine']}.\n\n{table(shown, COLUMNS, **FORMS)}"
