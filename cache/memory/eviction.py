"""What is evicted first: what saves least, by how often it was used lately and what it costs to get back.

Each use counts half as much after a half-life (LRFU, Lee et al. 2001), a short or a long one, whichever would have hit
more (`cache.memory.half_life`). What was evicted is remembered with its uses, so that something popular that had to go
is not a stranger when it comes back. The value of what may be evicted is the mark that its uses left + log2(seconds).
seconds: what it costs now to get one of its tokens back (every token has the same size). As all uses fade alike, values
only change by use, by cost, and with the half-life. What is to be kept goes last.

Values stand in a heap and mostly rise; so the lowest is looked at again when it is wanted, and put back if it has
risen. All are looked at again from time to time, since what things cost changes slowly. Not covered: who owns which
slots.
"""

import heapq
from collections.abc import Callable
from itertools import count
from math import log2
from typing import Generic, Protocol, TypeVar

from cache.memory.half_life import HalfLife, Marks

LEAST_REFRESHED = 64
"""Evictions after which all values are computed again, at the least; else an eighth of what is in the heap."""


class Victim(Protocol):
    """What may be evicted. marks: of its uses, None before the first."""

    marks: Marks | None


V = TypeVar("V", bound=Victim)


class EvictionQueue(Generic[V]):
    """What may be evicted, lowest value first. is_evictable: whether it still may. cost: seconds per token to get it
    back. is_kept: whether it goes last. half_life: of a queue whose marks count in this one, too.
    """

    def __init__(
        self,
        is_evictable: Callable[[V], bool],
        cost: Callable[[V], float],
        is_kept: Callable[[V], bool],
        half_life: HalfLife | None = None,
    ) -> None:
        self.half_life = half_life or HalfLife()
        self._is_evictable, self._cost, self._is_kept = is_evictable, cost, is_kept
        self._heap: list[tuple[bool, float, int, V]] = []
        self._queued: dict[V, None] = {}  # in the order they came, so that the same calls evict the same
        self._numbers = count()  # what has equal values goes in the order it came
        self._evictions = 0  # since all values were computed
        self._most = 2 * LEAST_REFRESHED
        self._is_short = False  # the half-life by which the heap is ordered

    def add(self, victim: V) -> None:
        """It may be evicted from now on, until `is_evictable` says otherwise. What has no marks was used now."""
        victim.marks = victim.marks or self.half_life.begin()
        if len(self._heap) >= self._most:  # much of it may be gone by other ways than eviction
            self.refresh()
        if victim not in self._queued:
            self._queued[victim] = None
            heapq.heappush(self._heap, self._ranked(victim))

    def __contains__(self, victim: V) -> bool:
        return victim in self._queued

    def count_use(self, victim: V, name: str | None = None, room: int = 0) -> None:
        """Count one more use, and let the others fade. name: what it is known by when it comes back after an eviction,
        None if it never does. room: for how many that come back there is room.
        """
        victim.marks = self.half_life.use(victim.marks, len(self._queued))
        if name is not None:
            self.half_life.rehearse(name, victim.marks, room)

    def value(self, victim: V) -> float:
        """What ranks it: see above."""
        assert victim.marks is not None, victim
        return self.half_life.mark(victim.marks) + log2(self._cost(victim))

    def seconds(self, value: float) -> float:
        """What a token of something of that value is worth: what it costs, for each of its uses as they count now."""
        return float(2 ** (value - self.half_life.clock))

    def rank(self, victim: V) -> tuple[bool, float]:
        """What is evicted sooner ranks lower."""
        return self._is_kept(victim), self.value(victim)

    def lowest(self, most: int) -> list[V]:
        """The first that would be evicted, in this order; they stay in the queue."""
        if self._is_short != self.half_life.is_short:
            self.refresh()
        found: list[tuple[bool, float, int, V]] = []
        while self._heap and len(found) < most:
            kept, value, _, victim = entry = heapq.heappop(self._heap)
            if not self._is_evictable(victim):
                del self._queued[victim]
            elif (kept, value) < self.rank(victim):
                heapq.heappush(self._heap, self._ranked(victim))
            else:
                found.append(entry)
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [victim for *_, victim in found]

    def evicted(self) -> None:
        """Something was evicted."""
        self._evictions += 1
        if self._evictions >= max(LEAST_REFRESHED, len(self._heap) // 8):
            self.refresh()

    def refresh(self) -> None:
        """Compute all values again."""
        self._evictions, self._is_short = 0, self.half_life.is_short
        self._queued = {victim: None for victim in self._queued if self._is_evictable(victim)}
        self._heap = [self._ranked(victim) for victim in self._queued]
        heapq.heapify(self._heap)
        self._most = 2 * max(LEAST_REFRESHED, len(self._heap))

    def _ranked(self, victim: V) -> tuple[bool, float, int, V]:
        return *self.rank(victim), next(self._numbers), victim
