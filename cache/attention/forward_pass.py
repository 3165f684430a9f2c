"""Attention over items: kernels for one extent, and the function that replaces a transformers model's own attention.

`Pass` holds a forward pass's data on the device; all layers share it. New keys and values are written to the pool
first. Then the query rows of all items are gathered and rotated at once, each item is one kernel call over its extent
in place, and each row's partial results are merged by log-sum-exp. No key or value is copied.

Both kernels are exact. `flash_cpu` is PyTorch's CPU flash attention. `matmul` is the reference; it runs on other
devices and for scores with a soft cap. Keys hidden from a row, and effects of the distance between position ids (ALiBi
slopes and sliding windows, but not rotary angles), become a bias on the scores of an item. Ids are compared as when the
extent was encoded: for an extent that is placed `offset` ids later, a query's id counts as id - offset.

Shape letters: T packed rows of the pass, R rows over all items (a row counts once per item it is in), n query positions
of an item, L keys, P the maximum number of items that a row is in, H key/value heads, G query heads per key/value head,
D head size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from cache.attention.items import Chunk, Item, ScoredChunk, only_scores, plan_items
from cache.memory.arena import Arena

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
    """Reference kernel: scores s in float32, softmax, weighted sum. softcap: s becomes softcap * tanh(s / softcap)."""
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
    """PyTorch's CPU flash attention. A causal mask, or a bias that differs between query positions, does not fit folded
    rows. Then the heads of a group become a batch that shares the keys (stride 0).
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
    """One kernel call: `rows` query positions of an item attend to `length` slots from `start` on. length: 0 if no row
    sees a key. bias: see `Kernel`.
    """

    rows: int
    start: int
    length: int
    causal: bool
    bias: Tensor | None = None


def plain_calls(items: Sequence[Item], device: torch.device) -> list[KernelCall]:
    """Return the calls for layers in which distance has no effect except rotation."""
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
    """Return the calls for a layer whose rows see only keys less than `window` ids before them. See `sloped_calls`."""
    calls: list[KernelCall] = []
    for item, rows in zip(items, per_item(items, queries), strict=True):
        start, length = item.extent.start, item.extent.length
        is_near = rows[:, None] - positions[start : start + length] < window  # [n, L]
        # keys ascend: the first are outside the window
        passed = 0 if item.causal else length - int(is_near.any(0).sum())
        hidden = hidden_keys(item, is_near.device)
        is_near = (is_near if hidden is None else is_near & (hidden[0, 0] == 0))[:, passed:]
        bias = None if is_near.all() else torch.where(is_near, 0.0, HIDDEN)[None, None]
        calls.append(KernelCall(len(rows), start + passed, length - passed, item.causal, bias))
    return calls


def per_item(items: Sequence[Item], rows: Tensor) -> Sequence[Tensor]:
    return torch.split(rows, [item.num_rows for item in items])


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary frequencies: float32 `[D_rotary / 2]`, radians per position id. Queries are only rotated, not scaled: an
    attention factor (YaRN) is already applied to queries and keys.
    """

    frequencies: Tensor

    def angles(self, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin `[R, 1, D_rotary]` of the rotation back by `offsets` `[R]`, in the layout for `back`."""
        angles = -offsets.double()[:, None] * self.frequencies.double().to(offsets.device)
        cos, sin = angles.cos().float(), angles.sin().float()
        return torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1)

    def back(self, q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate queries `[..., R, G, D]`, in float32, by the `angles` of their rows."""
        half = self.frequencies.shape[0]
        turned = q[..., : 2 * half].float()
        swapped = torch.cat((turned[..., half:], turned[..., :half]), -1)
        turned = torch.addcmul(turned * cos, swapped, sin).to(q.dtype)
        return turned if q.shape[-1] == 2 * half else torch.cat((turned, q[..., 2 * half :]), -1)


class ScoringFinished(Exception):
    """Raised after the last scored layer to end a pass, if only its scores are needed."""


class PassGivenUp(Exception):
    """Raised to end a pass whose result is no longer needed. The keys and values of its rows are incomplete."""


def never() -> bool:
    return False


class RunningPass(Protocol):
    """The interface of a pass that models use. positions: position ids of its rows, int64 `[T]`."""

    positions: Tensor

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Store k and v `[1, H, T, D]` and attend with q `[1, H*G, T, D]`, all at their final position ids. Returns
        `[1, T, H*G, D]`. window: width of the sliding window, in ids. softcap: see `matmul`. Raises PassGivenUp.
        """


class Pass:
    """One packed forward pass over a pool, which also stores the rows' position ids. Chunks with offsets need a
    rotation or ALiBi slopes, float32 `[H]`. scored: chunks to score, in `scored_layers`. give_up: called in each layer;
    True ends the pass (PassGivenUp).
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        arena: Arena,
        kernel: Kernel,
        device: torch.device,
        *,
        rotation: Rotation | None = None,
        slopes: Tensor | None = None,
        scored: Sequence[ScoredChunk] = (),
        scored_layers: range = range(0),
        give_up: Callable[[], bool] = never,
    ) -> None:
        self.arena, self.kernel, self.rotation, self.give_up = arena, kernel, rotation, give_up
        self.scored = [(one.packed_rows(chunks), one.squares) for one in scored]
        self.scored_layers = scored_layers
        self.ends_scored = only_scores(scored, chunks)
        self.items = plan_items(chunks)
        slots = [slot for chunk in chunks for slot in chunk.slots]
        ranges = [r for item in self.items for r in item.ranges]
        rows = [row for r in ranges for row in range(r.first, r.last)]
        parts: list[list[int]] = [[] for _ in slots]
        for item_row, row in enumerate(rows):
            parts[row].append(item_row)
        most = max(len(p) for p in parts)
        padded = torch.tensor([p + [len(rows)] * (most - len(p)) for p in parts], device=device)
        # position id [T] and arena slot [T] of every packed row, packed row [R] of every item row
        self.positions = torch.tensor([position for chunk in chunks for position in chunk.positions], device=device)
        self.slots, self.rows = torch.tensor(slots, device=device), torch.tensor(rows, device=device)
        self.parts = padded.T.contiguous()  # item row of (part, packed row) [P, T]; R where a row has fewer parts
        self.is_dense = rows == list(range(len(slots))) * most  # whether item rows are the packed rows P times
        is_one_run = slots == list(range(slots[0], slots[0] + len(slots)))
        self.first_slot = slots[0] if is_one_run else None
        arena.positions.index_copy_(0, self.slots, self.positions)
        # by sliding window; None: for layers without one. Calls for a window are made when they are first needed
        self.calls: dict[int | None, list[KernelCall]] = {None: plain_calls(self.items, device)}
        self.shift: Tensor | None = None  # added by ALiBi to each item row's log-sum-exp, float32 [H, R]
        self.turn: tuple[Tensor, Tensor] | None = None  # cos and sin by which each item row is rotated back
        if slopes is not None:
            self.calls[None], self.shift = sloped_calls(self.items, self._framed_positions(), arena.positions, slopes)
        elif any(r.offset for r in ranges):
            assert rotation is not None, "this model's modules cannot be moved"
            cos, sin = rotation.angles(self._offsets)
            self.turn = cos.to(device), sin.to(device)

    @cached_property
    def _offsets(self) -> Tensor:
        """Return the offset of each item row, see `KVView`: int64 `[R]`, in host memory."""
        return torch.tensor([r.offset for item in self.items for r in item.ranges for _ in range(r.first, r.last)])

    def _framed_positions(self) -> Tensor:
        """Return the position ids of item rows minus their offsets, int64 `[R]`."""
        return self.positions[self.rows] - self._offsets.to(self.positions.device)

    def _calls(self, window: int | None) -> list[KernelCall]:
        if window is not None and window not in self.calls:
            if window > int(self.positions.max()):  # no keys are that far apart
                self.calls[window] = self.calls[None]
            else:
                queries = self._framed_positions()
                self.calls[window] = windowed_calls(self.items, queries, self.arena.positions, window)
        return self.calls[window]

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        if self.give_up():
            raise PassGivenUp
        self.arena.await_layer(layer)
        self._write(layer, k[0].transpose(0, 1), v[0].transpose(0, 1))
        h = k.shape[1]
        q = torch.unflatten(q[0], 0, (h, -1)).transpose(1, 2)  # [H, T, G, D]
        if len(self.items) > 1:
            q = q.index_select(1, self.rows)  # [H, R, G, D]
            if self.turn is not None and self.rotation is not None:
                q = self.rotation.back(q, *self.turn)
        group, d = q.shape[2:]
        kernel = self.kernel if softcap is None else partial(matmul, softcap=softcap)
        out, lse = self._run(layer, q.reshape(1, h, -1, d), group, scale, self._calls(window), kernel)
        out = out.view(h, -1, group, d)
        if len(self.items) > 1:
            lse = lse.view(h, -1, group)
            if self.shift is not None:
                lse = lse + self.shift.unsqueeze(-1)
            if self.scored and layer in self.scored_layers:
                self._score(layer, q, lse, scale)
            out = self._merge(out, lse).to(q.dtype)
        return out.transpose(0, 1).flatten(1, 2).unsqueeze(0)

    def _write(self, layer: int, k: Tensor, v: Tensor) -> None:
        keys, values = self.arena.keys[layer], self.arena.values[layer]
        if self.first_slot is not None:
            rows = slice(self.first_slot, self.first_slot + k.shape[0])
            keys[rows], values[rows] = k, v
        else:
            keys.index_copy_(0, self.slots, k)
            values.index_copy_(0, self.slots, v)

    def _run(
        self, layer: int, q: Tensor, group: int, scale: float, calls: list[KernelCall], kernel: Kernel
    ) -> tuple[Tensor, Tensor]:
        """Run all items of folded queries `[1, H, R*G, D]`. Returns results `[1, H, R*G, D]` and log-sum-exp `[1, H,
        R*G]`. It has few operations per item, because in decoding (one row each) their overhead dominates.
        """
        keys, values = self.arena.key_rows[layer], self.arena.value_rows[layer]
        outs: list[Tensor] = []
        lses: list[Tensor] = []
        for call, rows in zip(calls, torch.split(q, [call.rows * group for call in calls], 2), strict=True):
            if call.length:
                k, v = keys.narrow(2, call.start, call.length), values.narrow(2, call.start, call.length)
                out, lse = kernel(rows, k, v, group, call.causal, scale, call.bias)
            else:  # no key is within the window
                out, lse = torch.zeros_like(rows), rows.new_full(rows.shape[:3], float("-inf"), dtype=torch.float32)
            outs.append(out)
            lses.append(lse)
        return (torch.cat(outs, 2), torch.cat(lses, 2)) if len(outs) > 1 else (outs[0].contiguous(), lses[0])

    def _score(self, layer: int, q: Tensor, lse: Tensor, scale: float) -> None:
        """Add the squares of a layer's attention weights. q `[H, R, G, D]`, lse `[H, R, G]`, of item rows before
        merging. Raises ScoringFinished after the last layer, if the pass is computed for the scores alone.
        """
        whole = self._by_part(lse, float("-inf")).logsumexp(1)  # [H, T, G]
        item_rows = per_item(self.items, torch.arange(len(self.rows), device=q.device))
        offsets = self._offsets.to(q.device)
        wanted = [(rows, *one) for rows, squares in self.scored for one in squares.items()]
        for item, call, of_item in zip(self.items, self.calls[None], item_rows, strict=True):
            for rows, (extent, offset), squares in wanted:
                if item.extent != extent:
                    continue
                packed = self.rows[of_item]
                is_scored = (packed >= rows.start) & (packed < rows.stop) & (offsets[of_item] == offset)
                mine, packed = of_item[is_scored], packed[is_scored]
                keys = self.arena.keys[layer][extent.start : extent.end].float()  # [L, H, D]
                scores = torch.einsum("hrgd,lhd->hrgl", q[:, mine].float(), keys) * scale
                if call.bias is not None:
                    bias = call.bias[0].unsqueeze(2)  # [1 or H, 1 or all rows of the item, 1, L]
                    scores = scores + (bias if bias.shape[1] == 1 else bias[:, is_scored])
                if self.shift is not None:
                    scores = scores + self.shift[:, mine, None, None]
                weights = (scores - whole[:, packed].unsqueeze(-1)).exp().mean((0, 2))  # [r, L]
                squares[layer - self.scored_layers.start] += weights.square().sum(0)
        if self.ends_scored and layer == self.scored_layers[-1]:
            raise ScoringFinished

    def _merge(self, out: Tensor, lse: Tensor) -> Tensor:
        """Merge partial results `[H, R, G, D]` and `[H, R, G]` exactly. Returns `[H, T, G, D]`."""
        weights = self._by_part(lse, float("-inf")).softmax(dim=1)  # [H, P, T, G]
        return (self._by_part(out, 0.0).float() * weights.unsqueeze(-1)).sum(dim=1)

    def _by_part(self, x: Tensor, missing: float) -> Tensor:
        """Return item rows `[H, R, ...]` as `[H, P, T, ...]`. missing: value for rows with fewer than P parts."""
        if not self.is_dense:  # else every row has a part in every item, in order
            nothing = x.new_full((x.shape[0], 1, *x.shape[2:]), missing)
            x = torch.cat((x, nothing), 1).index_select(1, self.parts.flatten())
        return torch.unflatten(x, 1, self.parts.shape)


def attention_function(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    plan: RunningPass,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Replace the attention of a transformers model. plan: the running pass, given by the model's forward."""
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    return plan.attend(module.layer_idx, q, k, v, scale, sliding_window, softcap), None
