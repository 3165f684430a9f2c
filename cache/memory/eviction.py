"""What is evicted first, by GDSF (greedy dual size frequency, Cherkasova 1998).

The value of what may be evicted is `age + (1 + hits) * seconds`. age: the clock when it was last used; seconds: what it
costs now to get one of its tokens back. (GDSF divides by the size; here every token has the same size.) The clock is
the value of the last victim, so that what was used long ago falls behind. Hits are requests that began with it; that it
was encoded is none. What is to be kept goes last.

Values stand in a heap and mostly rise; so the lowest is looked at again when it is wanted, and put back if it has
risen. All are looked at again from time to time, since what things cost changes slowly. Not covered: who owns which
slots.
"""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Generic, Protocol, TypeVar

LEAST_REFRESHED = 64
"""Evictions after which all values are computed again, at the least; else an eighth of what is in the heap."""


class Victim(Protocol):
    """What may be evicted. age: see `EvictionQueue.clock`."""

    hits: int
    age: float


V = TypeVar("V", bound=Victim)


class EvictionQueue(Generic[V]):
    """What may be evicted, lowest value first. is_evictable: whether it still may. cost: seconds per token to get it
    back. is_kept: whether it goes last. clock: the value of the last victim.
    """

    def __init__(
        self, is_evictable: Callable[[V], bool], cost: Callable[[V], float], is_kept: Callable[[V], bool]
    ) -> None:
        self.clock = 0.0
        self._is_evictable, self._cost, self._is_kept = is_evictable, cost, is_kept
        self._heap: list[tuple[bool, float, int, V]] = []
        self._queued: set[V] = set()
        self._numbers = count()  # what has equal values goes in the order it came
        self._evictions = 0  # since all values were computed
        self._most = 2 * LEAST_REFRESHED

    def add(self, victim: V) -> None:
        """It may be evicted from now on, until `is_evictable` says otherwise."""
        if len(self._heap) >= self._most:  # much of it may be gone by other ways than eviction
            self.refresh()
        if victim not in self._queued:
            self._queued.add(victim)
            heapq.heappush(self._heap, self._ranked(victim))

    def value(self, victim: V) -> float:
        """What it is worth now."""
        return victim.age + (1 + victim.hits) * self._cost(victim)

    def rank(self, victim: V) -> tuple[bool, float]:
        """What is evicted sooner ranks lower."""
        return self._is_kept(victim), self.value(victim)

    def lowest(self, most: int) -> list[V]:
        """The first that would be evicted, in this order; they stay in the queue."""
        found: list[tuple[bool, float, int, V]] = []
        while self._heap and len(found) < most:
            kept, value, _, victim = entry = heapq.heappop(self._heap)
            if not self._is_evictable(victim):
                self._queued.discard(victim)
            elif (kept, value) < self.rank(victim):
                heapq.heappush(self._heap, self._ranked(victim))
            else:
                found.append(entry)
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [victim for *_, victim in found]

    def evicted(self, victim: V) -> None:
        """Let the clock go on; called before the victim is gone."""
        self.clock = max(self.clock, self.value(victim))
        self._evictions += 1
        if self._evictions >= max(LEAST_REFRESHED, len(self._heap) // 8):
            self.refresh()

    def refresh(self) -> None:
        """Compute all values again."""
        self._evictions = 0
        self._queued = {victim for victim in self._queued if self._is_evictable(victim)}
        self._heap = [self._ranked(victim) for victim in self._queued]
        heapq.heapify(self._heap)
        self._most = 2 * max(LEAST_REFRESHED, len(self._heap))

    def _ranked(self, victim: V) -> tuple[bool, float, int, V]:
        return *self.rank(victim), next(self._numbers), victim
