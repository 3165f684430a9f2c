"""The cases of `warmdesk eval quality`: questions with passages, read from data files, as tokens.

A case has earlier turns, passages in prompt order (the most relevant last, as in the product; relevance is the cosine
of sentence embeddings), a question, and the right answers. Files:
  JSON lines {src, title, context, qas}   the passage that answers, among others of the same title
  the same, with `history` in qas         the document cut into passages; the conversation comes first
  JSON list {question, answers, ctxs}     one answer needs several passages (multi-hop). Each text is shortened to the
                                          piece with the answer, else to the piece most similar to the question.
"""

import gzip
import hashlib
import json
import random
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from app.domain.errors import DeskError
from app.knowledge.prompts import PromptBuilder, passage_text, question_text
from app.training import read_rows
from cache.prompt.parts import Text
from cache.prompt.tokenizer import ModelTokenizer, run_tokens
from retrieval.documents import split
from retrieval.loaders.load import load
from retrieval.search.embedding import Embedder
from retrieval.text.sentences import joined_lines

Tokens = tuple[int, ...]

SHORT_WORDS = 300
"""A document of at most this many words is one passage. Longer documents are skipped."""
PASSAGE_TOKENS = 400
PASSAGE_WORDS = 110  # length of the passages that a long document is cut into
TURNS = 2  # maximum number of turns before the question


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTurn:
    """An earlier question of a conversation, its answer with the template text up to the next turn, and the passages
    found for it, each with its left context.
    """

    modules: tuple[Tokens, ...]
    left_contexts: tuple[Tokens, ...]
    question: Tokens
    answer: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question with its passages, as tokens. left_contexts: the neighbours of each passage. right: index of the
    passage that holds the answer, None if unknown. answers: right answers, empty if no passage holds one. gold: the
    first of them. facts: strings that a right answer must contain, instead of `answers`.
    """

    id: str
    source: str
    modules: tuple[Tokens, ...]
    left_contexts: tuple[Tokens, ...]
    right: int | None
    question: Tokens
    answers: tuple[str, ...]
    gold: Tokens
    facts: tuple[str, ...] = ()
    earlier: tuple[EarlierTurn, ...] = ()


class CaseReader:
    """Makes cases from files. neighbours: number of passages before each passage while it is encoded."""

    def __init__(
        self, prompts: PromptBuilder, tokenizer: ModelTokenizer, embedder: Embedder, *, neighbours: int
    ) -> None:
        self._prompts, self._tokenizer, self._embedder = prompts, tokenizer, embedder
        self._neighbours = neighbours
        self._vectors: dict[str, np.ndarray[Any, Any]] = {}

    def read(self, file: Path, passages: int, limit: int) -> list[Case]:
        """Make at most `limit` cases, the same in every call, each question once. Raises DeskError."""
        if ".json" in file.suffixes and ".jsonl" not in file.suffixes:
            return list(self._multi_hop(read_list(file)[:limit]))
        rows = list(read_rows([file]))
        return list(self._single(rows, passages, limit))

    def conversations(self, file: Path, passages: int, limit: int) -> list[Case]:
        rows = [row for row in read_rows([file]) if row["context"].strip()]
        return list(islice(self._conversations(rows, passages), limit))

    def knowledge(self, questions: Path, folder: Path, passages: int, limit: int) -> list[Case]:
        """Make cases of questions {question, article, answer, facts} about the documents of a folder. Each case has the
        article's passage with the facts, and the nearest other passages. Follow-ups and questions without an article
        are skipped.
        """
        found = [passage for file in sorted(folder.rglob("*")) if file.is_file() for passage in self._cut(file, folder)]
        texts = [text for _, text in found]
        cases: list[Case] = []
        for row in map(json.loads, questions.read_text(encoding="utf-8").splitlines()):
            facts = tuple(row["facts"])
            holding = [text for article, text in found if article == row["article"] and holds(text, facts)]
            if holding and not row["history"] and len(cases) < limit:
                right = self._nearest(row["question"], holding)[-1]
                others = [text for text in self._nearest(row["question"], texts) if text not in holding]
                shown = [*others[-passages + 1 :], right] if passages > 1 else [right]
                case = self._case("shop", shown, len(shown) - 1, row["question"], [row["answer"]], others)
                cases.append(replace(case, facts=facts))
        return cases

    def _cut(self, file: Path, folder: Path) -> Iterator[tuple[str, str]]:
        for passage in split(load(file), lambda text: len(self.tokens(text)), PASSAGE_TOKENS):
            yield str(file.relative_to(folder)), passage_text("", passage.heading_path, passage.text)

    def tokens(self, text: str) -> Tokens:
        return run_tokens([Text(text=text)], self._tokenizer)

    def _single(self, rows: Iterable[dict[str, Any]], passages: int, limit: int) -> Iterator[Case]:
        by_title: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            if row["title"] and len(row["context"].split()) <= SHORT_WORDS:
                by_title[row["title"]].append(row)
        topics = [ones for ones in by_title.values() if len(ones) >= passages and any(row["qas"] for row in ones)]
        if not topics:
            raise DeskError(
                f"no title has questions and {passages} documents of one passage each: use the same title for all "
                "documents of a subject, or set fewer passages",
                code="no-cases",
            )
        rng = random.Random(0)
        unasked = {(row["context"], qa["question"]) for ones in topics for row in ones for qa in row["qas"]}
        least = max(0, len(unasked) - limit)
        while len(unasked) > least:
            topic = rng.choice(topics)
            chosen = rng.sample(topic, passages)
            asked = [number for number, row in enumerate(chosen) if row["qas"]]
            if not asked:
                continue  # only passages without questions
            right = rng.choice(asked)
            qa = rng.choice(chosen[right]["qas"])
            if (chosen[right]["context"], qa["question"]) not in unasked:
                continue
            unasked.remove((chosen[right]["context"], qa["question"]))
            texts, corpus = [passage_from_row(row) for row in chosen], [passage_from_row(row) for row in topic]
            yield self._case(str(chosen[right].get("src", "")), texts, right, qa["question"], qa["answers"], corpus)

    def _multi_hop(self, rows: Iterable[dict[str, Any]]) -> Iterator[Case]:
        for row in rows:
            said = [text for text in row["ctxs"] if text["text"].strip()]
            texts = [self._best_piece(text, row["question"], row["answers"]) for text in said]
            if texts:
                yield self._case("musique", texts, None, row["question"], row["answers"], texts)

    def _best_piece(self, text: dict[str, str], question: str, answers: Sequence[str]) -> str:
        cuts = cut(text["text"], PASSAGE_WORDS)
        pieces = [passage_from_row({"title": text["title"], "context": piece}) for piece in cuts]
        holding = [piece for piece in pieces if any(holds(piece, [answer]) for answer in answers)]
        return self._nearest(question, holding or pieces)[-1]

    def _conversations(self, rows: Iterable[dict[str, Any]], passages: int) -> Iterator[Case]:
        for row in rows:
            pieces = [passage_from_row(row | {"context": text}) for text in cut(row["context"], PASSAGE_WORDS)]
            for qa in row["qas"]:
                history = qa.get("history") or []
                told = [(q[1], a[1]) for q, a in zip(history[::2], history[1::2], strict=False)][-TURNS:]
                if not told:
                    continue
                earlier, shown = [], set[str]()
                for question, answer in told:
                    near = [p for p in self._nearest(question, pieces)[-2:] if p not in shown]
                    shown.update(near)
                    said = [Text(text=answer), Text(text=self._prompts.template.to_next, structural=True)]
                    earlier.append(
                        EarlierTurn(
                            modules=tuple(map(self.tokens, near)),
                            left_contexts=self._left_contexts(near, pieces),
                            question=self._question(question),
                            answer=run_tokens(said, self._tokenizer),
                        )
                    )
                new = [p for p in self._nearest(qa["question"], pieces) if p not in shown][-passages:]
                if new:
                    yield self._case(
                        str(row.get("src", "")), new, None, qa["question"], qa["answers"], pieces, tuple(earlier)
                    )

    def _case(
        self,
        source: str,
        texts: Sequence[str],
        right: int | None,
        question: str,
        answers: Sequence[str],
        corpus: Sequence[str],
        earlier: tuple[EarlierTurn, ...] = (),
    ) -> Case:
        ordered = self._nearest(question, texts)
        said = [*(f"{turn.modules}{turn.question}{turn.answer}" for turn in earlier), question, *ordered]
        identity = hashlib.blake2b("\0".join(said).encode(), digest_size=12).hexdigest()
        return Case(
            id=identity,
            source=source,
            modules=tuple(map(self.tokens, ordered)),
            left_contexts=self._left_contexts(ordered, corpus),
            right=None if right is None else ordered.index(texts[right]),
            question=self._question(question),
            answers=tuple(answers),
            gold=self.tokens(answers[0]) if answers else (),
            earlier=earlier,
        )

    def _left_contexts(self, texts: Sequence[str], corpus: Sequence[str]) -> tuple[Tokens, ...]:
        beside = (self._nearest(text, [other for other in corpus if other != text]) for text in texts)
        near = (others[max(0, len(others) - self._neighbours) :] for others in beside)
        return tuple(tuple(token for text in some for token in self.tokens(text)) for some in near)

    def _question(self, question: str) -> Tokens:
        pieces = [Text(text=question_text(question)), Text(text=self._prompts.template.to_answer, structural=True)]
        return run_tokens(pieces, self._tokenizer)

    def _nearest(self, text: str, others: Sequence[str]) -> list[str]:
        unknown = [t for t in dict.fromkeys([text, *others]) if t not in self._vectors]
        if unknown:
            self._vectors.update(zip(unknown, self._embedder.embed_documents(unknown), strict=True))
        asked = self._vectors[text]
        return sorted(others, key=lambda other: float(self._vectors[other] @ asked))


def passage_from_row(row: dict[str, Any]) -> str:
    return passage_text(str(row["title"]), (), str(row["context"]))


def holds(text: str, facts: Iterable[str]) -> bool:
    """Return whether a text contains all the facts. Only letters and digits are compared."""
    words = f" {normal(text)} "
    return all(f" {normal(fact)} " in words for fact in facts)


def normal(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def cut(text: str, words: int) -> list[str]:
    pieces: list[list[str]] = [[]]
    for line in joined_lines(text):
        for start in range(0, len(line.split()), words):
            part = line.split()[start : start + words]
            if pieces[-1] and sum(len(p.split()) for p in pieces[-1]) + len(part) > words:
                pieces.append([])
            pieces[-1].append(" ".join(part))
    return ["\n".join(piece) for piece in pieces if piece]


def read_list(file: Path) -> list[dict[str, Any]]:
    try:
        data = file.read_bytes()
        found = json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise DeskError(f"{file} cannot be read: {error}", code="bad-file") from error
    if not isinstance(found, list) or not all(
        isinstance(row, dict) and {"question", "answers", "ctxs"} <= row.keys() for row in found
    ):
        raise DeskError(f"{file} must be a JSON list of objects with question, answers and ctxs", code="bad-file")
    return found
