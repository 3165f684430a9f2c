"""What reuse saved, measured: some answers computed a second time without any reuse, and both compared."""

from dataclasses import dataclass
from datetime import datetime


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
