"""Answers for lessons whose questions have none: what the model itself says to them, reading with full attention.

A student is compared with its teacher along the teacher's own words, which are those that it is to say (on the way that
answers go, as in sequence-level distillation, Kim & Rush, 2016). Not covered: the comparison (`adapter_training`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from cache.engine import Engine
from cache.lessons import Branch, Lesson
from cache.plan import Plan, Span
from cache.request import Completion, Request
from cache.sampling import Sampling

ANSWER_TOKENS = 24
"""The beginning is what the passages decide most; what comes later follows from it."""


AHEAD = 2
"""Lessons that are answered ahead: those of a step."""


class AnsweredLessons:
    """Lessons by number with the engine's answers. The next ones are answered on another thread while some are taught,
    so that no core is idle. lesson_at: a lesson without answers. Call `close` before the engine's.
    """

    def __init__(self, lesson_at: Callable[[int], Lesson], engine: Engine) -> None:
        self._make = lambda number: with_answers(lesson_at(number), engine)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="warmdesk-lessons")
        self._ahead: dict[int, Future[Lesson]] = {}

    def lesson_at(self, number: int) -> Lesson:
        """The same lesson for the same number. Raises CacheError."""
        wanted = range(number, number + 1 + AHEAD)
        self._ahead = {one: self._ahead.get(one) or self._pool.submit(self._make, one) for one in wanted}
        return self._ahead[number].result()

    def close(self) -> None:
        """Wait for the lesson that is being answered."""
        self._pool.shutdown(cancel_futures=True)


def with_answers(lesson: Lesson, engine: Engine) -> Lesson:
    """The lesson with the engine's greedy answers, of `ANSWER_TOKENS` at most, in place of its own. An answer that
    comes to its end has the token that ended the lesson's. Raises CacheError.
    """
    spans, at = [Span(start=0, tokens=lesson.prefix)], len(lesson.prefix)
    for module, gap in zip(lesson.modules, lesson.gaps, strict=True):
        spans.append(Span(start=at + gap, tokens=module))
        at = spans[-1].end
    sampling = Sampling(max_tokens=ANSWER_TOKENS)
    branches: list[Branch] = []
    # The first one alone: what it computes is there for the others, which are then answered together.
    for together in (lesson.branches[:1], lesson.branches[1:]):
        plans = [Plan(spans=(*spans, Span(start=at, tokens=branch.question))) for branch in together]
        asked = [engine.submit(Request(plan=plan, sampling=sampling, reuse="prefix")) for plan in plans]
        branches += [ended(branch, one.completion) for branch, one in zip(together, asked, strict=True)]
    return replace(lesson, branches=tuple(branches))


def ended(branch: Branch, completion: Completion) -> Branch:
    """A branch with this answer, and with the token that ended its own if the answer came to its end."""
    end = () if completion.finish_reason == "length" else branch.answer[-1:]
    return Branch(question=branch.question, answer=(*(completion.tokens or ()), *end))
