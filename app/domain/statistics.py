"""What a desk did and is doing, for those who count it (`app.api.metrics`).

How the desk did over time, as the dashboard's charts show it.

What other sizes of memory would do for the questions that were asked lately.

What came of verifying an encoded passage.

What reuse saved, measured: some answers computed a second time without any reuse, and both compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from app.domain.answers import AnswerTimings, AnswerUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An answer that was given. outcome: of the desk (`app.domain.answers.Outcome`), or "plain" for the language model
    alone. queue_ms: how long it waited for the engine.
    """

    outcome: str
    usage: AnswerUsage
    timings: AnswerTimings
    queue_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a desk holds and does now. running, waiting: requests in the engine. num_bytes, capacity, evictions: by
    tier, or by kind of what was evicted. restarts: how often the engine began anew after an error.
    disk_free, disk_floor: bytes of the disk that encoded passages are on, as far as known, and those that stay free of
    them. failed_writes, skipped_writes: passages that the disk did not take, and had no time for.
    shortages: how often device memory has run out in a pass, which was tried again with fewer rows.
    """

    model: str
    running: int = 0
    waiting: int = 0
    documents: int = 0
    passages: int = 0
    num_bytes: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    evictions: Mapping[str, int] = field(default_factory=dict)
    disk_free: int | None = None
    disk_floor: int | None = None
    failed_writes: int = 0
    skipped_writes: int = 0
    restarts: int = 0
    shortages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenTimes:
    """Times to the first token of some answers, in milliseconds, within 5 % (see `app.storage.statistics`)."""

    answers: int
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSpan:
    """What happened within a span of time that begins at `start`. A name that is missing happened never.

    answers: by outcome. tokens: of prompts, by source: computed, session, prefix, module; together all of them. modules
    and module_tokens: uses of modules, and their tokens, by where they were found: device, host, disk, or computed.
    misses: uses that were computed, by reason. warm: answers whose modules were all found encoded; cold: some were not;
    server: those of a model that runs elsewhere. None where there was no such answer. Answers for which the model read
    nothing are in none of them.
    """

    start: datetime
    answers: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    modules: Mapping[str, int] = field(default_factory=dict)
    module_tokens: Mapping[str, int] = field(default_factory=dict)
    misses: Mapping[str, int] = field(default_factory=dict)
    warm: FirstTokenTimes | None = None
    cold: FirstTokenTimes | None = None
    server: FirstTokenTimes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """A size of memory. found: share of the uses of passages that would have been found in it. tokens: of those that
    would not, on average for an answer: loaded from disk or computed. is_current: it is the size that is set.
    """

    num_bytes: int
    found: float
    tokens: float
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The latest answers that used passages, and what each size would have done for them, the smallest first. enough:
    the smallest size that comes close to the largest one; None without any answer.
    """

    answers: int = 0
    budgets: Sequence[MemoryBudget] = ()
    enough: int | None = None


CLOSE = 1e-3
"""The largest difference of a number that rounding explains, as a share of the largest number of the module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What came of verifying a module. largest_difference: between its stored rows and rows computed anew, as a share
    of its largest number; None if the stored rows could not be read, and why is in `problem`.
    """

    largest_difference: float | None
    problem: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether the stored rows are those that the model computes."""
        return self.largest_difference is not None and self.largest_difference <= CLOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsSample:
    """One answer computed twice. Times are milliseconds to the first token in the engine, without search and waiting:
    as the customer got it, and without reuse. computed_tokens: of the prompt, in the first run. question_id: of the
    customer's question, None where it is not stored any more. likeness: of the two texts, 0 to 1 (1: word for word the
    same); None where they cannot be compared, because words are drawn by chance or the answer was stopped.
    """

    created: datetime
    question_id: str | None
    policy: str
    prompt_tokens: int
    computed_tokens: int
    first_token_ms: float
    without_reuse_ms: float
    likeness: float | None

    @property
    def saved_ms(self) -> float:
        """How much sooner the first token came; below 0 if it came later."""
        return self.without_reuse_ms - self.first_token_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """What some samples say. samples: how many. first_token_ms, without_reuse_ms: means. saved_ms: mean of one answer.
    times_sooner: median of the ratios. tokens_reused: share of prompt tokens. compared: samples whose texts could be
    compared. same: share of them that are word for word the same. likeness: mean of the others; None if there are none.
    Values that need more samples for an interval are None.
    """

    samples: int = 0
    first_token_ms: float = 0.0
    without_reuse_ms: float = 0.0
    saved_ms: Interval | None = None
    times_sooner: Interval | None = None
    tokens_reused: float = 0.0
    compared: int = 0
    same: Interval | None = None
    likeness: float | None = None
