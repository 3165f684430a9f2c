"""Attention over items: the function that stands in for a transformers model's own attention.

`Pass` holds what one forward pass needs on the device; every layer uses the same one. New keys and values are
written to the arena first. Then the query rows of all items are gathered and rotated at once, each item runs as one
kernel call over its extent in place, and each row's partial results are merged by log-sum-exp. No key or value is
copied or concatenated.

Shape letters: T packed rows of the pass, R rows over all items (a row counts once per item it is in), P the most
items any row is in, H key/value heads, G query heads per key/value head, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cache.arena import Arena
from cache.items import Chunk, Item, plan_items
from cache.kernels import Kernel


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary frequencies. frequencies: float32 `[D_rotary / 2]`, radians per position id.

    Only a pure rotation moves queries: an attention factor (YaRN) is in queries and keys already.
    """

    frequencies: Tensor

    def back(self, q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries `[..., R, G, D]` rotated by the angles whose cos and sin are `[R, 1, D_rotary / 2]`."""
        half = self.frequencies.shape[0]
        x, y, rest = q[..., :half].float(), q[..., half : 2 * half].float(), q[..., 2 * half :]
        return torch.cat(((x * cos - y * sin).to(q.dtype), (y * cos + x * sin).to(q.dtype), rest), dim=-1)


@dataclass(slots=True)
class Pass:
    """One packed forward pass over an arena.

    slots: arena slot of every packed row, int64 `[T]`. rows: packed row of every item row, int64 `[R]`.
    cos, sin: of the angle each item row is rotated by, or None if nothing is placed away from where it was
    encoded. parts: item row of (part, packed row), int64 `[P, T]`, R where a row has fewer parts.
    """

    arena: Arena
    kernel: Kernel
    rotation: Rotation | None
    items: list[Item]
    slots: Tensor
    rows: Tensor
    parts: Tensor
    cos: Tensor | None
    sin: Tensor | None
    first_slot: int | None
    _out: Tensor | None = None
    _lse: Tensor | None = None

    @classmethod
    def plan(
        cls,
        chunks: Sequence[Chunk],
        arena: Arena,
        kernel: Kernel,
        rotation: Rotation | None,
        device: torch.device,
    ) -> Pass:
        """Turn chunks into index tensors. Chunks with offsets need a rotation."""
        items = plan_items(chunks)
        slots = [chunk.own.start + row for chunk in chunks for row in range(chunk.first, chunk.last)]
        ranges = [r for item in items for r in item.ranges]
        rows = [row for r in ranges for row in range(r.first, r.last)]
        parts: list[list[int]] = [[] for _ in slots]
        for item_row, row in enumerate(rows):
            parts[row].append(item_row)
        most = max(len(p) for p in parts)
        padded = torch.tensor([p + [len(rows)] * (most - len(p)) for p in parts], device=device)
        cos = sin = None
        if any(r.offset for r in ranges):
            assert rotation is not None, "this model's modules cannot be moved"
            offsets = torch.tensor([r.offset for r in ranges for _ in range(r.first, r.last)], dtype=torch.float64)
            angles = -offsets[:, None] * rotation.frequencies.double().cpu()
            cos = angles.cos().float().to(device).unsqueeze(1)
            sin = angles.sin().float().to(device).unsqueeze(1)
        contiguous = slots == list(range(slots[0], slots[0] + len(slots)))
        return cls(
            arena=arena,
            kernel=kernel,
            rotation=rotation,
            items=items,
            slots=torch.tensor(slots, device=device),
            rows=torch.tensor(rows, device=device),
            parts=padded.T.contiguous(),
            cos=cos,
            sin=sin,
            first_slot=slots[0] if contiguous else None,
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q `[1, H*G, T, D]`, k and v `[1, H, T, D]`, at their final position ids; returns `[1, T, H*G, D]`."""
        self._write(layer, k[0].transpose(0, 1), v[0].transpose(0, 1))
        h = k.shape[1]
        q = torch.unflatten(q[0], 0, (h, -1)).transpose(1, 2)  # [H, T, G, D]
        if len(self.items) == 1:
            out, _ = self._run(layer, self.items[0], q, scale)
        else:
            out = self._merge(layer, q, scale)
        return out.transpose(0, 1).flatten(1, 2).unsqueeze(0)

    def _write(self, layer: int, k: Tensor, v: Tensor) -> None:
        keys, values = self.arena.keys[layer], self.arena.values[layer]
        if self.first_slot is not None:
            rows = slice(self.first_slot, self.first_slot + k.shape[0])
            keys[rows], values[rows] = k, v
        else:
            keys.index_copy_(0, self.slots, k)
            values.index_copy_(0, self.slots, v)

    def _run(self, layer: int, item: Item, q: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        rows = slice(item.extent.start, item.extent.end)
        return self.kernel(q, self.arena.keys[layer][rows], self.arena.values[layer][rows], item.causal, scale)

    def _merge(self, layer: int, q: Tensor, scale: float) -> Tensor:
        q = q.index_select(1, self.rows)  # [H, R, G, D]
        if self.cos is not None and self.sin is not None and self.rotation is not None:
            q = self.rotation.back(q, self.cos, self.sin)
        out, lse = self._buffers(q)
        first = 0
        for item in self.items:
            last = first + item.num_rows
            out[:, first:last], lse[:, first:last] = self._run(layer, item, q[:, first:last], scale)
            first = last
        count, packed = self.parts.shape
        flat = self.parts.flatten()
        weights = torch.unflatten(lse.index_select(1, flat), 1, (count, packed)).softmax(dim=1)  # [H, P, T, G]
        partial: Tensor = torch.unflatten(out.index_select(1, flat), 1, (count, packed))  # [H, P, T, G, D]
        return (partial * weights.unsqueeze(-1)).sum(dim=1).to(q.dtype)

    def _buffers(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Results of all item rows, made once per pass; the last row stands for "no such part"."""
        if self._out is None or self._lse is None:
            h, r, g, d = q.shape
            self._out = torch.zeros(h, r + 1, g, d, dtype=torch.float32, device=q.device)
            self._lse = torch.full((h, r + 1, g), float("-inf"), device=q.device)
        return self._out, self._lse


def attention_function(
    module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention; `plan` is the `Pass` given to the model's forward."""
    plan: Pass = kwargs["plan"]
    scale = kwargs.get("scaling")
    layer: int = module.layer_idx  # type: ignore[assignment]
    return plan.attend(layer, q, k, v, q.shape[-1] ** -0.5 if scale is None else scale), None
