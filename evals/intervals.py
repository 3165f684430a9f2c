"""A figure with its 95 % interval: how far it may be off because only so many questions were asked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

Z = 1.959964
"""Standard deviations that 95 % of a normal distribution lie within."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """value: a share (0 to 1) or a median, None if there was nothing to count. low, high: its 95 % interval. n: how
    many were counted.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int


def share(flags: Sequence[bool]) -> Figure:
    """The part that is true, with Wilson's interval (1927): it stays within 0 and 1 and is right for few cases, too."""
    n = len(flags)
    if not n:
        return Figure(value=None, low=None, high=None, n=0)
    part = sum(flags) / n
    middle = (part + Z * Z / (2 * n)) / (1 + Z * Z / n)
    reach = Z * math.sqrt(part * (1 - part) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return Figure(
        value=round(part, 4), low=round(max(0, middle - reach), 4), high=round(min(1, middle + reach), 4), n=n
    )


def middle_of(values: Sequence[float]) -> Figure:
    """The median, with the interval between the two order statistics that hold it with at least 95 % (binomial)."""
    ordered, n = sorted(values), len(values)
    if not n:
        return Figure(value=None, low=None, high=None, n=0)
    below, rank = 0.0, 0
    while rank < n // 2 and (below := below + math.comb(n, rank) / 2**n) <= 0.025:
        rank += 1
    first = max(0, rank - 1)
    return Figure(
        value=round(median(ordered), 1), low=round(ordered[first], 1), high=round(ordered[n - 1 - first], 1), n=n
    )
