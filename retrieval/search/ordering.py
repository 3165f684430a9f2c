"""Cache-aware choice: among passages that rank nearly the same, those that cost least come first.

A passage is given up only for one whose score is at most `margin` lower, and the order of what is chosen stays that of
the scores. Knows nothing of caches: the caller says what a passage costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retrieval.search.retriever import Found


def prefer_cheap(ranked: Sequence[Found], count: int, margin: float, cost: Callable[[Found], int]) -> list[Found]:
    """`count` of the passages, best first. ranked: more than that, best first. margin: 0 takes the first ones."""
    if margin <= 0 or len(ranked) <= count:
        return list(ranked[:count])
    last = ranked[count - 1].score
    close = [found for found in ranked if abs(found.score - last) <= margin / 2]
    safe = [found for found in ranked if found.score > last and found not in close]
    cheapest = sorted(close, key=lambda found: (cost(found), -found.score, found.id))[: count - len(safe)]
    return sorted([*safe, *cheapest], key=lambda found: (-found.score, found.id))
