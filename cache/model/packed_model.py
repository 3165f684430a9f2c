"""Models of GGUF files on a CPU. Weights stay in 4 to 8 bits. They are packed once, tensor by tensor, from the mapped
file into memory, and never dequantised or stored. Embeddings are read from the mapped file.

Llama, Mistral (architecture "llama" in its files), Qwen 2 and 3, Phi 3 and 4, Gemma 1 to 3 are supported. Some layers
of Gemma 3 have a window and other angles, so it reuses exact prefixes only. Other models run within their window.
"""

import ctypes
import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as Numbers
from gguf.quants import dequantize
from torch import Tensor

from cache.attention.forward_pass import never
from cache.attention.items import Chunk, ScoredChunk
from cache.memory.arena import Arena
from cache.memory.keys import ENCODER_VERSION, digest
from cache.memory.kv_shape import KVShape
from cache.model.gguf_file import (
    FACTORS,
    GEMMA,
    HAS_BIAS,
    LINEARS,
    PACKED_KINDS,
    GGUFFile,
    GGUFTensor,
    Values,
    ends_of,
    module_of,
    tensors_of,
)
from cache.model.info import ModelInfo
from cache.model.language_model import Model
from cache.native.decoder import DecoderWeights, LayerWeights, Matrix, NativeDecoder

LAYOUT = "packed weights 1"  # part of the fingerprint: activations are also rounded, so KV differs from other layouts
NORMS = {
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
} | {
    "attention_post_norm": "post_attention_norm",
    "mlp_post_norm": "post_ffw_norm",
}


class PackedModel(Model):
    """A `Model` that runs in compiled code, with the weights of a GGUF file. library: C code for KV in bfloat16."""

    def __init__(
        self,
        file: GGUFFile,
        tokenizer: Any,
        library: ctypes.CDLL,
        adapter: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        *,
        name: str,
        fingerprint: str,
    ) -> None:
        """file, adapter: both must be supported, see `why_not_packed`."""
        values = Values(file)
        self.tokenizer, self.device = tokenizer, torch.device("cpu")
        self.info = ModelInfo(
            name=name,
            fingerprint=digest(fingerprint, ENCODER_VERSION, LAYOUT),
            position_scheme="none" if values.has_local_layers else "rotary",
            max_positions=values.positions,
            vocabulary=file.tensors["token_embd.weight"].shape[0],
            kv=KVShape(
                layers=values["block_count"],
                kv_heads=values.kv_heads,
                head_dim=values.head_dim,
                dtype="bfloat16",
            ),
            stop_tokens=ends_of(file.metadata),
        )
        self.native = NativeDecoder(weights_of(file, values, library, adapter or {}), library)

    def forward(
        self,
        chunks: Sequence[Chunk],
        arena: Arena,
        outputs: Sequence[int],
        give_up: Callable[[], bool] = never,
        scored: Sequence[ScoredChunk] = (),
    ) -> Tensor:
        return self.native.forward(chunks, arena, outputs, give_up, scored, self.info.scored_layers)

    def decode(
        self, chunks: Sequence[Chunk], arena: Arena, steps: int, is_late: Callable[[], bool]
    ) -> list[list[int]] | None:
        return self.native.decode(chunks, arena, steps, self.info.stop_tokens, is_late)


def weights_of(
    file: GGUFFile, values: Values, library: ctypes.CDLL, adapter: Mapping[str, tuple[Tensor, Tensor]]
) -> DecoderWeights:
    """Return a file's weights. Each layer is packed when the iterator reaches it."""
    tensors, hidden = tensors_of(file, values), values["embedding_length"]
    memory = PackedMemory(library, [tensor for tensor in tensors.values() if tensor.type in PACKED_KINDS])
    head_dim, is_llama = values.head_dim, values.architecture == "llama"

    def matrices(*names: str) -> list[Matrix]:
        """Return weights that are multiplied together: all packed, or all in bfloat16 if one cannot be packed."""
        found = [tensors[f"{name}.weight"] for name in names]
        is_packed = all(tensor.type in PACKED_KINDS for tensor in found)
        made = []
        for name, tensor in zip(names, found, strict=True):
            turned = head_dim if is_llama and name.endswith(("attn_q", "attn_k")) else 0
            bias = tensors.get(f"{name}.bias")
            added = None if bias is None else numbers_of(bias)
            pair = adapter.get(module_of(name))
            outputs, inputs = tensor.shape
            if is_packed:
                weights, kind = memory.pack(tensor, turned), PACKED_KINDS[tensor.type]
                made.append(Matrix(weights, outputs, inputs, kind, added, pair))
            else:
                whole = unturned(numbers_of(tensor), turned).bfloat16()
                whole = whole if pair is None else (whole + pair[1] @ pair[0]).bfloat16()
                made.append(Matrix(whole, outputs, inputs, bias=added))
            file.forget(tensor)
        return made

    def layer(index: int) -> LayerWeights:
        names = {name: f"blk.{index}.{name}" for name in LINEARS}
        qkv, gate_up = matrices(*(names[name] for name in HAS_BIAS)), matrices(names["ffn_gate"], names["ffn_up"])
        norms = {key: tensors.get(f"blk.{index}.{name}.weight") for key, name in NORMS.items()}
        (out,), (down,) = matrices(names["attn_output"]), matrices(names["ffn_down"])
        return LayerWeights(
            qkv,
            out,
            gate_up,
            down,
            {key: numbers_of(norm) for key, norm in norms.items() if norm is not None},
            values.is_local(index),
        )

    embedding = tensors["token_embd.weight"]
    frequencies, attention_factor = rotation_of(file, values)
    local = unscaled(values.get("rope.freq_base_swa", 10000.0), values.rotary)
    (head,) = matrices("output" if "output.weight" in tensors else "token_embd")
    return DecoderWeights(
        heads=values["attention.head_count"],
        kv_heads=values.kv_heads,
        head_dim=head_dim,
        epsilon=values["attention.layer_norm_rms_epsilon"],
        frequencies=frequencies,
        attention_factor=attention_factor,
        embedding=embedding.data,
        embedding_type=embedding.type,
        num_layers=values["block_count"],
        layers=map(layer, range(values["block_count"])),
        final_norm=numbers_of(tensors["output_norm.weight"]),
        head=head,
        scale=values.scale,
        is_gelu=values.architecture in GEMMA,
        embedding_scale=hidden**0.5 if values.architecture in GEMMA else 1.0,
        score_cap=values.get("attn_logit_softcapping") or 0.0,
        logit_cap=values.get("final_logit_softcapping") or 0.0,
        window=values["attention.sliding_window"] if values.has_local_layers else 0,
        local_frequencies=local if values.has_local_layers else None,
    )


def rotation_of(file: GGUFFile, values: Values) -> tuple[Tensor, float]:
    """Return rotary frequencies, float32 `[D_rotary / 2]`, scaled as the file requires, and its attention factor."""
    rotary, base = values.rotary, values.get("rope.freq_base", 10000.0)
    found = unscaled(base, rotary)
    scale, attention_factor = values.get("rope.scaling.factor", 1.0), values.get("rope.scaling.attn_factor", 1.0)
    if values.scaling == "linear":
        found = found / scale
    if values.scaling == "yarn":  # high frequencies are not scaled
        bounds = (values.get("rope.scaling.yarn_beta_fast", 32.0), values.get("rope.scaling.yarn_beta_slow", 1.0))
        trained, most = values.trained_positions, rotary - 1.0
        first, last = (rotary / 2 * math.log(trained / (2 * math.pi * turns)) / math.log(base) for turns in bounds)
        low, high = min(max(math.floor(first), 0.0), most), min(max(math.ceil(last), 0.0), most)
        slow = ((torch.arange(rotary // 2) - low) / max(0.001, high - low)).clamp(0, 1)
        found = found / scale * slow + found * (1 - slow)
        attention_factor *= 1 + 0.1 * math.log(scale)
    factors = next((file.tensors[name] for name in FACTORS if name in file.tensors), None)
    return (found if factors is None else found / numbers_of(factors)), attention_factor


def unscaled(base: float, rotary: int) -> Tensor:
    found: Tensor = base ** -(torch.arange(0, rotary, 2).float() / rotary)
    return found


def in_large_pages(size: int) -> Tensor:
    """Return zeros, uint8 `[size]`, in large pages if the system supports them: reading is 1.4 times as fast. Pages
    that are never written take no memory.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # the system has no large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


class PackedMemory:
    """Memory for all packed tensors, allocated at once."""

    def __init__(self, library: ctypes.CDLL, tensors: Sequence[GGUFTensor]) -> None:
        library.warmdesk_packed_bytes.restype = ctypes.c_size_t
        self._library = library
        self._free = in_large_pages(sum(map(self._bytes_of, tensors)) + 1)

    def pack(self, tensor: GGUFTensor, turned: int) -> Tensor:
        size = self._bytes_of(tensor)
        made, self._free = self._free[:size], self._free[size:]
        (rows, columns), to = map(ctypes.c_long, tensor.shape), ctypes.c_void_p(made.data_ptr())
        threads = torch.get_num_threads()
        self._library.warmdesk_repack(int(tensor.type), address_of(tensor), rows, columns, turned, threads, to)
        return made

    def _bytes_of(self, tensor: GGUFTensor) -> int:
        return int(self._library.warmdesk_packed_bytes(int(tensor.type), *map(ctypes.c_long, tensor.shape)))


def unturned(whole: Tensor, turned: int) -> Tensor:
    """Return rows in transformers' order. Llama files interleave a head's halves. turned: head size; 0: no change."""
    return whole.view(-1, turned // 2, 2, whole.shape[1]).transpose(1, 2).reshape(whole.shape) if turned else whole


VIEWS = {Numbers.F32: np.float32, Numbers.F16: np.float16}


def numbers_of(tensor: GGUFTensor) -> Tensor:
    """Dequantise a tensor to float32."""
    rows = tensor.data.view(VIEWS.get(tensor.type, np.uint8)).reshape((1, *tensor.shape)[-2], -1)
    return torch.from_numpy(np.array(dequantize(rows, tensor.type), np.float32).reshape(tensor.shape))


def address_of(tensor: GGUFTensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data.ctypes.data)
