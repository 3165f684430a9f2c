"""Tables for the GPU kernels: the items of a pass, cut into tiles.

A tile is some readers of a run and a range of its keys, computed together. Each reader gets a partial result per tile;
a row's partial results are merged. Tables are made in host memory and copied to the device at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cache.attention.items import Chunk, plan_arrays, plan_items

Ints = npt.NDArray[np.int32]

FEW_ROWS = 64
KEYS_FOR_FEW, KEYS_FOR_MANY = 512, 4096
"""Maximum keys of a tile. With few rows, keys are cut into many tiles to fill the GPU. With many rows, partial results
of small tiles would take gigabytes.
"""
SMALL_BLOCK, LARGE_BLOCK = 16, 64
"""Query rows of a tile, heads counted as rows: few sizes, because each is compiled separately."""
ALIGNED = 4  # alignment of tables in numbers: Triton compiles one kernel for aligned addresses and one for others


class Tables(NamedTuple):
    """Tables of a pass in host memory. block: query rows of a tile, heads counted as rows. num_tiles `[1]`: number of
    tiles with readers; these come first. tiles `[N, 6]`: start of the run, first key of it, keys, first reader,
    readers, first partial result. readers `[R, 3]`: packed row, number of the run's keys it sees, turn (-1: none).
    offsets: ids that each turn rotates back. first_partial `[T + 1]`: start of a packed row's part of `partials`, which
    lists its partial results. slots, positions `[T]`: of packed rows.
    """

    block: int
    num_tiles: Ints
    tiles: Ints
    readers: Ints
    offsets: Ints
    first_partial: Ints
    partials: Ints
    slots: Ints
    positions: Ints

    @property
    def num_partials(self) -> int:
        return int(self.tiles[:, 4].sum())

    @property
    def arrays(self) -> list[Ints]:
        return [*self[1:]]

    def filled_up(self, rows: int, partials: int, turns: int, slot: int) -> "Tables":
        """Return the tables padded to these sizes by tiles without readers, and by rows in `slot` that see nothing."""
        return Tables(
            self.block,
            self.num_tiles,
            longer(self.tiles, partials),
            longer(self.readers, partials),
            longer(self.offsets, turns),
            longer(self.first_partial, rows + 1, self.first_partial[-1]),
            longer(self.partials, partials),
            longer(self.slots, rows, slot),
            longer(self.positions, rows),
        )


@dataclass(frozen=True, slots=True)
class TilePlan:
    """The tables of a pass on the device. num_partials: number of partial results that have memory. The other fields:
    see `Tables`; int32.
    """

    num_partials: int
    block: int
    num_tiles: Tensor
    tiles: Tensor
    readers: Tensor
    offsets: Tensor
    first_partial: Tensor
    partials: Tensor
    slots: Tensor
    positions: Tensor


def plan_tiles(chunks: Sequence[Chunk], group: int, device: torch.device, most_keys: int | None = None) -> TilePlan:
    tables = make_tables(chunks, group, most_keys=most_keys)
    return TilePlan(tables.num_partials, tables.block, *on_device(tables.arrays, device))


def make_tables(
    chunks: Sequence[Chunk], group: int, *, block: int | None = None, most_keys: int | None = None
) -> Tables:
    """Return the tables of a packed pass. group: query heads that share a key/value head. block, most_keys: the sizes
    of a tile; None: suitable for the pass.
    """
    turns: dict[int, int] = {}
    runs, readers = (np.array(numbers, np.int32) for numbers in plan_arrays(plan_items(chunks), turns))
    runs, readers = runs.reshape(-1, 4), readers.reshape(-1, 3)
    rows = sum(len(chunk.tokens) for chunk in chunks)
    block = block or block_size(int(runs[:, 3].max()), group)
    tiles = cut(runs, readers, most_keys or (KEYS_FOR_FEW if rows <= FEW_ROWS else KEYS_FOR_MANY), block // group)
    return Tables(
        block,
        np.array([len(tiles)], np.int32),
        tiles,
        readers,
        np.array([*turns], np.int32),
        *partials_of_rows(tiles, readers, rows),
        np.array([slot for chunk in chunks for slot in chunk.slots], np.int32),
        np.array([position for chunk in chunks for position in chunk.positions], np.int32),
    )


def block_size(most_readers: int, group: int) -> int:
    """Return the query rows of a tile: a power of two, at least the query heads of a group."""
    fitting = SMALL_BLOCK if most_readers * group <= SMALL_BLOCK else LARGE_BLOCK
    return max(fitting, 1 << (group - 1).bit_length())


def cut(runs: Ints, readers: Ints, most_keys: int, most_readers: int) -> Ints:
    """Cut runs and readers of `plan_arrays` into tiles. Keys that no reader of a tile sees are dropped."""
    tiles: list[tuple[int, ...]] = []
    partial = 0
    for start, _, first_reader, num_readers in runs.tolist():
        for at in range(first_reader, first_reader + num_readers, most_readers):
            count = min(most_readers, first_reader + num_readers - at)
            longest = int(readers[at : at + count, 1].max())
            for first in range(0, longest, most_keys):
                tiles.append((start, first, min(most_keys, longest - first), at, count, partial))
                partial += count
    return np.array(tiles, np.int32)


def partials_of_rows(tiles: Ints, readers: Ints, rows: int) -> tuple[Ints, Ints]:
    """Return `first_partial` and `partials` of a `TilePlan`, without readers that see no key of their tile."""
    tile = np.repeat(np.arange(len(tiles)), tiles[:, 4])
    reader = readers[tiles[tile, 3] + np.arange(len(tile)) - tiles[tile, 5]]
    seen = np.flatnonzero(reader[:, 1] > tiles[tile, 1])
    row = reader[seen, 0]
    first_partial = np.concatenate(([0], np.bincount(row, minlength=rows).cumsum()))
    return first_partial.astype(np.int32), seen[np.argsort(row, kind="stable")].astype(np.int32)


def no_tables(block: int) -> Tables:
    none, zero = np.zeros(0, np.int32), np.zeros(1, np.int32)
    return Tables(block, zero, none.reshape(0, 6), none.reshape(0, 3), none, zero, none, none, none)


def longer(table: Ints, entries: int, value: int = 0) -> Ints:
    more = [(0, entries - len(table)), *[(0, 0)] * (table.ndim - 1)]
    return np.pad(table, more, constant_values=value)


def on_device(tables: Sequence[Ints], device: torch.device) -> list[Tensor]:
    return views(torch.from_numpy(joined(tables)).to(device), [table.shape for table in tables])


def joined(tables: Sequence[Ints]) -> Ints:
    """Return consecutive tables, each aligned for Triton."""
    return np.concatenate([np.pad(table.ravel(), (0, -table.size % ALIGNED)) for table in tables])


def views(together: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    sizes = [math.prod(shape) for shape in shapes]
    parts = torch.split(together, [size + -size % ALIGNED for size in sizes])
    return [part[:size].view(shape) for part, size, shape in zip(parts, sizes, shapes, strict=True)]
