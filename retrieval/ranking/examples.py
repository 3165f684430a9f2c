"""Training examples for the ranker: passages with their statements, and questions with those that answer.

A line of a file: {"title", "context", "qas": [{"question", "answers", "history"?, "from"?, "heading"?}]}, as question
answering collections are published; `answers` stand in the context word for word, and none of them means that the
context does not answer. Questions made from headings count less, and half of the headings asked about are taken out, so
that matching a heading is not enough. Customers misspell: some questions get a slip of the finger.
"""

import gzip
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.ranking.encoder import PassageToRead
from retrieval.statements.cut import statements_of

MOST_WORDS = 125
"""Of a training passage; longer ones are cut at lines, so that a step stays short."""
MADE = 0.5
"""How much a question counts that a program made."""
FIRST = 4
"""Of a long answer, so many of its first statements count as right."""
RELATED = 0.5
"""Share of the batches whose passages stand side by side in their file: these are near misses of each other."""
PASSAGES, QUESTIONS = 16, 56
"""In a batch, about and at most; a small file has fewer passages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingQuestion:
    """right: numbers of the statements that answer, none if none does. weight: how often it is drawn."""

    text: str
    earlier: str
    right: tuple[int, ...]
    weight: float


@dataclass(slots=True, kw_only=True)
class ExamplePassage:
    """A part of a document. document: its number; questions that do not name what they ask about (`is_local`) are
    compared with statements of their own document only.
    """

    read: PassageToRead
    document: int
    is_local: bool
    questions: list[TrainingQuestion] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """Passages, and questions each with the number of its passage."""

    passages: Sequence[ExamplePassage]
    questions: Sequence[tuple[int, TrainingQuestion]]


def read_examples(
    files: Sequence[Path], left_out: frozenset[str], local: frozenset[str], seed: int
) -> list[list[ExamplePassage]]:
    """The documents of all files, each a list of passages. left_out: sources that are kept for measuring. local:
    sources whose questions do not say which document they are about. Raises OSError or ValueError.
    """
    generator = random.Random(seed)
    documents: list[list[ExamplePassage]] = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                if row["src"] not in left_out:
                    documents.append(_document(row, len(documents), row["src"] in local, generator))
    return [passages for passages in documents if any(passage.questions for passage in passages)]


def _document(row: dict[str, Any], number: int, is_local: bool, generator: random.Random) -> list[ExamplePassage]:
    context = row["context"]
    for heading in dict.fromkeys(qa["heading"] for qa in row["qas"] if qa.get("heading")):
        if generator.random() < 0.5:
            context = context.replace(f"\n{heading}\n", "\n", 1)
    passages: list[ExamplePassage] = []
    starts: list[int] = []
    for start, text in _parts(context):
        spans = [(one.start, one.end) for one in statements_of(text, (row["title"],))]
        if spans:
            read = PassageToRead(headings=(row["title"],), text=text, spans=spans)
            passages.append(ExamplePassage(read=read, document=number, is_local=is_local))
            starts.append(start)
    for qa in row["qas"]:
        place, right = _place(qa, context, passages, starts)
        if place is not None:
            passages[place].questions.append(
                TrainingQuestion(
                    text=qa["question"].strip(),
                    earlier=_earlier(qa.get("history") or ()),
                    right=right,
                    weight=MADE if qa.get("from") in ("heading", "faq_title") else 1.0,
                )
            )
    return passages


def _parts(context: str) -> Iterator[tuple[int, str]]:
    """Parts of a text at line ends, each with the place where it begins."""
    start = at = num = 0
    for line in context.splitlines(keepends=True):
        length = len(line.split())
        if num and num + length > MOST_WORDS:
            yield start, context[start:at]
            start, num = at, 0
        at += len(line)
        num += length
    yield start, context[start:at]


def _place(
    qa: dict[str, Any], context: str, passages: Sequence[ExamplePassage], starts: Sequence[int]
) -> tuple[int | None, tuple[int, ...]]:
    """The passage to which a question belongs, and the statements that answer it; without an answer the passage that
    shares most words, a near miss. None if its answer is in no statement.
    """
    if not qa["answers"]:
        asked = _long_words(qa["question"])
        shared = [len(asked & _long_words(passage.read.text)) for passage in passages]
        return (shared.index(max(shared)) if shared else None), ()
    for answer in qa["answers"]:
        first = context.find(answer)
        end = first + len(answer)
        for place, (passage, start) in enumerate(zip(passages, starts, strict=True)):
            right = [n for n, (a, b) in enumerate(passage.read.spans) if start + a < end and start + b > first >= 0]
            if right:
                return place, tuple(right[:FIRST])
    return None, ()


def _long_words(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))


def _earlier(history: Sequence[Any]) -> str:
    asked = [said for who, said in history if who.lower().startswith("u")]
    return " ".join(asked[-1].split()[-22:]) if asked else ""


def batches(documents: Sequence[Sequence[ExamplePassage]], generator: random.Random) -> Iterator[TrainingBatch]:
    """Endless batches; passages of a document come together with one of it that nothing is asked about."""
    weights = [sum(one.weight for passage in passages for one in passage.questions) for passages in documents]
    while True:
        passages: list[ExamplePassage] = []
        is_related = generator.random() < RELATED
        at = generator.choices(range(len(documents)), weights)[0]
        for _ in range(PASSAGES):
            if len(passages) >= PASSAGES:
                break
            asked = [passage for passage in documents[at] if passage.questions]
            unasked = [passage for passage in documents[at] if not passage.questions]
            some = [*generator.sample(asked, min(2, len(asked))), *generator.sample(unasked, min(1, len(unasked)))]
            passages += [passage for passage in some if not any(passage is other for other in passages)]
            at = (at + 1) % len(documents) if is_related else generator.choices(range(len(documents)), weights)[0]
        questions = [
            (number, question)
            for number, passage in enumerate(passages)
            for question in passage.questions
            if generator.random() < question.weight
        ]
        if len(questions) > QUESTIONS:
            questions = generator.sample(questions, QUESTIONS)
        if questions:
            yield TrainingBatch(passages=passages, questions=questions)


def as_asked(question: TrainingQuestion, generator: random.Random) -> str:
    """The text of a question as a customer may write it."""
    text = question.text
    if generator.random() < 0.35:
        text = text.rstrip("? ")
    if generator.random() < 0.12:
        text = _misspelt(text, generator)
    return f"{question.earlier} {text}" if question.earlier and generator.random() < 0.7 else text


def _misspelt(text: str, generator: random.Random) -> str:
    said = text.split()
    place = generator.randrange(len(said)) if said else 0
    if not said or len(said[place]) < 5:
        return text
    word = said[place]
    at = generator.randrange(1, len(word) - 1)
    said[place] = generator.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at] + word[at:],
        )
    )
    return " ".join(said)
