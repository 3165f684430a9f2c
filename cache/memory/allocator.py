"""Which slots of the KV arena are taken: an allocator of contiguous extents, which may be freed in other pieces than
they were allocated in. No tensors, no policy. Not thread-safe: the engine thread owns it.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """Slots `start` .. `start + length - 1` of the arena."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """First slot behind the extent."""
        return self.start + self.length

    def part(self, first: int, last: int) -> "Extent":
        """Rows `first` .. `last`-1 of this extent."""
        assert 0 <= first <= last <= self.length, (self, first, last)
        return Extent(self.start + first, last - first)


NO_ROWS = Extent(0, 0)


def join_extents(extents: Iterable[Extent]) -> list[Extent]:
    """Each extent joined with the one before it where they touch; empty ones are left out."""
    joined: list[Extent] = []
    for extent in extents:
        if joined and joined[-1].end == extent.start:
            joined[-1] = Extent(joined[-1].start, joined[-1].length + extent.length)
        elif extent.length:
            joined.append(extent)
    return joined


class ExtentAllocator:
    """Best-fit allocation over `capacity` slots. holes: the free extents, ascending, never touching."""

    def __init__(self, capacity: int) -> None:
        self.capacity = self.free_slots = capacity
        self.holes = join_extents([Extent(0, capacity)])

    def allocate(self, length: int) -> Extent | None:
        """The smallest free hole that fits, or None. Evicts nothing."""
        assert length > 0, length
        fitting = [i for i, hole in enumerate(self.holes) if hole.length >= length]
        if not fitting:
            return None
        best = min(fitting, key=lambda i: self.holes[i].length)
        hole = self.holes[best]
        self.holes[best : best + 1] = [hole.part(length, hole.length)] if hole.length > length else []
        self.free_slots -= length
        return hole.part(0, length)

    def free(self, extent: Extent) -> None:
        """Return slots. Freeing a slot twice is a broken invariant."""
        if extent.length == 0:
            return
        i = bisect_left(self.holes, extent)
        first, last, start, end = i, i, extent.start, extent.end
        if i > 0 and (left := self.holes[i - 1]).end >= start:
            assert left.end == start, ("freed twice", extent, left)
            first, start = i - 1, left.start
        if i < len(self.holes) and (right := self.holes[i]).start <= end:
            assert right.start == end, ("freed twice", extent, right)
            last, end = i + 1, right.end
        self.holes[first:last] = [Extent(start, end - start)]
        self.free_slots += extent.length

    def check_integrity(self, used: Iterable[Extent]) -> None:
        """Assert that `used` and the free holes tile the arena exactly."""
        cursor = 0
        for extent in sorted((*self.holes, *(e for e in used if e.length))):
            assert extent.start == cursor, ("gap or overlap at slot", cursor, extent)
            cursor = extent.end
        assert cursor == self.capacity, ("slots lost", cursor, self.capacity)
        assert self.free_slots == sum(hole.length for hole in self.holes)
