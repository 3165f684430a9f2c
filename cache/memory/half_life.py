"""How fast uses fade, so that what is evicted is what will be missed least.

Where popularity stays as it is, a long memory of uses hits most; where it changes, a short one. Which of the two it is
shows only afterwards. So two rehearsals hold the keys that memory would hold under either half-life, and the one that
would have hit more lately decides (experts followed by their hits, as in LeCaR, Vietri et al. 2018; shadow caches as
in the adaptive W-TinyLFU, Einziger et al. 2018). A rehearsal takes modules to be of one size and one cost. A round is
as many uses as there are things in memory, and half-lives count rounds.
"""

import heapq
from collections.abc import Set
from math import log2

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
