"""Stored form of keys and values outside the KV pool: as in the model, or rounded to 8 bits (half the bytes).

8-bit keys have a scale per channel over all tokens of the module, because channels differ most. Values have a scale per
token and head. Rounding a second time changes nothing, so a module has the same content in every tier. Rounding is
approximate, so a module has another module key in each form (`store`). Out of scope: infinite numbers and NaN.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from cache.memory.kv_shape import KVShape, KVStorage

LARGEST = 127
SCALE_BYTES = 4
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
"""Dtypes of rows, by their name in files."""


def pack(rows: Tensor, storage: KVStorage) -> dict[str, Tensor]:
    """Return the stored form of rows `[2, layers, length, kv_heads, head_dim]`: "kv", the rows themselves; or "keys"
    and "values", int8 `[layers, length, kv_heads, head_dim]`, with float32 scales "key_scales" `[layers, 1, kv_heads,
    head_dim]` and "value_scales" `[layers, length, kv_heads, 1]`.
    """
    if storage == "model":
        return {"kv": rows}
    keys, key_scales = _round(rows[0], over=1)
    values, value_scales = _round(rows[1], over=3)
    return {"keys": keys, "values": values, "key_scales": key_scales, "value_scales": value_scales}


def unpack(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Return rows from their stored form. dtype: of unpacked 8-bit rows. Raises KeyError for an unknown form."""
    if "kv" in tensors:
        return tensors["kv"]
    both = [tensors[f"{name}s"] * tensors[f"{name}_scales"] for name in ("key", "value")]
    return torch.stack(both).to(dtype)


def rounded(rows: Tensor, storage: KVStorage) -> Tensor:
    return unpack(pack(rows, storage), rows.dtype)


def packed_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def kept_bytes_per_token(shape: KVShape, storage: KVStorage) -> int:
    if storage == "model":
        return shape.bytes_per_token
    return shape.layers * shape.kv_heads * (2 * shape.head_dim + SCALE_BYTES)


def layer_layout(shape: KVShape, length: int, storage: KVStorage) -> dict[str, Tensor]:
    size = (2, 1, length, shape.kv_heads, shape.head_dim)
    return pack(torch.empty(size, dtype=DTYPES[shape.dtype], device="meta"), storage)


def to_bytes(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the tensors of `pack` as one uint8 tensor on the same device, larger numbers first for alignment."""
    return torch.cat([tensors[name].view(torch.uint8).flatten() for name in _aligned(tensors)])


def from_bytes(packed: Tensor, layout: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = _aligned(layout)
    parts = torch.split(packed, [layout[name].nbytes for name in names])
    return {
        name: part.view(layout[name].dtype).view(layout[name].shape) for name, part in zip(names, parts, strict=True)
    }


def _aligned(tensors: Mapping[str, Tensor]) -> list[str]:
    return sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))


def _round(rows: Tensor, over: int) -> tuple[Tensor, Tensor]:
    """Round to symmetric int8. Returns numbers and scales. over: the dimension whose numbers share a scale."""
    largest = rows.abs().amax(over, keepdim=True).to(torch.float32)
    scales = (largest / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    return (rows / scales).round().clamp(-LARGEST, LARGEST).to(torch.int8), scales
