"""Eviction order: a module's or prefix's value is its recent use times the cost to restore it.

Each use counts half as much after a half-life (LRFU, Lee et al. 2001). A long half-life gives the most hits while
popularity is stable, a short one while it changes. Two simulations hold the keys that memory would hold under each
half-life. The one with more recent hits decides (as in LeCaR, Vietri et al. 2018, and the shadow caches of adaptive
W-TinyLFU, Einziger et al. 2018). The unit of half-lives is a round: as many uses as there are entries in memory.

The value is the mark (see `Marks`) + log2(seconds), where seconds is the present cost to restore one token. Use counts
of evicted modules are remembered, so a popular module keeps its value when it returns. Pinned modules are evicted last.
Values are in a heap and mostly rise, so the lowest is recomputed when it is needed. All values are recomputed
regularly, because costs change.
"""

import heapq
from collections.abc import Callable, Set
from itertools import count
from math import log2
from typing import Generic, Protocol, TypeVar

SHORT, LONG = 5, 40  # half-lives, in rounds

Marks = tuple[float, float]
"""Recent use by SHORT and LONG: log2 of the sum of 2 ** (round / half-life) over all uses. Marks change only by use."""


class Rehearsal:
    """Simulates the keys that memory would hold under one half-life."""

    def __init__(self) -> None:
        self._marks: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # marks that may have risen, each key once

    def use(self, key: str, mark: float, room: int) -> bool:
        """Count a use. mark: the key's mark after it. room: maximum number of keys. Returns whether it was a hit."""
        hit = key in self._marks
        if not hit:
            while len(self._marks) >= max(1, room):
                self._evict()
            heapq.heappush(self._heap, (mark, key))
        self._marks[key] = mark
        return hit

    def forget(self, keys: Set[str]) -> None:
        self._marks = {key: mark for key, mark in self._marks.items() if key not in keys}
        self._heap = [entry for entry in self._heap if entry[1] in self._marks]
        heapq.heapify(self._heap)

    def _evict(self) -> None:
        while (mark := self._marks[(entry := self._heap[0])[1]]) > entry[0]:
            heapq.heapreplace(self._heap, (mark, entry[1]))
        del self._marks[heapq.heappop(self._heap)[1]]


class HalfLife:
    """Counts rounds, and chooses the half-life: SHORT or LONG."""

    def __init__(self) -> None:
        self.rounds = 0.0
        self._rehearsals = Rehearsal(), Rehearsal()
        self._lead = 0.0  # recent hits under LONG only, minus those under SHORT only

    @property
    def is_short(self) -> bool:
        return self._lead < 0

    @property
    def clock(self) -> float:
        return self.rounds / (SHORT if self.is_short else LONG)

    def mark(self, marks: Marks) -> float:
        return marks[0] if self.is_short else marks[1]

    def begin(self) -> Marks:
        return self.rounds / SHORT, self.rounds / LONG

    def use(self, marks: Marks | None, held: int) -> Marks:
        """Return the marks after one more use. held: number of entries in memory."""
        passed = 1 / max(1, held)
        self.rounds += passed
        self._lead *= 2 ** (-passed / SHORT)
        now = self.begin()
        return now if marks is None else (_sum(marks[0], now[0]), _sum(marks[1], now[1]))

    def rehearse(self, key: str, marks: Marks, room: int) -> None:
        short, long = (one.use(key, mark, room) for one, mark in zip(self._rehearsals, marks, strict=True))
        self._lead += long - short

    def forget(self, keys: Set[str]) -> None:
        for rehearsal in self._rehearsals:
            rehearsal.forget(keys)


def _sum(first: float, second: float) -> float:
    """Return log2(2**first + 2**second), also if the powers are too large to compute."""
    return max(first, second) + log2(1 + 2 ** -abs(first - second))


LEAST_REFRESHED = 64
"""Minimum evictions before all values are recomputed; more for a large heap (an eighth of its size)."""


class Victim(Protocol):
    """An object that may be evicted. marks: record of its uses; None before the first use."""

    marks: Marks | None


V = TypeVar("V", bound=Victim)


class EvictionQueue(Generic[V]):
    """Candidates for eviction, lowest value first. is_evictable: returns whether a candidate is still evictable. cost:
    seconds per token to restore it. is_kept: whether it is evicted last. half_life: of another queue, to share marks.
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
        self._queued: dict[V, None] = {}  # in order of arrival, so that the same calls evict the same candidates
        self._numbers = count()  # equal values go in order of arrival
        self._evictions = 0  # since all values were computed
        self._most = 2 * LEAST_REFRESHED
        self._is_short = False  # the half-life by which the heap is ordered

    def add(self, victim: V) -> None:
        """Add a candidate. It stays until `is_evictable` returns False. Without marks it counts as used now."""
        victim.marks = victim.marks or self.half_life.begin()
        if len(self._heap) >= self._most:  # many candidates may be gone without an eviction
            self.refresh()
        if victim not in self._queued:
            self._queued[victim] = None
            heapq.heappush(self._heap, self._ranked(victim))

    def __contains__(self, victim: V) -> bool:
        return victim in self._queued

    def count_use(self, victim: V, name: str | None = None, room: int = 0) -> None:
        """Count one more use; older uses count less. name: identifies it when it returns after an eviction; None if it
        never returns. room: number of returning entries that fit.
        """
        victim.marks = self.half_life.use(victim.marks, len(self._queued))
        if name is not None:
            self.half_life.rehearse(name, victim.marks, room)

    def value(self, victim: V) -> float:
        assert victim.marks is not None, victim
        return self.half_life.mark(victim.marks) + log2(self._cost(victim))

    def seconds(self, value: float) -> float:
        return float(2 ** (value - self.half_life.clock))

    def rank(self, victim: V) -> tuple[bool, float]:
        return self._is_kept(victim), self.value(victim)

    def lowest(self, most: int) -> list[V]:
        """Return the first candidates to be evicted, in order. They stay in the queue."""
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
        self._evictions += 1
        if self._evictions >= max(LEAST_REFRESHED, len(self._heap) // 8):
            self.refresh()

    def refresh(self) -> None:
        self._evictions, self._is_short = 0, self.half_life.is_short
        self._queued = {victim: None for victim in self._queued if self._is_evictable(victim)}
        self._heap = [self._ranked(victim) for victim in self._queued]
        heapq.heapify(self._heap)
        self._most = 2 * max(LEAST_REFRESHED, len(self._heap))

    def _ranked(self, victim: V) -> tuple[bool, float, int, V]:
        return *self.rank(victim), next(self._numbers), victim
