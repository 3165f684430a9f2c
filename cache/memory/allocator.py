"""Which slots of the KV arena are taken: an allocator of extents, which may be freed in other pieces than they were
allocated in. Free extents (holes) are found by length and by address, without a walk through all of them. No tensors,
no policy. Not thread-safe: the engine thread owns it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

LEAST_PIECE = 16
"""Slots of a piece that is worth having: every piece is one more item for attention."""


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


def total_length(extents: Iterable[Extent]) -> int:
    """How many slots these are."""
    return sum(extent.length for extent in extents)


def part_of(extents: Iterable[Extent], first: int, last: int) -> list[Extent]:
    """Rows `first` .. `last`-1 of extents that hold rows one after another."""
    assert 0 <= first <= last, (first, last)
    parts: list[Extent] = []
    for extent in extents:
        if first < extent.length and last > 0:
            parts.append(extent.part(max(first, 0), min(last, extent.length)))
        first, last = first - extent.length, last - extent.length
    assert last <= 0, ("rows beyond the extents", last)
    return [one for one in parts if one.length]


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
    """Allocation over `capacity` slots."""

    def __init__(self, capacity: int) -> None:
        self.capacity = self.free_slots = capacity
        self._starts: list[int] = []  # of the holes, ascending
        self._length: dict[int, int] = {}  # of each hole, by its start
        self._by_length: list[tuple[int, int]] = []  # (length, start) of each hole, ascending
        if capacity:
            self._add(Extent(0, capacity))

    @property
    def holes(self) -> list[Extent]:
        """The free extents, ascending; they never touch."""
        return [Extent(start, self._length[start]) for start in self._starts]

    def allocate(self, length: int) -> Extent | None:
        """The beginning of the smallest hole that fits, or None."""
        assert length > 0, length
        at = bisect_left(self._by_length, (length, 0))
        return None if at == len(self._by_length) else self._take(self._by_length[at][1], length)

    def allocate_pieces(self, length: int, least: int = LEAST_PIECE) -> list[Extent] | None:
        """So many slots in few pieces, from the largest holes, so that they can be extended; None if there are too few.
        least: slots of a piece, except where fewer are all that is missing.
        """
        pieces: list[Extent] = []
        while length:
            most, start = self._by_length[-1] if self._by_length else (0, 0)
            if most < min(length, least):
                for piece in pieces:
                    self.free(piece)
                return None
            pieces.append(self._take(start, min(most, length)))
            length -= pieces[-1].length
        return pieces

    def extend(self, extent: Extent, length: int) -> Extent:
        """The extent with up to so many slots more, as far as those behind it are free."""
        more = min(length, self._length.get(extent.end, 0))
        return extent if not more else Extent(extent.start, extent.length + self._take(extent.end, more).length)

    def free(self, extent: Extent) -> None:
        """Return slots. Freeing a slot twice is a broken invariant."""
        if extent.length == 0:
            return
        left, right = self.hole_before(extent.start), self.hole_from(extent.start)
        start, end = extent.start, extent.end
        assert left is None or left.end <= start, ("freed twice", extent, left)
        assert right is None or right.start >= end, ("freed twice", extent, right)
        if left is not None and left.end == start:
            self._remove(left)
            start = left.start
        if right is not None and right.start == end:
            self._remove(right)
            end = right.end
        self._add(Extent(start, end - start))
        self.free_slots += extent.length

    def hole_from(self, slot: int) -> Extent | None:
        """The first hole that begins at a slot or behind it."""
        at = bisect_left(self._starts, slot)
        return None if at == len(self._starts) else Extent(self._starts[at], self._length[self._starts[at]])

    def hole_before(self, slot: int) -> Extent | None:
        """The last hole that begins before a slot."""
        at = bisect_left(self._starts, slot) - 1
        return None if at < 0 else Extent(self._starts[at], self._length[self._starts[at]])

    def check_integrity(self, used: Iterable[Extent]) -> None:
        """Assert that `used` and the holes tile the arena exactly, and that the books of the holes agree."""
        cursor = 0
        for extent in sorted((*self.holes, *(e for e in used if e.length))):
            assert extent.start == cursor, ("gap or overlap at slot", cursor, extent)
            cursor = extent.end
        assert cursor == self.capacity, ("slots lost", cursor, self.capacity)
        assert self.free_slots == total_length(self.holes)
        assert self._by_length == sorted((length, start) for start, length in self._length.items())
        assert self._starts == sorted(self._length)

    def _take(self, start: int, length: int) -> Extent:
        """The first slots of the hole that begins there."""
        hole = Extent(start, self._length[start])
        self._remove(hole)
        if hole.length > length:
            self._add(hole.part(length, hole.length))
        self.free_slots -= length
        return hole.part(0, length)

    def _add(self, hole: Extent) -> None:
        self._length[hole.start] = hole.length
        insort(self._starts, hole.start)
        insort(self._by_length, (hole.length, hole.start))

    def _remove(self, hole: Extent) -> None:
        del self._length[hole.start]
        del self._starts[bisect_left(self._starts, hole.start)]
        del self._by_length[bisect_left(self._by_length, (hole.length, hole.start))]
