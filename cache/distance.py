"""What the distance between position ids does to attention besides rotary angles: ALiBi slopes and sliding windows.

Both become a bias on the scores of an item. Ids are compared in the frame in which the extent was encoded: a query
that reads an extent placed `offset` ids further on stands at its own id - offset there.

Shape letters: R rows over all items (a row counts once per item it is in), L keys of an item, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cache.items import Item
from cache.kernels import HIDDEN


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel call: the `rows` query positions of an item over `length` slots of the arena from `start` on.

    length: 0 if no row sees any key. bias: see `cache.kernels.Kernel`.
    """

    rows: int
    start: int
    length: int
    causal: bool
    bias: Tensor | None = None


def plain_calls(items: Sequence[Item]) -> list[Call]:
    """Every row sees every key of its item, near or far."""
    return [Call(item.num_rows, item.extent.start, item.extent.length, item.causal) for item in items]


def sloped_calls(
    items: Sequence[Item], queries: Tensor, positions: Tensor, slopes: Tensor
) -> tuple[list[Call], Tensor]:
    """ALiBi: a head's score falls by its slope for every id between query and key.

    queries: int64 `[R]`, ids of the items' rows in their extents' frames. positions: int64 `[slots]`, ids of the
    arena's keys. slopes: float32 `[H]`.

    The distance to the item's last key is the same for all keys, so it does not enter the kernel: the bias needs no
    rows. It is returned apart, float32 `[H, R]`, to be added to the log-sum-exp before items are merged.
    """
    calls: list[Call] = []
    shifts: list[Tensor] = []
    for item, rows in zip(items, per_item(items, queries), strict=True):
        keys = positions[item.extent.start : item.extent.end]
        bias = slopes[:, None] * (keys - keys[-1])
        calls.append(Call(len(rows), item.extent.start, item.extent.length, item.causal, bias[None, :, None]))
        shifts.append(slopes[:, None] * (keys[-1] - rows))
    return calls, torch.cat(shifts, 1)


def windowed_calls(items: Sequence[Item], queries: Tensor, positions: Tensor, window: int) -> list[Call]:
    """A row sees only keys less than `window` ids behind it. queries, positions: as for `sloped_calls`."""
    calls: list[Call] = []
    for item, rows in zip(items, per_item(items, queries), strict=True):
        start, length = item.extent.start, item.extent.length
        is_near = rows[:, None] - positions[start : start + length] < window  # [n, L]
        passed = 0 if item.causal else length - int(is_near.any(0).sum())  # keys ascend: the first are out of sight
        is_near = is_near[:, passed:]
        bias = None if is_near.all() else torch.where(is_near, 0.0, HIDDEN)[None, None]
        calls.append(Call(len(rows), start + passed, length - passed, item.causal, bias))
    return calls


def per_item(items: Sequence[Item], rows: Tensor) -> Iterator[Tensor]:
    """Rows over all items, cut into those of each."""
    return iter(torch.split(rows, [item.num_rows for item in items]))
