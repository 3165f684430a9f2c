"""Models of GGUF files on a processor: weights stay in 4 to 8 bits. They are packed once, tensor by tensor, from the
mapped file into memory, and never dequantised or stored; embeddings are read from the mapping.

Covered are Llama, Mistral (whose files say llama), Qwen 2 and 3, Phi 3 and 4, and Gemma 1 to 3. Layers of Gemma 3 have
windows and angles of their own, so it reuses exact prefixes only; other models run up to their window.
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
from cache.memory.arena import Arena, KVShape
from cache.memory.keys import ENCODER_VERSION, digest
from cache.model.gguf_file import GGUFFile, GGUFTensor
from cache.model.language_model import ModelInfo
from cache.native.decoder import BLOCK_COLUMNS, MOST_RANK, OUTPUTS, DecoderWeights, LayerWeights, Matrix, NativeDecoder

LAYOUT = "packed weights 1"  # part of the fingerprint: activations are rounded too, so KV is its own
GEMMA = ("gemma", "gemma2", "gemma3")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "phi3", *GEMMA)
WITH_BIASES, WITH_HEAD_NORMS, WITH_POST_NORMS = ("qwen2",), ("qwen3", "gemma3"), ("gemma2", "gemma3")
UNPACKED = (Numbers.F32, Numbers.F16, Numbers.BF16)
LINEARS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Linear layers of a block, by their names in a file and in transformers."""
NORMS = {
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
} | {
    "attention_post_norm": "post_attention_norm",
    "mlp_post_norm": "post_ffw_norm",
}
HAS_BIAS = ("attn_q", "attn_k", "attn_v")
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")  # of an answer, among `tokenizer.ggml.`
NAMED_ENDS = frozenset({"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>"})
CONTROL = 3  # type of tokens that are no text


class PackedModel:
    """A `Model` whose whole pass is compiled code, with weights as in a file. library: compiled for bfloat16 KV."""

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
        """file, adapter: covered, see `why_not_packed`."""
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
                dtype=torch.bfloat16,
            ),
            stop_tokens=ends_of(file.metadata),
        )
        self.native = NativeDecoder(weights_of(file, values, library, adapter or {}), library)

    def prepare(self, arena: Arena) -> None:
        """Nothing is prepared."""

    def release(self, arena: Arena) -> None:
        """Nothing was prepared."""

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


class Values:
    """The numbers of a file's architecture, by their names without its prefix."""

    def __init__(self, file: GGUFFile) -> None:
        self.architecture: str = file.metadata.get("general.architecture", "")
        self._metadata = file.metadata

    def __getitem__(self, name: str) -> Any:
        return self._metadata[f"{self.architecture}.{name}"]

    def get(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(f"{self.architecture}.{name}", default)

    @property
    def kv_heads(self) -> int:
        return int(self.get("attention.head_count_kv", self["attention.head_count"]))

    @property
    def head_dim(self) -> int:
        return int(self.get("attention.key_length", self["embedding_length"] // self["attention.head_count"]))

    @property
    def rotary(self) -> int:
        return int(self.get("rope.dimension_count", self.head_dim))

    @property
    def scaling(self) -> str:
        return str(self.get("rope.scaling.type", "none"))

    @property
    def trained_positions(self) -> int:
        """Positions before rotary frequencies were scaled."""
        return int(self.get("rope.scaling.original_context_length", self["context_length"]))

    @property
    def has_local_layers(self) -> bool:
        return self.architecture == "gemma3"

    def is_local(self, layer: int) -> bool:
        pattern = self.get("attention.sliding_window_pattern", 6)
        return self.has_local_layers and bool(
            (layer + 1) % pattern if isinstance(pattern, int) else pattern[layer],
        )

    @property
    def positions(self) -> int:
        """Positions at which a pass is exact: none outside of a window, and none that needs other frequencies."""
        found = int(self["context_length"])
        found = min(found, self.trained_positions) if self.scaling == "longrope" else found
        return found if self.has_local_layers else min(found, self.get("attention.sliding_window") or found)

    @property
    def scale(self) -> float:
        """Of scores: the 27 B models of Gemma, which files tell by their layers only, have their own."""
        is_27b = (self.architecture, self["block_count"]) in (("gemma2", 46), ("gemma3", 62))
        size = self["embedding_length"] // self["attention.head_count"] if is_27b else self.head_dim
        return float(size**-0.5)


def tensors_of(file: GGUFFile, values: Values) -> dict[str, GGUFTensor]:
    """Return a file's tensors by name; joint ones (Phi) as their parts."""
    found = dict(file.tensors)
    queries, keys = values["attention.head_count"] * values.head_dim, values.kv_heads * values.head_dim
    middle = values["feed_forward_length"]
    for block in (f"blk.{layer}." for layer in range(values["block_count"] if values.architecture == "phi3" else 0)):
        for joint, names, counts in (
            ("attn_qkv", HAS_BIAS, (queries, keys, keys)),
            ("ffn_up", ("ffn_gate", "ffn_up"), (middle, middle)),
        ):
            whole = found.pop(f"{block}{joint}.weight", None)
            if whole is None or whole.shape[0] != sum(counts):
                continue
            row, first = len(whole.data) // whole.shape[0], 0
            for name, count in zip(names, counts, strict=True):
                data = whole.data[first * row : (first + count) * row]
                found[f"{block}{name}.weight"] = GGUFTensor(whole.type, (count, *whole.shape[1:]), data)
                first += count
    return found


def ends_of(metadata: Mapping[str, Any]) -> frozenset[int]:
    """Return the tokens that end an answer: those a file names, and control tokens that end a turn in some family."""
    found = {int(token) for key in ENDS if (token := metadata.get(f"tokenizer.ggml.{key}")) is not None}
    kinds = zip(metadata.get("tokenizer.ggml.tokens", ()), metadata.get("tokenizer.ggml.token_type", ()), strict=False)
    return frozenset(found | {i for i, (text, kind) in enumerate(kinds) if kind == CONTROL and text in NAMED_ENDS})


def why_not_packed(file: GGUFFile, adapter: Mapping[str, tuple[Tensor, Tensor]] | None = None) -> str:
    """Return why a file cannot run packed, in one line; empty if it can. Checks all that compiled code relies on.
    adapter: matrices `[rank, inputs]` and `[outputs, rank]`, by the layers' names in transformers.
    """
    values = Values(file)
    if values.architecture not in ARCHITECTURES or values.get("expert_count"):
        return f"architecture {values.architecture!r}"
    try:
        rotary = values.rotary
        if values.scaling not in SCALINGS or ("rope_factors_short.weight" in file.tensors) != (
            values.scaling == "longrope"
        ):
            return f"rope scaling {values.scaling!r}"
        if values.positions < 1 or not values.get("attention.causal", True):
            return f"attention over {values.positions} positions, or of tokens to later ones"
        if values.head_dim % BLOCK_COLUMNS or rotary % 2 or not 0 < rotary <= values.head_dim:
            return f"heads of {values.head_dim} numbers, {rotary} of them rotated"
        if values["attention.head_count"] % values.kv_heads or values["attention.layer_norm_rms_epsilon"] <= 0:
            return f"{values['attention.head_count']} heads for {values.kv_heads} of keys"
        tensors = tensors_of(file, values)
        shapes = shapes_of(values, tensors["token_embd.weight"].shape[0])
        if values.has_local_layers and values["attention.sliding_window"] < 1:
            return "a window of no tokens"
        for name, shape in shapes.items():
            tensor = tensors.get(name)
            if tensor is None and (name.endswith(".bias") or name in WHOLE_OPTIONAL):
                continue
            if tensor is None or tensor.shape != shape:
                return f"tensor {name!r} is missing" if tensor is None else f"tensor {name!r} of shape {tensor.shape}"
            if len(shape) == 2 and (shape[0] % OUTPUTS or shape[1] % BLOCK_COLUMNS):
                return f"layers of {shape[0]} outputs and {shape[1]} inputs"
            if tensor.type not in (*UNPACKED, *(PACKED_KINDS if len(shape) == 2 else ())):
                return f"numbers of type {tensor.type.name}"
    except (KeyError, TypeError, IndexError, ZeroDivisionError) as error:
        return f"its metadata are incomplete ({error})"
    if unknown := tensors.keys() - shapes.keys() - {UNUSED}:
        return f"tensors like {min(unknown)!r}"
    layers = {module_of(name): name for name in (name.removesuffix(".weight") for name in tensors)}
    for layer, (first, second) in (adapter or {}).items():
        tensor = tensors[f"{layers[layer]}.weight"] if layer in layers else None
        if tensor is None or len(first) > MOST_RANK:
            return f"an adapter of {layer} of rank {len(first)}"
        if tensor.shape != (second.shape[0], first.shape[1]):
            return f"an adapter of another shape for {layer}"
    return ""


SCALINGS = ("none", "linear", "yarn", "longrope")
FACTORS = ("rope_freqs.weight", "rope_factors_short.weight")  # Llama 3.1 and later; Phi
WHOLE_OPTIONAL = ("output.weight", *FACTORS)
UNUSED = "rope_factors_long.weight"  # of positions beyond the first limit


def shapes_of(values: Values, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes that tensors must have, by name."""
    hidden, middle = values["embedding_length"], values["feed_forward_length"]
    queries, keys = values["attention.head_count"] * values.head_dim, values.kv_heads * values.head_dim
    outputs = dict(zip(LINEARS, (queries, keys, keys, hidden, middle, middle, hidden), strict=True))
    found: dict[str, tuple[int, ...]] = dict.fromkeys(("token_embd.weight", "output.weight"), (vocabulary, hidden))
    found |= {
        "output_norm.weight": (hidden,),
        **dict.fromkeys(FACTORS, (values.rotary // 2,)),
    }
    for layer in range(values["block_count"]):
        block = f"blk.{layer}."
        inputs = {"attn_output": queries, "ffn_down": middle}
        found |= {f"{block}{name}.weight": (count, inputs.get(name, hidden)) for name, count in outputs.items()}
        if values.architecture in WITH_BIASES:
            found |= {f"{block}{name}.bias": (outputs[name],) for name in HAS_BIAS}
        norms = ["attn_norm", "ffn_norm"]
        norms += ["post_attention_norm", "post_ffw_norm"] if values.architecture in WITH_POST_NORMS else []
        found |= {f"{block}{name}.weight": (hidden,) for name in norms}
        if values.architecture in WITH_HEAD_NORMS:
            found |= {f"{block}{name}.weight": (values.head_dim,) for name in ("attn_q_norm", "attn_k_norm")}
    return found


PACKED_KINDS = {
    Numbers[name]: kind
    for kind, names in ((3, "Q4_0 Q4_1 Q4_K"), (4, "Q5_0 Q5_1 Q5_K"), (5, "Q6_K"), (6, "Q8_0"))
    for name in names.split()
}
"""Kinds of packed.h by the types of files that they hold."""


def weights_of(
    file: GGUFFile, values: Values, library: ctypes.CDLL, adapter: Mapping[str, tuple[Tensor, Tensor]]
) -> DecoderWeights:
    """Return a file's weights, each layer packed when it is asked for."""
    tensors, hidden = tensors_of(file, values), values["embedding_length"]
    memory = PackedMemory(library, [tensor for tensor in tensors.values() if tensor.type in PACKED_KINDS])
    head_dim, is_llama = values.head_dim, values.architecture == "llama"

    def matrices(*names: str) -> list[Matrix]:
        """Weights that are multiplied as one: all packed, or else all in bfloat16."""
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


def module_of(name: str) -> str:
    """Return the name in transformers of a block's linear layer; empty for others."""
    block, _, layer = name.rpartition(".")
    return f"model.layers.{block.removeprefix('blk.')}.{LINEARS[layer]}" if layer in LINEARS else ""


def rotation_of(file: GGUFFile, values: Values) -> tuple[Tensor, float]:
    """Return rotary frequencies, float32 `[D_rotary / 2]`, scaled as the file says, and the factor of its attention."""
    rotary, base = values.rotary, values.get("rope.freq_base", 10000.0)
    found = unscaled(base, rotary)
    scale, attention_factor = values.get("rope.scaling.factor", 1.0), values.get("rope.scaling.attn_factor", 1.0)
    if values.scaling == "linear":
        found = found / scale
    if values.scaling == "yarn":  # fast ones stay as they are
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
    """Return zeros, uint8 `[size]`, in large pages where the system has these: they are read 1.4 times as fast. What is
    never written takes no memory.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # a system without
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


class PackedMemory:
    """Memory for packed tensors, in one piece."""

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
    """Return rows in the order of transformers; files of Llama have those of a head in pairs. turned: 0: not these."""
    return whole.view(-1, turned // 2, 2, whole.shape[1]).transpose(1, 2).reshape(whole.shape) if turned else whole


VIEWS = {Numbers.F32: np.float32, Numbers.F16: np.float16}


def numbers_of(tensor: GGUFTensor) -> Tensor:
    """Return a tensor in float32."""
    rows = tensor.data.view(VIEWS.get(tensor.type, np.uint8)).reshape((1, *tensor.shape)[-2], -1)
    return torch.from_numpy(np.array(dequantize(rows, tensor.type), np.float32).reshape(tensor.shape))


def address_of(tensor: GGUFTensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data.ctypes.data)
