"""How keys and values are kept outside the arena: as the model has them, or rounded to 8 bits, in half the bytes.

Keys of 8 bits have a scale for each channel over all tokens of the module, because their channels differ most; values
have one for each token and head. Rounded rows stay the same when they are rounded again, so a module has one content
wherever it comes from. Rounding is approximate: modules of either kind have other keys (`cache.memory.store`). Not
covered: rows that are not finite.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from cache.memory.arena import KVShape

KVStorage = Literal["model", "int8"]
"""Keys and values as the model has them, or rounded to 8 bits."""
LARGEST = 127
SCALE_BYTES = 4
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
"""Of rows, by the name that files give them."""


def pack(rows: Tensor, storage: KVStorage) -> dict[str, Tensor]:
    """What is kept of rows `[2, layers, length, kv_heads, head_dim]`: "kv", the rows themselves; or "keys" and
    "values", int8 `[layers, length, kv_heads, head_dim]`, with float32 scales "key_scales" `[layers, 1, kv_heads,
    head_dim]` and "value_scales" `[layers, length, kv_heads, 1]`.
    """
    if storage == "model":
        return {"kv": rows}
    keys, key_scales = _round(rows[0], over=1)
    values, value_scales = _round(rows[1], over=3)
    return {"keys": keys, "values": values, "key_scales": key_scales, "value_scales": value_scales}


def unpack(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """The rows, as `pack` was given them but for rounding; those of 8 bits in a dtype. Raises KeyError if it is neither
    kind.
    """
    if "kv" in tensors:
        return tensors["kv"]
    both = [tensors[f"{name}s"] * tensors[f"{name}_scales"] for name in ("key", "value")]
    return torch.stack(both).to(dtype)


def rounded(rows: Tensor, storage: KVStorage) -> Tensor:
    """Rows as they are when they come back from where they are kept."""
    return unpack(pack(rows, storage), rows.dtype)


def packed_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of what is kept."""
    return sum(tensor.nbytes for tensor in tensors.values())


def kept_bytes_per_token(shape: KVShape, storage: KVStorage) -> int:
    """Bytes of what is kept of a token, without the scales of keys, which all tokens of a module share."""
    if storage == "model":
        return shape.bytes_per_token
    return shape.layers * shape.kv_heads * (2 * shape.head_dim + SCALE_BYTES)


def layer_layout(shape: KVShape, length: int, storage: KVStorage) -> dict[str, Tensor]:
    """What `pack` gives for one layer of a module of so many tokens: shapes and dtypes, without contents."""
    size = (2, 1, length, shape.kv_heads, shape.head_dim)
    return pack(torch.empty(size, dtype=shape.dtype, device="meta"), storage)


def to_bytes(tensors: Mapping[str, Tensor]) -> Tensor:
    """What `pack` gave, as one uint8 tensor on the same device, larger numbers first, so that all stay aligned."""
    return torch.cat([tensors[name].view(torch.uint8).flatten() for name in _aligned(tensors)])


def from_bytes(packed: Tensor, layout: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `to_bytes` was given, in the same memory. layout: shapes and dtypes of it."""
    names = _aligned(layout)
    parts = torch.split(packed, [layout[name].nbytes for name in names])
    return {
        name: part.view(layout[name].dtype).view(layout[name].shape) for name, part in zip(names, parts, strict=True)
    }


def _aligned(tensors: Mapping[str, Tensor]) -> list[str]:
    return sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))


def _round(rows: Tensor, over: int) -> tuple[Tensor, Tensor]:
    """Symmetric 8 bits, and their scales. over: the dimension whose numbers share a scale."""
    largest = rows.abs().amax(over, keepdim=True).to(torch.float32)
    scales = (largest / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    return (rows / scales).round().clamp(-LARGEST, LARGEST).to(torch.int8), scales
