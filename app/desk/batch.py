"""`warmdesk batch`: many questions at once, grouped by what their prompts share.

Answers come in the order of the questions and are not stored as conversations. If a question fails, the failure takes
the place of its answer, and the others are answered.

Not covered: the files (`batch_files`).
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.answering.answering import Answering
from app.answering.record import AskedQuestion, finished, without_model
from app.answering.stream import engine_failed
from app.desk.batch_files import BatchQuestion
from app.domain.answers import Answer
from app.domain.errors import DeskError
from app.domain.lengths import LONGEST_PAST, check_length
from cache.analysis.dry_run import count_tokens
from cache.analysis.grouping import group
from cache.engine.request import Generation, Request
from cache.errors import CacheError
from cache.prompt.plan import Plan

IN_FLIGHT = 16
"""Questions given to the engine at once, if it may answer so many: others may ask meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailure:
    """Why a question has no answer."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """Answers, or failures, in the order of the questions. groups: ids of the questions that were answered together.

    cold_ungrouped, cold_grouped: tokens that a cold start with the desk's memory would compute for the answered
    questions, in the order of the file and grouped; counted without computing (`cache.analysis.dry_run`), None if that
    is not possible.
    """

    questions: tuple[BatchQuestion, ...]
    outcomes: tuple[Answer | BatchFailure, ...]
    groups: tuple[tuple[str, ...], ...]
    cold_ungrouped: int | None
    cold_grouped: int | None
    seconds: float

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers, without the failures."""
        return tuple(outcome for outcome in self.outcomes if isinstance(outcome, Answer))

    @property
    def computed(self) -> int | None:
        """Prompt tokens computed for the answers; None if a model's server elsewhere does not say it of all."""
        answers = self.answers
        is_known = all(answer.usage.is_reuse_known and not answer.is_uncounted for answer in answers)
        return sum(answer.usage.computed for answer in answers) if is_known else None

    @property
    def failed(self) -> int:
        """Number of questions without an answer."""
        return len(self.outcomes) - len(self.answers)


def run_batch(
    answering: Answering,
    questions: Sequence[BatchQuestion],
    report: Callable[[int, int], None],
    keep: Callable[[BatchQuestion, Answer], None],
) -> BatchResult:
    """Answer all questions. report: called with the numbers of finished and of all questions. keep: called with each
    answer as soon as it is there.
    """
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


def ask(answering: Answering, line: BatchQuestion) -> AskedQuestion:
    """A question with its passages and plan; it belongs to no conversation. Raises DeskError, CacheError."""
    started = time.perf_counter()
    question = answering.questions.valid(line.question)
    for one in line.past:
        check_length(one.text, LONGEST_PAST, "history")
    prepared = answering.questions.prepare(question, line.past)
    return AskedQuestion(started=started, prepared=prepared, policy=answering.policy)


def answer_of(answering: Answering, generation: Generation, asked: AskedQuestion) -> Answer:
    """The finished answer. Its time is that of its retrieval and in the engine, without the wait for other questions'
    retrieval and for being collected. Raises DeskError, CacheError.
    """
    checked = answering.checked(generation, asked.prepared)
    deque(checked, maxlen=0)  # to the end
    completion = generation.completion
    answer, _ = finished(completion, checked, asked)
    total = round(asked.prepared.retrieve_ms + completion.timings.total, 3)
    return replace(answer, timings=replace(answer.timings, total=total))


def failure(error: DeskError | CacheError) -> BatchFailure:
    """What stands in place of an answer."""
    failed = error if isinstance(error, DeskError) else engine_failed(error)
    return BatchFailure(code=failed.code, message=" ".join(str(error).split()))


def computed_cold(answering: Answering, requests: Sequence[Request]) -> int | None:
    """Tokens computed for requests in this order from a cold start; None if nobody can know. Raises CacheError."""
    engine = answering.engine
    if engine.info.is_elsewhere:
        return None
    memory = engine.contents(with_modules=False).capacity["device"]
    return sum(usage.computed for usage in count_tokens(requests, engine.info, engine.tokenizer, memory))
