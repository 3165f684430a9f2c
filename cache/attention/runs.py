"""Items as flat tables of numbers, as code outside of Python wants them: runs of slots, and the rows that read them."""

from array import array
from collections.abc import Sequence

from cache.attention.items import Item


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
