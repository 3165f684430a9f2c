"""`warmdesk batch`: many questions at once, grouped by what their prompts share.

Answers come in the order of the file. They are not kept as conversations.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.answering import Answering, Asked, Prepared, finished, refusal
from app.answers import Answer
from app.errors import DeskError
from app.history import PastMessage, new_id
from cache.dry_run import count_tokens
from cache.errors import CacheError
from cache.grouping import group
from cache.request import Generation, Request

IN_FLIGHT = 16
"""Questions given to the engine at once: as many as it answers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuestion:
    """A line of the file. past: earlier questions and answers of its conversation."""

    id: str
    question: str
    past: tuple[PastMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """Answers in the order of the questions. groups: ids of the questions that were answered together.

    cold_ungrouped, cold_grouped: tokens that would be computed from a cold start with the desk's memory, in the order
    of the file and grouped; counted by the engine's books without computing (see `cache.dry_run`).
    """

    questions: tuple[BatchQuestion, ...]
    answers: tuple[Answer, ...]
    groups: tuple[tuple[str, ...], ...]
    cold_ungrouped: int
    cold_grouped: int
    seconds: float


def read_questions(file: Path) -> list[BatchQuestion]:
    """JSON lines with `question`, and optionally `id` and `history` ([[question, answer], ...]). Raises DeskError."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DeskError(f"{file} is not UTF-8 text: convert it", code="not-text") from error
    except OSError as error:
        raise DeskError(f"{file}: {error.strerror or error}", code="no-such-file") from error
    questions = [read_question(line, number, file) for number, line in enumerate(lines, start=1) if line.strip()]
    if not questions:
        raise DeskError(f"{file} has no questions: write one JSON object a line", code="batch-empty")
    return questions


def read_question(line: str, number: int, file: Path) -> BatchQuestion:
    """One line of the file. Raises DeskError."""
    try:
        row = json.loads(line)
        row = {"question": row} if isinstance(row, str) else row
        question = row["question"]
        history = [(str(asked), str(answered)) for asked, answered in row.get("history") or ()]
        if not isinstance(question, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeskError(
            f'{file}, line {number}: each line is {{"question": text}}, with "id" and "history" if wanted',
            code="bad-question-line",
        ) from error
    past = tuple(
        message for asked, answered in history for message in (said("user", asked), said("assistant", answered))
    )
    return BatchQuestion(id=str(row.get("id", number)), question=question, past=past)


def said(role: str, text: str) -> PastMessage:
    """A message of an earlier turn; which passages it had is not known."""
    return PastMessage(message_id="", role=role, text=text, tokens=None, refused=False, passage_ids=())


def run_batch(
    answering: Answering, questions: Sequence[BatchQuestion], report: Callable[[int, int], None]
) -> BatchResult:
    """Answer all questions. report: gets the numbers of answers done and of all. Raises DeskError, CacheError."""
    started = time.perf_counter()
    prepared = [prepare(answering, question) for question in questions]
    planned = [index for index, one in enumerate(prepared) if one.plan is not None]
    plans = [plan for one in prepared if (plan := one.plan) is not None]
    requests = dict(zip(planned, (answering.request(plan, "on", None) for plan in plans), strict=True))
    groups = [[planned[i] for i in members] for members in group(plans)]
    order = [index for members in groups for index in members]

    answers: dict[int, Answer] = {}
    for index, one in enumerate(prepared):
        if one.plan is None:
            answers[index] = refusal(answering.settings.refusal_text, asked(one))
    running: deque[tuple[int, Generation]] = deque()

    def collect() -> None:
        index, generation = running.popleft()
        answers[index] = answer_of(generation, asked(prepared[index]), questions[index])
        report(len(answers), len(questions))

    for index in order:
        if len(running) == IN_FLIGHT:
            collect()
        running.append((index, answering.engine.submit(requests[index])))
    while running:
        collect()
    return BatchResult(
        questions=tuple(questions),
        answers=tuple(answers[index] for index in range(len(questions))),
        groups=tuple(tuple(questions[index].id for index in members) for members in groups),
        cold_ungrouped=computed_cold(answering, [requests[index] for index in sorted(order)]),
        cold_grouped=computed_cold(answering, [requests[index] for index in order]),
        seconds=round(time.perf_counter() - started, 3),
    )


def prepare(answering: Answering, line: BatchQuestion) -> Prepared:
    """Passages and plan of a question. Raises DeskError that names it."""
    try:
        return answering.prepare(answering.checked(line.question), line.past)
    except DeskError as error:
        raise DeskError(f"question {line.id!r}: {error}", code=error.code) from error


def computed_cold(answering: Answering, requests: Sequence[Request]) -> int:
    """Tokens computed for requests in this order from a cold start."""
    usages = count_tokens(requests, answering.engine.model, answering.settings.memory)
    return sum(usage.computed for usage in usages)


def asked(prepared: Prepared) -> Asked:
    """A question that belongs to no stored conversation."""
    return Asked(started=time.perf_counter(), conversation_id=new_id(), question_id="", prepared=prepared)


def answer_of(generation: Generation, question: Asked, line: BatchQuestion) -> Answer:
    """The finished answer. Raises DeskError that names the question."""
    try:
        return finished(generation.completion, question)
    except CacheError as error:
        raise DeskError(f"question {line.id!r}: {error}", code="engine") from error
