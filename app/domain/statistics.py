"""Statistics of answers, memory use and savings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from app.domain.answers import AnswerTimings, AnswerUsage


@dataclass(frozen=True, slots=True)
class Served:
    """A finished answer. outcome: see `app.domain.answers.Outcome`, or "plain" for the language model alone. queue_ms:
    time in the engine's queue.
    """

    outcome: str
    usage: AnswerUsage
    timings: AnswerTimings
    queue_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The current load. running, waiting: requests in the engine. num_bytes, capacity: by tier. evictions: by tier or
    kind. restarts: of the engine. disk_free, disk_floor: free bytes of the disk with encoded passages, and their
    minimum. shortages: forward passes repeated with fewer tokens, because memory was short.
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
    """Counts within a span of time that begins at `start`. A missing name means 0. answers: by outcome. tokens: of
    prompts, by source. modules and module_tokens: uses of modules, and their tokens, by source. misses: uses that were
    computed, by reason. warm, cold, server: see `app.storage.statistics.Reading`; first: all three; None without an
    answer. grounding: mean of the checked answers; quoted: answers with quotations.
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
    first: FirstTokenTimes | None = None
    grounding: float | None = None
    quoted: int = 0

    @property
    def replies(self) -> int:
        return sum(self.answers.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """A simulated size of memory. found: its hit rate, as a share of the uses of passages. tokens: mean number of
    tokens per answer that were not in memory, but loaded from disk or computed. is_current: it is the configured size.
    """

    num_bytes: int
    found: float
    tokens: float
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Simulated results, smallest size first. enough: the smallest size with nearly the hit rate of the largest."""

    answers: int = 0
    budgets: Sequence[MemoryBudget] = ()
    enough: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsSample:
    """One answer computed twice. Times are milliseconds to the first token in the engine, without search and waiting.
    computed_tokens: in the first run. question_id: None if it was deleted. likeness: similarity of the two texts, 0 to
    1; None if they cannot be compared, because the answer was sampled or stopped.
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
        return self.without_reuse_ms - self.first_token_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Statistics of some samples. *_ms: means. times_sooner: median of the ratios. tokens_reused: share of all tokens.
    compared: samples with comparable texts. same: share of these with identical texts. likeness: mean similarity of the
    other texts. None: too few samples.
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
