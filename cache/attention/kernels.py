"""Kernels: attention of query rows over one extent, with its log-sum-exp. Also plans their calls for items.

Both kernels are exact. `flash_cpu` is PyTorch's CPU flash attention. `matmul` is the reference; it runs on other
devices and for scores with a soft cap. Keys hidden from a row, and effects of the distance between position ids (ALiBi
slopes and sliding windows, but not rotary angles), become a bias on the scores of an item. Ids are compared as when the
extent was encoded: at a place `offset` ids later, a query has its own id - offset.

Shapes: G query heads share one of H key/value heads; n query positions of an item, R rows over all items (a row counts
once per item it is in), L keys, head size D.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cache.attention.items import Item

Kernel = Callable[[Tensor, Tensor, Tensor, int, bool, float, Tensor | None], tuple[Tensor, Tensor]]
"""(q [1, H, n*G, D], k [1, H, L, D], v [1, H, L, D], G, causal, scale, bias) -> (out as q, lse float32 [1, H, n*G]).

The query heads of a key/value head are folded into rows, G rows per query position, so that one product serves them
all. causal needs n == L. bias: float32 [1, H or 1, n or 1, L], added to the scaled scores, or None.
"""

HIDDEN = -1e30
"""Bias of a hidden key. Finite, so that a row without any visible key does not give NaN: its log-sum-exp is so low that
its weight is exactly 0 when it is merged with a part in which the row sees a key.
"""


def matmul(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: int,
    causal: bool,
    scale: float,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The reference: scores in float32, softmax, weighted sum. softcap: scores s become softcap * tanh(s / softcap)."""
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if bias is not None:
        scores = scores + (bias if bias.shape[2] == 1 else bias.repeat_interleave(group, dim=2))
    if causal:
        future = torch.ones(k.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future.repeat_interleave(group, dim=0), float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)


def flash_cpu(
    q: Tensor, k: Tensor, v: Tensor, group: int, causal: bool, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """PyTorch's CPU flash attention. Its causal mask, and a bias that differs between query positions, do not fit
    folded rows: then the group becomes a batch over keys with stride 0.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if not causal and (bias is None or bias.shape[2] == 1):
        out, lse = flash(q, k, v, 0.0, False, attn_mask=bias, scale=scale)
        return out, lse
    h, d = k.shape[1], k.shape[3]
    rows = q.view(h, -1, group, d).permute(2, 0, 1, 3)  # [G, H, n, D]
    out, lse = flash(
        rows, k.expand(group, -1, -1, -1), v.expand(group, -1, -1, -1), 0.0, causal, attn_mask=bias, scale=scale
    )
    return out.permute(1, 2, 0, 3).reshape(q.shape), lse.permute(1, 2, 0).reshape(1, h, -1)


def default_kernel(device: torch.device) -> Kernel:
    if device.type == "cpu" and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return flash_cpu
    return matmul


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
    """Return the calls for a layer whose rows see only keys less than `window` ids before. See `sloped_calls`."""
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
