"""The order in which many requests reuse most: those that share modules, and then a prefix, one after another.

Requests of a group use the same modules while these are in the arena, and in the same forward passes. `dry_run` counts
what that saves.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from cache.prompt.plan import Plan

Signature = tuple[tuple[int, ...], tuple[int, ...]]


def group(plans: Sequence[Plan]) -> list[list[int]]:
    """Indices of the plans, in groups. The plans of a group share their most popular module, apart from modules that
    all plans share. Plans without other modules are one group, ordered by their tokens.
    """
    popularity = Counter(segment for plan in plans for segment in plan.segments())
    ranked = sorted(popularity, key=lambda segment: (-popularity[segment], segment.name, segment.tokens))
    rank = {segment: number for number, segment in enumerate(ranked)}
    everywhere = {segment for segment, number in popularity.items() if number == len(plans)}

    def signature(index: int) -> Signature:
        plan = plans[index]
        ranks = sorted(rank[segment] for segment in plan.segments() if segment not in everywhere)
        return tuple(ranks), tuple(token for span in plan.spans for token in span.tokens)

    ordered = sorted(range(len(plans)), key=signature)
    return [list(members) for _, members in groupby(ordered, key=lambda index: signature(index)[0][:1])]
