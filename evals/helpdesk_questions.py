"""Questions of customers about a folder of documents, as `warmdesk eval helpdesk` asks them.

Two forms of lines are read. The general one has `articles` (paths below the folder; none if no page answers) and
`facts` (for each fact all its forms), perhaps `not_from`. The sample shop's has `article` (a path or null) and `facts`
(one form each).
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.domain.errors import DeskError

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
