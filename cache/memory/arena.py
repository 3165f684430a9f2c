"""The KV arena: one K and one V tensor per layer, `[slots, kv_heads, head_dim]` in the model's dtype, allocated once,
and for each slot the position id at which its key was encoded. Not covered: who owns which slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cache.memory.allocator import Extent
from cache.memory.copies import Copies
from cache.memory.copy_stream import copy_stream_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """Shape of one token's keys and values."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class Arena:
    """KV memory of `slots` tokens on one device. positions: int64 `[slots + 1]`. scratch_slot: one more, for rows that
    nobody reads. copies: of modules from and to it, beside the passes; None on a processor.
    """

    def __init__(self, shape: KVShape, slots: int, device: torch.device) -> None:
        self.shape, self.slots, self.device = shape, slots, device
        self.scratch_slot = slots
        size = (slots + 1, shape.kv_heads, shape.head_dim)
        self.keys = [torch.empty(size, dtype=shape.dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.empty(size, dtype=shape.dtype, device=device) for _ in range(shape.layers)]
        self.positions = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        # the same memory as attention kernels want it: [1, kv_heads, slots, head_dim]
        self.key_rows = [keys.transpose(0, 1).unsqueeze(0) for keys in self.keys]
        self.value_rows = [values.transpose(0, 1).unsqueeze(0) for values in self.values]
        stream = copy_stream_of(device)
        self.copies = None if stream is None else Copies(stream, shape.layers)

    @property
    def has_copies(self) -> bool:
        """Whether a pass must call `await_layer`; if not, it may be replayed from a graph, which waits for nothing."""
        return bool(self.copies)

    def await_layer(self, layer: int) -> None:
        """Called by a pass in each layer before it writes or reads keys: what is copied is there when it does."""
        if self.copies is not None:
            self.copies.await_layer(layer)

    def begin_copies(self) -> None:
        """Begin what is to be copied, before the next pass is planned or where there is none."""
        if self.copies is not None:
            self.copies.begin()

    def read(self, extent: Extent) -> Tensor:
        """A copy of an extent in host memory: `[2, layers, length, kv_heads, head_dim]`, keys first."""
        self.await_layer(self.shape.layers - 1)
        rows = [layer[extent.start : extent.end] for layer in (*self.keys, *self.values)]
        return torch.stack(rows).cpu().view(2, self.shape.layers, *rows[0].shape)

    def write(self, extent: Extent, rows: Tensor) -> None:
        """Copy rows shaped as `read` gives them into an extent."""
        self.await_layer(self.shape.layers - 1)
        for layer, copy in zip((*self.keys, *self.values), rows.flatten(0, 1), strict=True):
            layer[extent.start : extent.end] = copy

    def read_layer(self, layer: int, extent: Extent) -> Tensor:
        """A copy of one layer of an extent on the device: `[2, length, kv_heads, head_dim]`."""
        return torch.stack([rows[layer][extent.start : extent.end] for rows in (self.keys, self.values)])

    def write_layer(self, layer: int, extent: Extent, rows: Tensor) -> None:
        """Copy rows shaped as `read_layer` gives them, on any device; from locked memory the caller does not wait."""
        for into, copy in zip((self.keys, self.values), rows, strict=True):
            into[layer][extent.start : extent.end].copy_(copy, non_blocking=True)

    def place(self, extent: Extent, positions: Sequence[int]) -> None:
        """Note the position ids of an extent's keys."""
        ids = torch.tensor(positions, pin_memory=self.device.type == "cuda")  # a plain copy waits for the device
        self.positions[extent.start : extent.end].copy_(ids, non_blocking=True)
