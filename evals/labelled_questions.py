"""Questions with their right answers, from which `calibrate-search` learns.

A line of a file is one of
    {"question", "answers": [...], "earlier"?, "articles"?}   answers: parts of the documents word for word; none if
                                                    empty. articles: file names; only these documents answer
    {"question", "answer"}, {"question"}            one answer, in whatever words; or none
    {"question", "facts": [[forms]...], "history"?}   as `warmdesk eval helpdesk` reads them
    {"title", "context", "qas": [{"question", "answers"}]}   as question answering collections are published
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.domain.documents import StoredPassage
from app.domain.errors import DeskError
from evals.fact_matching import Fact, holds_fact
from retrieval.statements.grouping import Statement
from retrieval.text.terms import CHINESE_JAPANESE, words

SAME = 0.6
"""A statement is an answer in other words if it has at least this share of the answer's words."""

_WORD = re.compile(rf"[{CHINESE_JAPANESE}]|[^\W{CHINESE_JAPANESE}]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQuestion:
    """A question with its answers, as parts of documents, or the facts an answer must hold; without both, none."""

    question: str
    earlier: str | None = None
    answers: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    articles: tuple[str, ...] = ()

    @property
    def is_answerable(self) -> bool:
        """Whether the documents answer it."""
        return bool(self.answers or self.facts)

    def is_answered_by(self, statement: Statement, passage: StoredPassage) -> bool:
        """Whether a statement holds the answer, a part of a longer one, or one of the facts."""
        if self.facts:
            return any(holds_fact(statement.text, fact) for fact in self.facts)
        if self.articles and passage.document.rpartition("/")[2] not in self.articles:
            return False  # "2008" stands in many documents
        said = _plain(passage.text[statement.start : statement.end])
        return any(_is_same(said, _plain(answer)) for answer in self.answers)


def read_labelled(file: Path) -> list[LabelledQuestion]:
    """All questions of a file. Raises DeskError for a file that is not of this kind."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        return [one for line in lines if line.strip() for one in _labelled(json.loads(line))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DeskError(f"{file}: not a file of questions ({error})", code="bad-questions") from error


def _labelled(row: dict[str, Any]) -> Iterator[LabelledQuestion]:
    if "qas" in row:
        for qa in row["qas"]:
            yield LabelledQuestion(question=qa["question"], answers=tuple(qa["answers"]))
        return
    if row.get("kind") == "smalltalk":
        return
    history = row.get("history") or []
    earlier = row.get("earlier") or (None if not history else _asked(history[-1]))
    answers = row.get("answers", [row["answer"]] if row.get("answer") and "facts" not in row else [])
    facts = tuple((fact,) if isinstance(fact, str) else tuple(fact) for fact in row.get("facts") or ())
    articles = tuple(row["articles"]) if "answers" in row and row.get("articles") else ()
    yield LabelledQuestion(
        question=row["question"], earlier=earlier, answers=tuple(answers), facts=facts, articles=articles
    )


def _asked(turn: Any) -> str:
    said: str = turn["question"] if isinstance(turn, dict) else turn[0]
    return said


def _plain(text: str) -> str:
    """Words with single spaces; a Chinese or Japanese character is a word."""
    return " ".join(_WORD.findall(text.casefold()))


def _is_same(said: str, answer: str) -> bool:
    if not answer or not said:
        return False
    if f" {answer} " in f" {said} " or (len(said) > 1 and f" {said} " in f" {answer} "):
        return True
    wanted = set(words(answer))
    return len(wanted & set(words(said))) >= SAME * len(wanted) and len(wanted) > 2
