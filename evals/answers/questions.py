"""Questions with right answers, read from JSON lines.

Customer questions, for `eval helpdesk`, are in one of two forms. The general form has `articles` (paths below the
folder, none if no page answers), `facts` (all forms of each fact) and optionally `not_from`. The sample shop's form has
`article` (a path or null) and `facts` (one form each).

Labelled questions, for `calibrate-search`, are in one of these forms:
    {"question", "answers": [...], "earlier"?, "articles"?}   answers: verbatim parts of the documents; if empty, no
                                                    document answers. articles: file names; only these documents answer
    {"question", "answer"}, {"question"}            one answer in any words, or none
    {"question", "facts": [[forms]...], "history"?}   a customer question
    {"title", "context", "qas": [{"question", "answers"}]}   the usual form of published question sets
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.domain.documents import StoredPassage
from app.domain.errors import DeskError
from evals.answers.fact_matching import Fact, holds_fact
from retrieval.statements.grouping import Statement
from retrieval.text.terms import CHINESE_JAPANESE, words

SMALL_TALK, FOLLOW_UP, PLAIN, UNANSWERABLE = "smalltalk", "follow-up", "plain", "unanswerable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerQuestion:
    """A question. kind: what the file says, else one of the four above. articles: the pages that answer it, any of
    which counts. facts: what a right answer holds. gold: a right answer. history: earlier questions and answers.
    not_from: pages whose advice would be harmful here, such as that of another model.
    """

    id: str
    kind: str
    question: str
    articles: tuple[str, ...]
    facts: tuple[tuple[str, ...], ...]
    gold: str
    history: tuple[tuple[str, str], ...]
    not_from: tuple[str, ...] = ()

    @property
    def is_small_talk(self) -> bool:
        """Whether no search is needed: a greeting, thanks, a wish for a human."""
        return self.kind == SMALL_TALK

    @property
    def is_answerable(self) -> bool:
        """Whether the documents answer it."""
        return bool(self.articles or self.facts)

    @property
    def is_unanswerable(self) -> bool:
        """Whether it asks for something that the documents do not say."""
        return not self.is_answerable and not self.is_small_talk


def read_questions(file: Path) -> list[CustomerQuestion]:
    """All questions of a JSONL file. Raises DeskError with the line that cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DeskError(f"{file}: {error.strerror or error}", code="no-such-file") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                found.append(_question(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
            raise DeskError(f"{file}, line {number} is no question ({error!r})", code="bad-questions") from error
    if not found:
        raise DeskError(f"{file} holds no questions", code="bad-questions")
    return found


def _question(row: dict[str, Any]) -> CustomerQuestion:
    articles = row["articles"] if "articles" in row else [row["article"]] if row["article"] else []
    facts = [(fact,) if isinstance(fact, str) else tuple(fact) for fact in row["facts"]]
    history = [
        (turn["question"], turn["answer"]) if isinstance(turn, dict) else (turn[0], turn[1])
        for turn in row.get("history") or []
    ]
    told = articles or facts
    kind = row.get("kind") or (UNANSWERABLE if not told else FOLLOW_UP if history else PLAIN)
    return CustomerQuestion(
        id=str(row["id"]),
        kind=kind,
        question=row["question"],
        articles=tuple(articles),
        facts=tuple(facts),
        gold=row.get("answer") or "",
        history=tuple(history),
        not_from=tuple(row.get("not_from") or ()),
    )


def sample(questions: Sequence[CustomerQuestion], limit: int | None) -> list[CustomerQuestion]:
    """At most about `limit` questions, in their order: of every kind the same part, at least one, spread evenly."""
    if limit is None or limit >= len(questions):
        return list(questions)
    of_kind: dict[str, list[int]] = defaultdict(list)
    for number, question in enumerate(questions):
        of_kind[question.kind].append(number)
    taken: set[int] = set()
    for numbers in of_kind.values():
        taken.update(_spread(numbers, max(1, round(limit * len(numbers) / len(questions)))))
    return [questions[number] for number in sorted(taken)]


def _spread(numbers: Sequence[int], count: int) -> Iterable[int]:
    return (numbers[at * len(numbers) // count] for at in range(count))


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
