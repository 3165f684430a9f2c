"""GGUF files: their metadata, and their tensors as views of the mapped file. Nothing is copied or dequantised.
The contents of a model, and whether it can run packed (`packed_model`), can be read without PyTorch.
Every length is checked against the file, so that a damaged file causes a ModelError of one line, not a traceback.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Numbers

from cache.errors import ModelError
from cache.native import BLOCK_COLUMNS, MOST_RANK, OUTPUTS

if TYPE_CHECKING:
    from torch import Tensor

NUMBERS = ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")
"""Formats of values in `struct`'s notation, indexed by the type number in the file. "": text, array (no format)."""
TEXT, ARRAY = 8, 9
MOST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor. type: GGML's number for its format. shape: outputs first. data: its bytes in the mapping, uint8."""

    type: Numbers
    shape: tuple[int, ...]
    data: "np.ndarray[Any, np.dtype[np.uint8]]"


class GGUFFile:
    """A mapped GGUF file. metadata: by key; arrays of numbers are numpy arrays, arrays of texts are lists. Raises
    ModelError for a file that is damaged, has another version or byte order, or has numbers of an unknown type.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        try:
            with path.open("rb") as file:
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError(f"model file {str(path)!r} cannot be read: {error}") from error
        magic, version = self._bytes(4), self._number("I")
        if magic != b"GGUF" or version not in (2, 3):
            raise self._damaged("it is not a GGUF file of version 2 or 3")
        num_tensors, num_values = self._number("Q"), self._number("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._text()
            self.metadata[key] = self._value(self._number("I"))
        found = [self._tensor_header() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._damaged(f"its alignment is {alignment!r}")
        begin = -(-self._at // alignment) * alignment
        self.tensors = {name: self._tensor(name, shape, kind, begin + offset) for name, shape, kind, offset in found}

    def forget(self, tensor: GGUFTensor) -> None:
        """Release the memory of a tensor's pages. The system reads them from the file again when they are needed."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        begin = tensor.data.ctypes.data - np.frombuffer(self._mapped, np.uint8).ctypes.data
        page = begin // mmap.PAGESIZE * mmap.PAGESIZE
        self._mapped.madvise(mmap.MADV_DONTNEED, page, begin + len(tensor.data) - page)

    def _damaged(self, why: str) -> ModelError:
        return ModelError(f"model file {str(self._path)!r} cannot be read: {why}")

    def _bytes(self, count: int) -> bytes:
        begin, self._at = self._at, self._at + count
        if self._at > len(self._mapped):
            raise self._damaged("it ends early")
        return self._mapped[begin : self._at]

    def _number(self, kind: str) -> Any:
        return struct.unpack("<" + kind, self._bytes(struct.calcsize("<" + kind)))[0]

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _texts(self, count: int) -> list[str]:
        """Read `count` texts in one fast loop: a vocabulary has about a hundred thousand."""
        texts, mapped, at = list[str](), self._mapped, self._at
        for _ in range(count):
            begin = at + 8
            at = begin + int.from_bytes(mapped[at:begin], "little")
            texts.append(mapped[begin:at].decode("utf-8", "replace"))
            if at > len(mapped):
                raise self._damaged("it ends early")
        self._at = at
        return texts

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == ARRAY:
            of, count = self._number("I"), self._number("Q")
            if of == TEXT:
                return self._texts(count)
            size = struct.calcsize("<" + self._format(of))
            return np.frombuffer(self._bytes(count * size), np.dtype("<" + self._format(of)))
        return self._number(self._format(kind))

    def _format(self, kind: int) -> str:
        if kind >= len(NUMBERS) or not NUMBERS[kind]:
            raise self._damaged(f"it has values of the unknown type {kind}")
        return NUMBERS[kind]

    def _tensor_header(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._text(), self._number("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise self._damaged(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        return name, shape, self._number("I"), self._number("Q")

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, begin: int) -> GGUFTensor:
        if kind not in Numbers.__members__.values():
            raise self._damaged(f"tensor {name!r} has numbers of the unknown type {kind}")
        block, size = GGML_QUANT_SIZES[Numbers(kind)]
        numbers = 1
        for count in shape:
            numbers *= count
        if shape[-1] % block or begin + numbers // block * size > len(self._mapped):
            raise self._damaged(f"tensor {name!r} is incomplete")
        data = np.frombuffer(self._mapped, np.uint8, numbers // block * size, begin)
        return GGUFTensor(Numbers(kind), shape, data)


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

HAS_BIAS = ("attn_q", "attn_k", "attn_v")
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")  # keys below `tokenizer.ggml.` of tokens that end an answer
NAMED_ENDS = frozenset({"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>"})
CONTROL = 3  # type of tokens that are not text


class Values:
    """Metadata of a file's architecture. Names omit the architecture's prefix ("block_count": "llama.block_count")."""

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
        """Training length in positions, before rotary frequencies were scaled."""
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
        """Number of positions at which a pass is exact: limited by a window of all layers or LongRoPE's first range."""
        found = int(self["context_length"])
        found = min(found, self.trained_positions) if self.scaling == "longrope" else found
        return found if self.has_local_layers else min(found, self.get("attention.sliding_window") or found)

    @property
    def scale(self) -> float:
        """Factor of attention scores. Gemma's 27 B models have another one; their number of layers identifies them."""
        is_27b = (self.architecture, self["block_count"]) in (("gemma2", 46), ("gemma3", 62))
        size = self["embedding_length"] // self["attention.head_count"] if is_27b else self.head_dim
        return float(size**-0.5)


def tensors_of(file: GGUFFile, values: Values) -> dict[str, GGUFTensor]:
    """Return a file's tensors by name. Joint tensors of Phi are split into their parts."""
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
    """Return the tokens that end an answer: end tokens named in the file, and control tokens in `NAMED_ENDS`."""
    found = {int(token) for key in ENDS if (token := metadata.get(f"tokenizer.ggml.{key}")) is not None}
    kinds = zip(metadata.get("tokenizer.ggml.tokens", ()), metadata.get("tokenizer.ggml.token_type", ()), strict=False)
    return frozenset(found | {i for i, (text, kind) in enumerate(kinds) if kind == CONTROL and text in NAMED_ENDS})


def why_not_packed(file: GGUFFile, adapter: "Mapping[str, tuple[Tensor, Tensor]] | None" = None) -> str:
    """Return why a file cannot run packed, in one line; empty if it can. Checks everything that the C code relies on.
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
            return f"{values['attention.head_count']} query heads for {values.kv_heads} key heads"
        tensors = tensors_of(file, values)
        shapes = shapes_of(values, tensors["token_embd.weight"].shape[0])
        if values.has_local_layers and values["attention.sliding_window"] < 1:
            return "a sliding window of 0 tokens"
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
        return f"its metadata is incomplete ({error})"
    if unknown := tensors.keys() - shapes.keys() - {UNUSED}:
        return f"unknown tensors such as {min(unknown)!r}"
    layers = {module_of(name): name for name in (name.removesuffix(".weight") for name in tensors)}
    for layer, (first, second) in (adapter or {}).items():
        tensor = tensors[f"{layers[layer]}.weight"] if layer in layers else None
        if tensor is None or len(first) > MOST_RANK:
            return f"an adapter for {layer} with rank {len(first)}"
        if tensor.shape != (second.shape[0], first.shape[1]):
            return f"an adapter for {layer} with another shape"
    return ""


SCALINGS = ("none", "linear", "yarn", "longrope")
FACTORS = ("rope_freqs.weight", "rope_factors_short.weight")  # Llama 3.1 and later; Phi
WHOLE_OPTIONAL = ("output.weight", *FACTORS)
UNUSED = "rope_factors_long.weight"  # for positions beyond the training length


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
"""Kinds of packed.h, by the GGUF types that are stored in them."""


def module_of(name: str) -> str:
    """Return transformers' name of a block's linear layer; empty for other names."""
    block, _, layer = name.rpartition(".")
    return f"model.layers.{block.removeprefix('blk.')}.{LINEARS[layer]}" if layer in LINEARS else ""
