"""The KV arena: one K and one V tensor per layer, `[slots, kv_heads, head_dim]` in the model's dtype, allocated once,
and for each slot the position id at which its key was encoded. Not covered: who owns which slots.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cache.memory.allocator import Extent


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
    """KV memory of `slots` tokens on one device. positions: int64 `[slots]`."""

    def __init__(self, shape: KVShape, slots: int, device: torch.device) -> None:
        self.shape, self.slots, self.device = shape, slots, device
        size = (slots, shape.kv_heads, shape.head_dim)
        self.keys = [torch.empty(size, dtype=shape.dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.empty(size, dtype=shape.dtype, device=device) for _ in range(shape.layers)]
        self.positions = torch.zeros(slots, dtype=torch.int64, device=device)
        # the same memory as attention kernels want it: [1, kv_heads, slots, head_dim]
        self.key_rows = [keys.transpose(0, 1).unsqueeze(0) for keys in self.keys]
        self.value_rows = [values.transpose(0, 1).unsqueeze(0) for values in self.values]

    def read(self, extent: Extent) -> Tensor:
        """A copy of an extent in host memory: `[2, layers, length, kv_heads, head_dim]`, keys first."""
        rows = [layer[extent.start : extent.end] for layer in (*self.keys, *self.values)]
        return torch.stack(rows).cpu().view(2, self.shape.layers, *rows[0].shape)

    def write(self, extent: Extent, rows: Tensor) -> None:
        """Copy rows shaped as `read` gives them into an extent."""
        for layer, copy in zip((*self.keys, *self.values), rows.flatten(0, 1), strict=True):
            layer[extent.start : extent.end] = copy
