"""What other sizes of memory would do for the questions that were asked lately."""

from collections.abc import Sequence
from dataclasses import dataclass


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
