"""`warmdesk batch`: many questions at once, grouped by what their prompts share.

Answers come in the order of the file. They are not kept as conversations. A question that fails takes no other along:
its failure stands in the place of its answer.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.answering.answering import Answering, Asked, finished, refusal
from app.desk.text_file import read_text
from app.domain.answers import Answer
from app.domain.errors import DeskError
from app.storage.history import PastMessage
from cache.analysis.dry_run import count_tokens
from cache.analysis.grouping import group
from cache.engine.request import Generation, Request
from cache.errors import CacheError
from cache.prompt.plan import Plan

IN_FLIGHT = 16
"""Questions given to the engine at once: as many as it answers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuestion:
    """A line of the file. past: earlier questions and answers of its conversation."""

    id: str
    question: str
    past: tuple[PastMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailure:
    """Why a question has no answer."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """Answers, or failures, in the order of the questions. groups: ids of the questions that were answered together.

    cold_ungrouped, cold_grouped: tokens that would be computed from a cold start with the desk's memory for the
    questions that were answered, in the order of the file and grouped; counted by the engine's books without computing
    (see `cache.analysis.dry_run`), None if they cannot be counted.
    """

    questions: tuple[BatchQuestion, ...]
    outcomes: tuple[Answer | BatchFailure, ...]
    groups: tuple[tuple[str, ...], ...]
    cold_ungrouped: int | None
    cold_grouped: int | None
    seconds: float

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers there are."""
        return tuple(outcome for outcome in self.outcomes if isinstance(outcome, Answer))

    @property
    def failed(self) -> int:
        """How many questions have no answer."""
        return len(self.outcomes) - len(self.answers)


def read_questions(file: Path) -> list[BatchQuestion]:
    """JSON lines with `question`, and optionally `id` and `history` ([[question, answer], ...]). Raises DeskError."""
    lines = read_text(file).split("\n")  # only there: other line separators may stand inside JSON strings
    questions = [read_question(line, number, file) for number, line in enumerate(lines, start=1) if line.strip()]
    if not questions:
        raise DeskError(f"{file} has no questions: write one JSON object a line", code="batch-empty")
    return questions


def read_question(line: str, number: int, file: Path) -> BatchQuestion:
    """One line of the file. Raises DeskError."""
    try:
        row = json.loads(line)
        row = {"question": row} if isinstance(row, str) else row
        question, turns = row["question"], row.get("history") or []
        if not isinstance(question, str) or not isinstance(turns, list) or not all(map(is_turn, turns)):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeskError(
            f'{file}, line {number}: each line is {{"question": text}}, with "id" and "history" '
            "([[question, answer], ...]) if wanted",
            code="bad-question-line",
        ) from error
    past = tuple(message for asked, answered in turns for message in (said("user", asked), said("assistant", answered)))
    return BatchQuestion(id=str(row.get("id", number)), question=question, past=past)


def is_turn(entry: object) -> bool:
    """Whether an entry of `history` is a question and its answer."""
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(text, str) for text in entry)


def said(role: str, text: str) -> PastMessage:
    """A message of an earlier turn; which passages it had is not known."""
    return PastMessage(message_id="", role=role, text=text, tokens=None, refused=False, passage_ids=())


def still_to_answer(questions: Sequence[BatchQuestion], output: Path) -> list[BatchQuestion]:
    """Questions whose answers are not among the JSON lines of an earlier run; a last line that was cut is removed.

    Raises DeskError if ids do not tell the questions apart, or the file holds something else than their answers.
    """
    asked = {question.id: question.question for question in questions}
    if len(asked) < len(questions):
        raise DeskError("two questions have the same id: with --output every id must be another", code="same-id")
    if not output.exists():
        return list(questions)
    *lines, rest = read_text(output).split("\n")
    done = set()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            id_, question, _ = row["id"], row["question"], row["answer"]
        except (ValueError, KeyError, TypeError) as error:
            raise DeskError(
                f"{output}, line {number} is no answer of a batch: name another file", code="output"
            ) from error
        if asked.get(id_, question) != question:
            raise DeskError(
                f"{output}, line {number} answers another question {id_!r}: name another file", code="output"
            )
        done.add(id_)
    if rest:
        if not rest.startswith('{"id": '):
            raise DeskError(f"{output} holds something else than answers: name another file", code="output")
        output.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return [question for question in questions if question.id not in done]


def run_batch(
    answering: Answering,
    questions: Sequence[BatchQuestion],
    report: Callable[[int, int], None],
    keep: Callable[[BatchQuestion, Answer], None],
) -> BatchResult:
    """Answer all questions. report: gets the numbers of questions done and of all. keep: gets each answer at once."""
    started = time.perf_counter()
    outcomes: dict[int, Answer | BatchFailure] = {}
    asked: dict[int, Asked] = {}
    plans: dict[int, Plan] = {}

    def settle(index: int, outcome: Answer | BatchFailure) -> None:
        outcomes[index] = outcome
        if isinstance(outcome, Answer):
            keep(questions[index], outcome)
        report(len(outcomes), len(questions))

    for index, question in enumerate(questions):
        try:
            asked[index] = ask(answering, question)
        except (DeskError, CacheError) as error:
            settle(index, failure(error))
            continue
        plan = asked[index].prepared.plan
        if plan is None:
            settle(index, refusal(answering.settings.refusal_text, asked[index]))
        else:
            plans[index] = plan

    requests = {
        index: answering.request(asked[index].prepared, asked[index].question, "on", None, answering.policy)
        for index in plans
    }
    planned = list(plans)
    groups = [[planned[i] for i in members] for members in group(list(plans.values()))]
    running: deque[tuple[int, Generation]] = deque()

    def collect() -> None:
        index, generation = running.popleft()
        try:
            outcome: Answer | BatchFailure = answer_of(answering, generation, asked[index])
        except CacheError as error:
            outcome = failure(error)
        settle(index, outcome)

    for index in (index for members in groups for index in members):
        if len(running) == IN_FLIGHT:
            collect()
        try:
            running.append((index, answering.engine.submit(requests[index])))
        except CacheError as error:
            settle(index, failure(error))
    while running:
        collect()

    answered = [[index for index in members if isinstance(outcomes[index], Answer)] for members in groups]
    order = [index for members in answered for index in members]
    cold = [computed_cold(answering, [requests[i] for i in indices]) for indices in (sorted(order), order)]
    return BatchResult(
        questions=tuple(questions),
        outcomes=tuple(outcomes[index] for index in range(len(questions))),
        groups=tuple(tuple(questions[index].id for index in members) for members in answered if members),
        cold_ungrouped=None if None in cold else cold[0],
        cold_grouped=None if None in cold else cold[1],
        seconds=round(time.perf_counter() - started, 3),
    )


def ask(answering: Answering, line: BatchQuestion) -> Asked:
    """A question with its passages and plan; it belongs to no conversation. Raises DeskError, CacheError."""
    started = time.perf_counter()
    question = answering.valid(line.question)
    return Asked(
        started=started,
        conversation_id="",
        question_id="",
        question=question,
        prepared=answering.prepare(question, line.past),
        policy=answering.policy,
    )


def answer_of(answering: Answering, generation: Generation, asked: Asked) -> Answer:
    """The finished answer. Its time is that of its retrieval and in the engine, without the wait for other questions'
    retrieval and for being collected. Raises CacheError.
    """
    checked = answering.checked(generation, asked)
    for _ in checked:
        pass
    completion = generation.completion
    answer = finished(completion, checked, asked)
    total = round(asked.prepared.retrieve_ms + completion.timings.total, 3)
    return replace(answer, timings=replace(answer.timings, total=total))


def failure(error: DeskError | CacheError) -> BatchFailure:
    """An error as the entry of its question."""
    code = error.code if isinstance(error, DeskError) else "engine"
    return BatchFailure(code=code, message=" ".join(str(error).split()))


def computed_cold(answering: Answering, requests: Sequence[Request]) -> int | None:
    """Tokens computed for requests in this order from a cold start; None if that cannot be counted."""
    try:
        usages = count_tokens(requests, answering.engine.model, answering.settings.memory)
    except CacheError:
        return None
    return sum(usage.computed for usage in usages)
