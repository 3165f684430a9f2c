"""Which slots of the KV arena are taken: an allocator of contiguous extents. No tensors, no policy.

Extents may be freed in other pieces than they were allocated in (an extent can be split); freed neighbours
coalesce. Not thread-safe: the engine thread owns it.
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


class ExtentAllocator:
    """Best-fit allocation over `capacity` slots."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free_slots = capacity
        self._free: list[Extent] = [Extent(0, capacity)] if capacity else []  # ascending, never touching

    def allocate(self, length: int) -> Extent | None:
        """The smallest free hole that fits, or None. Evicts nothing."""
        assert length > 0, length
        fitting = [i for i, hole in enumerate(self._free) if hole.length >= length]
        if not fitting:
            return None
        best = min(fitting, key=lambda i: self._free[i].length)
        hole = self._free[best]
        self._free[best : best + 1] = [hole.part(length, hole.length)] if hole.length > length else []
        self.free_slots -= length
        return hole.part(0, length)

    def free(self, extent: Extent) -> None:
        """Return slots. Freeing a slot twice is a broken invariant."""
        if extent.length == 0:
            return
        i = bisect_left(self._free, extent)
        left = self._free[i - 1] if i > 0 else None
        right = self._free[i] if i < len(self._free) else None
        assert left is None or left.end <= extent.start, ("freed twice", extent, left)
        assert right is None or extent.end <= right.start, ("freed twice", extent, right)
        first, last, start, end = i, i, extent.start, extent.end
        if left is not None and left.end == extent.start:
            first, start = i - 1, left.start
        if right is not None and right.start == extent.end:
            last, end = i + 1, right.end
        self._free[first:last] = [Extent(start, end - start)]
        self.free_slots += extent.length

    @property
    def holes(self) -> tuple[Extent, ...]:
        """The free extents, ascending."""
        return tuple(self._free)

    def check_integrity(self, used: Iterable[Extent]) -> None:
        """Assert that `used` and the free holes tile the arena exactly."""
        cursor = 0
        for extent in sorted((*self._free, *(e for e in used if e.length))):
            assert extent.start == cursor, ("gap or overlap at slot", cursor, extent)
            cursor = extent.end
        assert cursor == self.capacity, ("slots lost", cursor, self.capacity)
        assert self.free_slots == sum(hole.length for hole in self._free)
