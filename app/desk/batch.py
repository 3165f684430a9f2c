"""`warmdesk batch`: answer many questions, grouped by shared parts of their prompts.

Answers come in the order of the questions and are not stored as conversations. If a question fails, its error takes the
place of the answer, and the other questions are still answered. Out of scope: the JSON format of an answer (`output`).
"""

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert
from msgspec.structs import astuple

from app.domain.answers import Answer
from app.domain.callers import LONGEST_PAST, check_length
from app.domain.errors import DeskError
from app.domain.json_lines import read_json_lines
from app.domain.words import one_line
from app.storage.history import PastMessage
from cache.errors import CacheError
from cache.prompt.plan import Plan

if TYPE_CHECKING:  # a command reads questions without torch, because a running server answers them
    from app.answering.answering import Answering
    from app.answering.record import AskedQuestion
    from cache.engine.request import Generation, Request


def read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DeskError(f"{file} is not UTF-8 text: convert it", code="not-text") from error
    except OSError as error:
        raise DeskError(f"{file}: {error.strerror or error}", code="no-such-file") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuestion:
    """A line of the file. past: earlier questions and answers of its conversation."""

    id: str
    question: str
    past: tuple[PastMessage, ...]


NEEDED = 'write {"question": text} on each line, optionally with "id" and "history" ([[question, answer], ...])'


def read_questions(file: Path) -> list[BatchQuestion]:
    """Read JSON lines: `question`, optionally `id` and `history` ([[question, answer], ...], or objects
    with these keys, as in files of labelled questions). Raises DeskError.
    """
    read = read_json_lines(file, lambda row: convert(row, str | _Line), f"question: {NEEDED}", "bad-question-line")
    questions = [_question(row, number) for number, row in read.items()]
    if not questions:
        raise DeskError(f"{file} has no questions: write one JSON object per line", code="batch-empty")
    return questions


class _Turn(Struct):
    question: str
    answer: str


class _Line(Struct):
    question: str
    id: Any = None
    history: list[tuple[str, str] | _Turn] | None = None


def _question(read: str | _Line, number: int) -> BatchQuestion:
    row = _Line(question=read) if isinstance(read, str) else read
    past = [
        PastMessage(role=role, text=text)
        for turn in row.history or ()
        for role, text in zip(("user", "assistant"), astuple(turn) if isinstance(turn, _Turn) else turn, strict=True)
    ]
    return BatchQuestion(id=str(number if row.id is None else row.id), question=row.question, past=tuple(past))


def still_to_answer(questions: Sequence[BatchQuestion], output: Path) -> list[BatchQuestion]:
    """Return the questions without an answer in the output of an earlier run. If that run was killed while it wrote the
    last line, the line is removed from the file. Raises DeskError if two questions have the same id, or the file
    contains anything but answers to these questions.
    """
    asked = {question.id: question.question for question in questions}
    if len(asked) < len(questions):
        raise DeskError("two questions have the same id: with --output, every id must be unique", code="same-id")
    if not output.exists():
        return list(questions)
    *lines, rest = read_text(output).split("\n")
    done = set()
    for number, line in enumerate(lines, start=1):
        where = f"{output}, line {number}"
        try:
            row = json.loads(line)
            id_, question, _ = row["id"], row["question"], row["answer"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DeskError(f"{where} is not an answer of a batch: choose another file", code="output") from error
        if asked.get(id_, question) != question:
            raise DeskError(f"{where} answers an unknown question {id_!r}: choose another file", code="output")
        done.add(id_)
    if rest:
        if not rest.startswith('{"id": '):
            raise DeskError(f"{output} contains lines that are not answers: choose another file", code="output")
        output.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return [question for question in questions if question.id not in done]


IN_FLIGHT = 16
"""Maximum number of questions in the engine at once, because customers also ask. The engine may allow fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailure:
    """The reason why a question has no answer. code: for programs. message: for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """Answers, or failures, in the order of the questions. groups: ids of the questions that were answered together.
    cold_ungrouped, cold_grouped: tokens that the model would compute from a cold start with the same memory, in the
    order of the file and in groups (`cache.analysis.memory_plan`); None if that cannot be counted.
    """

    questions: tuple[BatchQuestion, ...]
    outcomes: tuple[Answer | BatchFailure, ...]
    groups: tuple[tuple[str, ...], ...]
    cold_ungrouped: int | None
    cold_grouped: int | None
    seconds: float

    @property
    def answers(self) -> tuple[Answer, ...]:
        return tuple(outcome for outcome in self.outcomes if isinstance(outcome, Answer))

    @property
    def computed(self) -> int | None:
        """Prompt tokens computed for the answers; None if a remote model server does not report some of them."""
        answers = self.answers
        is_known = all(answer.usage.is_reuse_known and not answer.is_uncounted for answer in answers)
        return sum(answer.usage.computed for answer in answers) if is_known else None

    @property
    def failed(self) -> int:
        return len(self.outcomes) - len(self.answers)


def run_batch(
    answering: "Answering",
    questions: Sequence[BatchQuestion],
    report: Callable[[int, int], None],
    keep: Callable[[BatchQuestion, Answer], None],
) -> BatchResult:
    """Answer all questions. report: gets the number of finished and of all questions. keep: gets each answer."""
    from app.answering.record import without_model
    from cache.analysis.memory_plan import group

    started = time.perf_counter()
    outcomes: dict[int, Answer | BatchFailure] = {}
    asked: dict[int, AskedQuestion] = {}
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
            settle(index, without_model(asked[index])[0])
        else:
            plans[index] = plan

    requests = {index: answering.request(asked[index].prepared, "on", None, answering.policy) for index in plans}
    planned = list(plans)
    groups = [[planned[i] for i in members] for members in group(list(plans.values()))]
    running: deque[tuple[int, Generation]] = deque()
    most = min(IN_FLIGHT, answering.settings.questions_at_once)

    def collect() -> None:
        index, generation = running.popleft()
        try:
            outcome: Answer | BatchFailure = answer_of(answering, generation, asked[index])
        except (DeskError, CacheError) as error:
            outcome = failure(error)
        settle(index, outcome)

    for index in (index for members in groups for index in members):
        if len(running) == most:
            collect()
        try:
            running.append((index, answering.engine.submit(requests[index])))
        except CacheError as error:
            settle(index, failure(error))
    while running:
        collect()

    answered = [[index for index in members if isinstance(outcomes[index], Answer)] for members in groups]
    order = [index for members in answered for index in members]
    cold: Sequence[int | None]
    try:
        cold = [computed_cold(answering, [requests[i] for i in indices]) for indices in (sorted(order), order)]
    except CacheError:
        cold = (None, None)
    return BatchResult(
        questions=tuple(questions),
        outcomes=tuple(outcomes[index] for index in range(len(questions))),
        groups=tuple(tuple(questions[index].id for index in members) for members in answered if members),
        cold_ungrouped=cold[0],
        cold_grouped=cold[1],
        seconds=round(time.perf_counter() - started, 3),
    )


def ask(answering: "Answering", line: BatchQuestion) -> "AskedQuestion":
    for one in line.past:
        check_length(one.text, LONGEST_PAST, "history")
    return answering.asked(line.question, line.past)


def answer_of(answering: "Answering", generation: "Generation", asked: "AskedQuestion") -> Answer:
    """Return the finished answer. Its total time is the time of search and engine. Raises DeskError, CacheError."""
    answer = answering.read(generation, asked)
    total = round(asked.prepared.retrieve_ms + generation.completion.timings.total, 3)
    return replace(answer, timings=replace(answer.timings, total=total))


def failure(error: DeskError | CacheError) -> BatchFailure:
    from app.answering.answering import engine_failed

    failed = error if isinstance(error, DeskError) else engine_failed(error)
    return BatchFailure(code=failed.code, message=one_line(str(error)))


def computed_cold(answering: "Answering", requests: "Sequence[Request]") -> int | None:
    """Return the tokens computed for requests in this order from a cold start; None if unknown. Raises CacheError."""
    from cache.analysis.memory_plan import count_tokens

    engine = answering.engine
    if engine.info.is_elsewhere:
        return None
    memory = engine.contents(with_modules=False).capacity["device"]
    return sum(usage.computed for usage in count_tokens(requests, engine.info, engine.tokenizer, memory))
