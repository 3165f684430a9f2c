"""Reports of several engines, combined into one."""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from cache.memory.store import PrefixUse, TierContents
from cache.serving.messages import State

SHARED_TIER = "disk"
"""The tier that all engines share."""


def combine_contents(parts: Sequence[TierContents]) -> TierContents:
    """Add up device and host memory, and count the shared tier once. A module in several memories is listed for
    each.
    """
    return TierContents(
        modules=tuple(
            held for number, part in enumerate(parts) for held in part.modules if number == 0 or held[0] != SHARED_TIER
        ),
        num_bytes=_sum(part.num_bytes for part in parts),
        capacity=_sum(part.capacity for part in parts),
        evictions=_sum(part.evictions for part in parts),
        space=next((part.space for part in parts if part.space is not None), None),
        failed_writes=sum(part.failed_writes for part in parts),
        skipped_writes=sum(part.skipped_writes for part in parts),
    )


def combine_uses(parts: Iterable[Sequence[PrefixUse]], limit: int) -> list[PrefixUse]:
    return heapq.nlargest(limit, (use for part in parts for use in part), key=lambda use: use.saved)


def combine_states(states: Sequence[State]) -> State:
    """Combine states: running if one engine is, idle if all are, with the mean cost of a token."""
    return State(
        number=0,
        is_running=any(state.is_running for state in states),
        hangs=bool(states) and all(state.hangs for state in states),
        is_idle=bool(states) and all(state.is_idle for state in states),
        num_restarts=sum(state.num_restarts for state in states),
        num_shortages=sum(state.num_shortages for state in states),
        seconds_per_token=sum(state.seconds_per_token for state in states) / max(1, len(states)),
        running=sum(state.running for state in states),
        waiting=sum(state.waiting for state in states),
    )


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up by tier. The shared tier is that of the first engine."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update({tier: value for tier, value in part.items() if tier != SHARED_TIER or tier not in total})
    return dict(total)
