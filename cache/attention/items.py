"""Work items of a forward pass: an extent (a slot range) of the pool, the query rows that attend to it, and their
rotation. Also data for scores of keys. Nothing is computed here.

Each extent that a chunk of new rows sees becomes an item. An extent that several sequences see is one item, so that
shared keys are read once per batch. A row's partial results are merged by log-sum-exp, which is exact. For code outside
Python, items also become flat tables: runs of slots, and the rows that read them.

The score of a key is computed from its attention weights: the mean over heads, then the norm over rows, then the mean
over some layers (InfoFlow KV, ICML 2026). Rows may be split over several passes; each adds its squares.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from cache.memory.arena import Extent, part_of


@dataclass(frozen=True, slots=True)
class VisibleRange:
    """Slots `first` .. `last`-1 of an extent, seen by rows from `seen_from` on."""

    first: int
    last: int
    seen_from: int


@dataclass(frozen=True, slots=True)
class KVView:
    """An extent that a sequence reads but does not write. offset: by how many position ids this sequence places it
    later than it was encoded. first_row: the first of the sequence's own rows that sees it. visible_ranges: the visible
    parts, counted from the extent's start. Each is visible from an own row on; empty: all is visible.
    """

    extent: Extent
    offset: int = 0
    first_row: int = 0
    visible_ranges: tuple[VisibleRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `first` .. `last`-1 of a sequence: `tokens` at position ids `positions`. own: all slots of the sequence."""

    tokens: Sequence[int]
    positions: Sequence[int]
    first: int
    own: Sequence[Extent]
    views: Sequence[KVView]

    @property
    def last(self) -> int:
        return self.first + len(self.tokens)

    def last_rows(self, rows: int) -> "Chunk":
        behind = len(self.tokens) - rows
        return replace(self, tokens=self.tokens[behind:], positions=self.positions[behind:], first=self.first + behind)

    @property
    def slots(self) -> list[int]:
        parts = part_of(self.own, self.first, self.last)
        return [slot for extent in parts for slot in range(extent.start, extent.end)]


@dataclass(frozen=True, slots=True)
class RowRange:
    """Packed query rows `first` .. `last`-1 of the pass, whose queries are rotated back by `offset` positions.
    visible_ranges: as in `KVView`, but in packed rows.
    """

    first: int
    last: int
    offset: int
    visible_ranges: tuple[VisibleRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """Query rows that attend to one extent. causal: row i of the (single) range sees only keys 0 .. i."""

    extent: Extent
    ranges: tuple[RowRange, ...]
    causal: bool = False

    @property
    def num_rows(self) -> int:
        return sum(r.last - r.first for r in self.ranges)


def plan_items(chunks: Sequence[Chunk]) -> list[Item]:
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


def plan_arrays(
    items: Sequence[Item],
    turns: dict[int, int],
    first_row: int = 0,
    hidden: dict[int, list[int]] | None = None,
) -> "tuple[array[int], array[int]]":
    """Convert items to flat tables: (start, length, first reader, number of readers) of each run, and (row, length,
    turn) of each reader. A reader sees the first `length` keys; its query is rotated back by turn number `turn` (-1:
    not rotated). The readers of a run are ordered by row. If an extent is read at two places, each is a run. turns:
    turn numbers by distance in position ids; new ones are added. first_row: the row of the pass that is row 0 of the
    items. hidden: filled with each run's keys that no reader sees; None: each visible range is a run.
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
            if hidden is not None and (ranges := rows.visible_ranges):
                found: list[int] = []
                for visible, next_from in zip(ranges, [*(r.seen_from for r in ranges[1:]), rows.last], strict=True):
                    for row in range(max(rows.first, visible.seen_from), min(rows.last, next_from)):
                        found += (first_row + row, visible.last, turn)
                if found:
                    before = [0, *(r.last for r in ranges)]
                    gaps = (range(last, r.first) for last, r in zip(before, ranges, strict=False))
                    hidden[len(runs) // 4] = [key for gap in gaps for key in gap]
                    add(extent.start, ranges[-1].last, found)
                continue
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


Placed = tuple[Extent, int]  # an extent and its offset in a chunk: it may be read at several places


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """A chunk of a pass whose last `rows` rows score the keys that they see. index: of the chunk. squares: one sum per
    key, by extent and place, float32 `[scored layers, L]`. The pass adds the squared attention weights.
    """

    index: int
    rows: int
    squares: Mapping[Placed, Tensor]

    def packed_rows(self, chunks: Sequence[Chunk]) -> range:
        end = sum(len(chunk.tokens) for chunk in chunks[: self.index + 1])
        return range(end - self.rows, end)


def only_scores(scored: Sequence[ScoredChunk], chunks: Sequence[Chunk]) -> bool:
    return len(scored) == len(chunks)
