"""Kernel calls of items. Keys hidden from a row, and effects of the distance between position ids (ALiBi slopes and
sliding windows, but not rotary angles), become a bias on the scores of an item. Ids are compared as when the extent was
encoded: at a place `offset` ids later, a query has its own id - offset.

Shape letters: R rows over all items (a row counts once per item it is in), L keys of an item, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cache.attention.items import Item
from cache.attention.kernels import HIDDEN


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel call: the `rows` query positions of an item over `length` slots from `start` on (0 if no row sees any
    key). bias: see `Kernel`.
    """

    rows: int
    start: int
    length: int
    causal: bool
    bias: Tensor | None = None


def plain_calls(items: Sequence[Item], device: torch.device) -> list[KernelCall]:
    """Return the calls for layers without an effect of distance, other than rotation."""
    return [
        KernelCall(item.num_rows, item.extent.start, item.extent.length, item.causal, hidden_keys(item, device))
        for item in items
    ]


def hidden_keys(item: Item, device: torch.device) -> Tensor | None:
    """Return the bias that hides keys outside rows' visible ranges: `[1, 1, n or 1, L]`, None if nothing is hidden."""
    if not any(r.visible_ranges for r in item.ranges):
        return None
    masks: list[Tensor] = []
    for r in item.ranges:
        is_seen = torch.full((r.last - r.first, item.extent.length), not r.visible_ranges)
        for visible_range in r.visible_ranges:
            is_seen[max(0, visible_range.seen_from - r.first) :, visible_range.first : visible_range.last] = True
        masks.append(is_seen)
    seen = torch.cat(masks)
    if bool((seen == seen[0]).all()):  # one row for all keeps the kernel's fast path
        seen = seen[:1]
    return torch.where(seen, 0.0, HIDDEN)[None, None].to(device)


def sloped_calls(
    items: Sequence[Item], queries: Tensor, positions: Tensor, slopes: Tensor
) -> tuple[list[KernelCall], Tensor]:
    """Return the calls for ALiBi: a head's score falls by its slope for every id between query and key. queries: int64
    `[R]`, ids of item rows as their extents were encoded. positions: int64 `[slots]`, ids of the pool's keys. slopes:
    float32 `[H]`.

    A row's distance to the item's last key lowers all its scores equally. So the kernel's bias holds only the distances
    between keys, the same for all rows. The rest is returned, float32 `[H, R]`, to be added to the log-sum-exp before
    items are merged.
    """
    calls: list[KernelCall] = []
    shifts: list[Tensor] = []
    for item, rows in zip(items, per_item(items, queries), strict=True):
        keys = positions[item.extent.start : item.extent.end]
        bias = (slopes[:, None] * (keys - keys[-1]))[None, :, None]
        hidden = hidden_keys(item, bias.device)
        bias = bias if hidden is None else bias + hidden
        calls.append(KernelCall(len(rows), item.extent.start, item.extent.length, item.causal, bias))
        shifts.append(slopes[:, None] * (keys[-1] - rows))
    return calls, torch.cat(shifts, 1)


def windowed_calls(items: Sequence[Item], queries: Tensor, positions: Tensor, window: int) -> list[KernelCall]:
    """Return the calls for a sliding window: a row sees only keys less than `window` ids before it. queries, positions:
    as for `sloped_calls`.
    """
    calls: list[KernelCall] = []
    for item, rows in zip(items, per_item(items, queries), strict=True):
        start, length = item.extent.start, item.extent.length
        is_near = rows[:, None] - positions[start : start + length] < window  # [n, L]
        passed = (
            0 if item.causal else length - int(is_near.any(0).sum())
        )  # keys ascend: the first are outside the window
        hidden = hidden_keys(item, is_near.device)
        is_near = (is_near if hidden is None else is_near & (hidden[0, 0] == 0))[:, passed:]
        bias = None if is_near.all() else torch.where(is_near, 0.0, HIDDEN)[None, None]
        calls.append(KernelCall(len(rows), start + passed, length - passed, item.causal, bias))
    return calls


def per_item(items: Sequence[Item], rows: Tensor) -> Sequence[Tensor]:
    return torch.split(rows, [item.num_rows for item in items])
