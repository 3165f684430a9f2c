"""What measured samples say together: means and shares with their 95 % intervals.

Intervals: Student's t for the mean, the order statistics for the median, Wilson's for shares (all of SciPy, which is
imported where it is needed: it takes a second, and most commands show no savings).
"""

from collections.abc import Sequence
from statistics import fmean, median

from app.domain.savings import Interval, Savings, SavingsSample

ENOUGH = 8
"""Samples from which on a mean and a median get an interval; below that it would be wider than anything it says."""


def summarise_savings(samples: Sequence[SavingsSample]) -> Savings:
    """All numbers of the samples."""
    if not samples:
        return Savings()
    prompt = sum(one.prompt_tokens for one in samples)
    likeness = [one.likeness for one in samples if one.likeness is not None]
    others = [value for value in likeness if value < 1]
    return Savings(
        samples=len(samples),
        first_token_ms=fmean(one.first_token_ms for one in samples),
        without_reuse_ms=fmean(one.without_reuse_ms for one in samples),
        saved_ms=_mean([one.saved_ms for one in samples]),
        times_sooner=_median([one.without_reuse_ms / max(one.first_token_ms, 0.01) for one in samples]),
        tokens_reused=1 - sum(one.computed_tokens for one in samples) / prompt if prompt else 0.0,
        compared=len(likeness),
        same=_share(len(likeness) - len(others), len(likeness)),
        likeness=fmean(others) if others else None,
    )


def _mean(values: Sequence[float]) -> Interval | None:
    if len(values) < ENOUGH:
        return None
    from scipy import stats

    spread = stats.sem(values) or 1e-9  # of equal values it is 0, which is no scale
    low, high = stats.t.interval(0.95, len(values) - 1, loc=fmean(values), scale=spread)
    return Interval(value=fmean(values), low=float(low), high=float(high))


def _median(values: Sequence[float]) -> Interval | None:
    if len(values) < ENOUGH:
        return None
    middle = median(values)
    from scipy import stats

    bounds = stats.quantile_test(values, q=middle, p=0.5).confidence_interval(0.95)
    return Interval(value=middle, low=float(bounds.low), high=float(bounds.high))


def _share(number: int, of: int) -> Interval | None:
    if not of:
        return None
    from scipy import stats

    bounds = stats.binomtest(number, of).proportion_ci(0.95, method="wilson")
    return Interval(value=number / of, low=float(bounds.low), high=float(bounds.high))
