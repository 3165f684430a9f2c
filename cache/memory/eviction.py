"""How fast uses fade, so that what is evicted is what will be missed least.

Where popularity stays as it is, a long memory of uses hits most; where it changes, a short one. Which of the two it is
shows only afterwards. So two rehearsals hold the keys that memory would hold under either half-life, and the one that
would have hit more lately decides (experts followed by their hits, as in LeCaR, Vietri et al. 2018; shadow caches as
in the adaptive W-TinyLFU, Einziger et al. 2018). A rehearsal takes modules to be of one size and one cost. A round is
as many uses as there are things in memory, and half-lives count rounds.

What is evicted first: what saves least, by how often it was used lately and what it costs to get back.

Each use counts half as much after a half-life (LRFU, Lee et al. 2001), a short or a long one, whichever would have hit
more (`cache.memory.eviction`). What was evicted is remembered with its uses, so that something popular that had to go
is not a stranger when it comes back. The value of what may be evicted is the mark that its uses left + log2(seconds).
seconds: what it costs now to get one of its tokens back (every token has the same size). As all uses fade alike, values
only change by use, by cost, and with the half-life. What is to be kept goes last.

Values stand in a heap and mostly rise; so the lowest is looked at again when it is wanted, and put back if it has
risen. All are looked at again from time to time, since what things cost changes slowly. Not covered: who owns which
slots.
"""

import heapq
from collections.abc import Callable, Set
from itertools import count
from math import log2
from typing import Generic, Protocol, TypeVar

SHORT, LONG = 5, 40
"""Half-lives, in rounds."""

Marks = tuple[float, float]
"""How much something was used under SHORT and LONG: log2 of the sum of 2 ** (round / half-life) over its uses. As all
uses fade alike, marks only change by use.
"""


class Rehearsal:
    """The keys that memory would hold under one half-life."""

    def __init__(self) -> None:
        self._marks: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # marks that may have risen, each key once

    def use(self, key: str, mark: float, room: int) -> bool:
        """Count a use, which leaves `mark`, with room for so many keys. Gives whether the key was there."""
        hit = key in self._marks
        if not hit:
            while len(self._marks) >= max(1, room):
                self._evict()
            heapq.heappush(self._heap, (mark, key))
        self._marks[key] = mark
        return hit

    def forget(self, keys: Set[str]) -> None:
        """Take out keys that are there."""
        self._marks = {key: mark for key, mark in self._marks.items() if key not in keys}
        self._heap = [entry for entry in self._heap if entry[1] in self._marks]
        heapq.heapify(self._heap)

    def _evict(self) -> None:
        while (mark := self._marks[(entry := self._heap[0])[1]]) > entry[0]:
            heapq.heapreplace(self._heap, (mark, entry[1]))
        del self._marks[heapq.heappop(self._heap)[1]]


class HalfLife:
    """Rounds so far, and the half-life that decides now. is_short: which it is."""

    def __init__(self) -> None:
        self.rounds = 0.0
        self._rehearsals = Rehearsal(), Rehearsal()
        self._lead = 0.0  # uses lately that were hits under LONG only, less those that were under SHORT only

    @property
    def is_short(self) -> bool:
        """Whether uses fade by SHORT now."""
        return self._lead < 0

    @property
    def clock(self) -> float:
        """Half-lives so far: what one use now would be marked by."""
        return self.rounds / (SHORT if self.is_short else LONG)

    def mark(self, marks: Marks) -> float:
        """The one that counts now."""
        return marks[0] if self.is_short else marks[1]

    def begin(self) -> Marks:
        """Marks of one use now."""
        return self.rounds / SHORT, self.rounds / LONG

    def use(self, marks: Marks | None, held: int) -> Marks:
        """Marks after one more use, a moment later. held: how many things are in memory."""
        passed = 1 / max(1, held)
        self.rounds += passed
        self._lead *= 2 ** (-passed / SHORT)
        now = self.begin()
        return now if marks is None else (_sum(marks[0], now[0]), _sum(marks[1], now[1]))

    def rehearse(self, key: str, marks: Marks, room: int) -> None:
        """Count a use of a module in both rehearsals, with room for so many modules. marks: after the use."""
        short, long = (one.use(key, mark, room) for one, mark in zip(self._rehearsals, marks, strict=True))
        self._lead += long - short

    def forget(self, keys: Set[str]) -> None:
        """Take modules out of the rehearsals."""
        for rehearsal in self._rehearsals:
            rehearsal.forget(keys)


def _sum(first: float, second: float) -> float:
    """log2(2**first + 2**second), where neither power need be representable."""
    return max(first, second) + log2(1 + 2 ** -abs(first - second))


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
