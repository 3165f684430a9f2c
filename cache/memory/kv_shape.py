"""The shape and the stored form of keys and values, and the size of memory for them: types that do not need PyTorch."""

from dataclasses import dataclass
from typing import Literal

DType = Literal["float32", "bfloat16", "float16", "int8"]
"""PyTorch's name of a number format."""
_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
KVStorage = Literal["model", "int8"]  # keys and values as in the model, or rounded to 8 bits
ArenaSize = int | Literal["auto"]  # bytes, or "auto": as much as fits


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """Shape of one token's keys and values."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: DType

    @property
    def number_bytes(self) -> int:
        return _BYTES[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.number_bytes
