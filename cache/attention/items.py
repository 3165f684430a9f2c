"""The work items of one forward pass: which query rows attend to which extent of the arena, and how far rotated.

No tensors. Every sequence contributes a chunk of new rows; each extent it sees becomes an item, and extents that
several sequences see become one item, so that shared keys are read once for the whole batch. Partial results of a
row over its items are merged by log-sum-exp, which is exact.

Items as flat tables of numbers, as code outside of Python wants them: runs of slots, and the rows that read them.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cache.memory.arena import Extent, part_of


@dataclass(frozen=True, slots=True)
class VisibleRange:
    """Slots `first` .. `last`-1 of an extent, seen by rows from `seen_from` on."""

    first: int
    last: int
    seen_from: int


@dataclass(frozen=True, slots=True)
class KVView:
    """An extent a sequence reads but does not write. offset: position ids between where the extent was encoded and
    where this sequence places it. first_row: the first of the sequence's own rows that sees it. visible_ranges: the
    parts that are seen, counted from the extent's start, each from some own row on; empty if all of it is seen.
    """

    extent: Extent
    offset: int = 0
    first_row: int = 0
    visible_ranges: tuple[VisibleRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `first` .. `last`-1 of a sequence: `tokens` at ids `positions`. own: the slots of all its rows, in order."""

    tokens: Sequence[int]
    positions: Sequence[int]
    first: int
    own: Sequence[Extent]
    views: Sequence[KVView]

    @property
    def last(self) -> int:
        """The row behind the last one."""
        return self.first + len(self.tokens)

    def last_rows(self, rows: int) -> "Chunk":
        """Its last `rows` rows alone."""
        behind = len(self.tokens) - rows
        return replace(self, tokens=self.tokens[behind:], positions=self.positions[behind:], first=self.first + behind)

    @property
    def slots(self) -> list[int]:
        """Where its rows are kept."""
        parts = part_of(self.own, self.first, self.last)
        return [slot for extent in parts for slot in range(extent.start, extent.end)]


@dataclass(frozen=True, slots=True)
class RowRange:
    """Packed query rows `first` .. `last`-1 of the pass, whose queries are rotated back by `offset` positions.
    visible_ranges: as of a `KVView`, in packed rows.
    """

    first: int
    last: int
    offset: int
    visible_ranges: tuple[VisibleRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """Query rows that attend to one extent. causal: row i of the (single) range sees only keys 0 .. i of it."""

    extent: Extent
    ranges: tuple[RowRange, ...]
    causal: bool = False

    @property
    def num_rows(self) -> int:
        """Query rows of the item."""
        return sum(r.last - r.first for r in self.ranges)


def plan_items(chunks: Sequence[Chunk]) -> list[Item]:
    """Items of a packed pass, in which the chunks' rows stand one after another."""
    shared: dict[Extent, list[RowRange]] = {}
    causal: list[Item] = []
    base = 0
    for chunk in chunks:
        end = base + chunk.last - chunk.first
        for view in chunk.views:
            first = base + max(view.first_row - chunk.first, 0)
            if first < end and view.extent.length:
                moved = tuple(replace(r, seen_from=base + r.seen_from - chunk.first) for r in view.visible_ranges)
                shared.setdefault(view.extent, []).append(RowRange(first, end, view.offset, moved))
        alone = chunk.last - chunk.first == 1  # a single row sees itself without a causal mask
        for past in part_of(chunk.own, 0, chunk.last if alone else chunk.first):
            shared.setdefault(past, []).append(RowRange(base, end, 0))
        for new in [] if alone else part_of(chunk.own, chunk.first, chunk.last):
            behind = base + new.length
            causal.append(Item(new, (RowRange(base, behind, 0),), causal=True))
            if behind < end:
                shared.setdefault(new, []).append(RowRange(behind, end, 0))
            base = behind
        base = end
    return [Item(extent, tuple(ranges)) for extent, ranges in shared.items()] + causal


def plan_arrays(items: Sequence[Item], turns: dict[int, int], first_row: int = 0) -> "tuple[array[int], array[int]]":
    """(start, length, first reader, readers) of each run, and (row, length, turn) of each reader: it sees so many of
    the first keys, and is rotated back by the turn of that number (-1: by none). The readers of a run stand in the
    order of their rows: what rows read at a second place is another run. turns: numbers of the turns by how many ids
    they rotate back; new ones are added. first_row: of the pass, that the items count as 0.
    """
    runs, readers = array("i"), array("i")

    def add(start: int, length: int, found: list[int]) -> None:
        runs.extend((start, length, len(readers) // 3, len(found) // 3))
        readers.extend(found)

    for item in items:
        extent = item.extent
        whole: list[int] = []
        for rows in item.ranges:
            turn = turns.setdefault(rows.offset, len(turns)) if rows.offset else -1
            for visible in rows.visible_ranges:
                seeing = range(max(rows.first, visible.seen_from), rows.last)
                length = visible.last - visible.first
                if seeing:
                    add(
                        extent.start + visible.first, length, [n for r in seeing for n in (first_row + r, length, turn)]
                    )
            if not rows.visible_ranges:
                if whole and first_row + rows.first < whole[-3]:
                    add(extent.start, extent.length, whole)
                    whole = []
                for row in range(rows.first, rows.last):
                    whole += (first_row + row, row - rows.first + 1 if item.causal else extent.length, turn)
        if whole:
            add(extent.start, extent.length, whole)
    return runs, readers
