"""Percentiles of times without the times: how many fell into each of a row of bins.

A bin reaches 10 % further than the one before it, and a percentile is given as the middle of its bin (the geometric
mean of its ends). It is therefore off by 5 % at most, and histograms of several spans can be added.
"""

from collections.abc import Mapping
from itertools import accumulate
from math import ceil, floor, log

GROWTH = 1.1
SHORTEST_MS = 0.01


def bin_of(milliseconds: float) -> int:
    """The bin of a time; what is shorter than `SHORTEST_MS` counts as that."""
    return floor(log(max(milliseconds, SHORTEST_MS)) / log(GROWTH))


def percentile(bins: Mapping[int, int], share: float) -> float:
    """The time in milliseconds that this share of the times do not exceed. bins: how many times are in each, one at
    least.
    """
    wanted = ceil(share * sum(bins.values()))
    ordered = sorted(bins)
    up_to = zip(ordered, accumulate(bins[number] for number in ordered), strict=True)
    return float(GROWTH ** (next(number for number, times in up_to if times >= wanted) + 0.5))
