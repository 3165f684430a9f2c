"""A forward pass with PyTorch's attention for sequences of different lengths (`varlen_attn`), for GPUs without Triton:
two calls per layer, one over keys that all rows of an extent see, one for causal squares.

An entry is some readers and a run of slots, by start and length. Query heads that share keys are folded into rows,
except in causal entries, because the mask would be wrong. Out of scope: scoring, ALiBi, sliding windows, soft caps, and
numbers of more than 16 bits. It has not run on a GPU.

Shape letters: R readers of all entries, T packed rows, P the most readers of any row, H key/value heads, G query heads
per key/value head, D head size.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from cache.attention.forward_pass import PassGivenUp, Rotation, never
from cache.attention.items import Chunk, plan_arrays, plan_items
from cache.memory.arena import Arena

MOST_KEYS = 4096
"""Maximum keys of an entry that is not causal: longer runs are cut, because the kernel does not divide keys."""


class Entries:
    """The entries of one call: lists that `add` extends, and tensors once all entries are added."""

    def __init__(self) -> None:
        self.rows: list[int] = []  # packed rows of the readers
        self.offsets: list[int] = []  # how far each is rotated back
        self.cu_rows = [0]  # where the readers of each entry begin, and where the last ones end
        self.starts: list[int] = []
        self.lengths: list[int] = []

    def add(self, rows: Sequence[int], offsets: Sequence[int], start: int, length: int) -> None:
        self.rows += rows
        self.offsets += offsets
        self.cu_rows.append(len(self.rows))
        self.starts.append(start)
        self.lengths.append(length)


def plan_entries(chunks: Sequence[Chunk], most_keys: int = MOST_KEYS) -> tuple[Entries, Entries]:
    """Return two sets of entries: readers see all keys, or only keys up to themselves (causal)."""
    whole, causal = Entries(), Entries()
    items, turns = plan_items(chunks), dict[int, int]()
    runs, readers = plan_arrays([item for item in items if not item.causal], turns)
    offsets = [*turns, 0]  # the last one, of turn -1
    for at in range(0, len(runs), 4):
        start, length, first, count = runs[at : at + 4]
        of_run = slice(3 * first, 3 * (first + count))
        rows, moved = readers[of_run][::3].tolist(), [offsets[turn] for turn in readers[of_run][2::3]]
        for cut in range(0, length, most_keys):
            whole.add(rows, moved, start + cut, min(most_keys, length - cut))
    for item in items:
        for rows_of in item.ranges if item.causal else ():
            rows = [*range(rows_of.first, rows_of.last)]
            causal.add(rows, [0] * len(rows), item.extent.start, item.extent.length)
    return whole, causal


class EntriesCall:
    """Entries on the device, for one call in each layer. group: query heads that are folded into rows; 1: none."""

    def __init__(self, entries: Entries, device: torch.device, rotation: Rotation | None, group: int) -> None:
        self._group, self._rotation = group, rotation
        self._rows = torch.tensor(entries.rows, device=device)
        cu_rows = [rows * group for rows in entries.cu_rows]
        self._cu_q = torch.tensor(cu_rows, dtype=torch.int32, device=device)
        self._cu_k = torch.tensor([*entries.starts, 0], dtype=torch.int32, device=device)  # the last is not read
        self._used = torch.tensor(entries.lengths, dtype=torch.int32, device=device)
        self._most = max(b - a for a, b in pairwise(cu_rows)), max(entries.lengths)
        self._turn: tuple[Tensor, Tensor] | None = None
        if any(entries.offsets):
            assert rotation is not None, "this model's modules cannot be moved"
            cos, sin = rotation.angles(torch.tensor(entries.offsets))
            self._turn = cos.to(device), sin.to(device)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, scale: float, *, causal: bool) -> tuple[Tensor, Tensor]:
        """Attend with q `[T, H*G, D]`, keys and values `[slots, H, D]`. Returns results `[R, H*G, D]` and log-sum-exp
        `[R, H*G]`.
        """
        q = q[self._rows]
        if self._turn is not None and self._rotation is not None:
            q = self._rotation.back(q, *self._turn)
        folded = torch.unflatten(q, 1, (-1, self._group)).transpose(1, 2).flatten(0, 1).contiguous()  # [R*G, H, D]
        out, lse = varlen_attn(
            folded,
            keys,
            values,
            self._cu_q,
            self._cu_k,
            *self._most,
            return_aux=AuxRequest(lse=True),
            scale=scale,
            window_size=(-1, 0) if causal else (-1, -1),
            enable_gqa=folded.shape[1] != keys.shape[1],
            seqused_k=self._used,
            num_splits=1,  # so that results do not depend on the batch
        )  # log-sum-exp [H, R*G], although the documentation says [R*G, H]
        out = torch.unflatten(out, 0, (-1, self._group)).transpose(1, 2).flatten(1, 2)
        lse = torch.unflatten(lse.T, 0, (-1, self._group)).transpose(1, 2).flatten(1, 2)
        return out, lse.masked_fill(lse == torch.inf, -torch.inf)  # of rows without keys


class VarlenPass:
    """One packed forward pass over a pool, which also stores the rows' position ids. Chunks with offsets need a
    rotation. give_up: called in every layer.
    """

    can_be_captured = False

    def __init__(
        self,
        chunks: Sequence[Chunk],
        arena: Arena,
        group: int,
        *,
        rotation: Rotation | None = None,
        give_up: Callable[[], bool] = never,
        most_keys: int = MOST_KEYS,
    ) -> None:
        device = arena.device
        self._arena, self._give_up = arena, give_up
        self.positions = torch.tensor([position for chunk in chunks for position in chunk.positions], device=device)
        self._slots = torch.tensor([slot for chunk in chunks for slot in chunk.slots], device=device)
        arena.positions.index_copy_(0, self._slots, self.positions)
        whole, causal = plan_entries(chunks, most_keys)
        self._whole = EntriesCall(whole, device, rotation, group) if whole.rows else None
        self._causal = EntriesCall(causal, device, None, 1) if causal.rows else None
        self._parts = parts_of([*whole.rows, *causal.rows], len(self.positions)).to(device)

    @classmethod
    def of(
        cls, chunks: Sequence[Chunk], arena: Arena, heads: int, *, slopes: Tensor | None = None, **options: Any
    ) -> Self:
        """Return the pass as `TiledPass.of`. Raises NotImplementedError for ALiBi slopes."""
        if slopes is not None:
            raise NotImplementedError("no ALiBi")
        return cls(chunks, arena, heads // arena.shape.kv_heads, **options)

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
        """Attend as `RunningPass.attend`. Raises NotImplementedError for sliding windows and soft caps."""
        if window is not None or softcap is not None:
            raise NotImplementedError("no sliding windows and no soft caps")
        if self._give_up():
            raise PassGivenUp
        self._arena.await_layer(layer)
        keys, values = self._arena.keys[layer], self._arena.values[layer]
        keys.index_copy_(0, self._slots, k[0].transpose(0, 1))
        values.index_copy_(0, self._slots, v[0].transpose(0, 1))
        q = q[0].transpose(0, 1)
        parts = [
            call.attend(q, keys, values, scale, causal=call is self._causal)
            for call in (self._whole, self._causal)
            if call is not None
        ]
        out, lse = (torch.cat(of_both) for of_both in zip(*parts, strict=True))
        return merged(out, lse, self._parts).to(q.dtype).unsqueeze(0)


def parts_of(rows: Sequence[int], num_rows: int) -> Tensor:
    """Return the readers of each row, given their packed rows: int64 `[T, P]`, padded with R."""
    parts: list[list[int]] = [[] for _ in range(num_rows)]
    for reader, row in enumerate(rows):
        parts[row].append(reader)
    most = max(map(len, parts))
    return torch.tensor([part + [len(rows)] * (most - len(part)) for part in parts])


def merged(out: Tensor, lse: Tensor, parts: Tensor) -> Tensor:
    """Merge partial results `[R, H*G, D]` and `[R, H*G]` of each packed row exactly, float32 `[T, H*G, D]`."""
    out = torch.cat((out, torch.zeros_like(out[:1])))
    lse = torch.cat((lse, torch.full_like(lse[:1], -torch.inf)))
    weights = lse[parts].softmax(1)  # [T, P, H*G]
    return (out[parts].float() * weights.unsqueeze(-1)).sum(1)
