"""Language models: loading, what the engine must know of them, and one packed forward pass.

Models are transformers' own classes with our attention registered in place of theirs, or put in its place where there
is no registry (`alibi`). Where their files are is in `model_files`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2Config
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as transformers_logging

from cache.attention.forward_pass import AttentionScoring, Pass, Rotation, ScoringFinished, attention_function
from cache.attention.items import Chunk
from cache.attention.kernels import Kernel, default_kernel
from cache.errors import ModelError
from cache.memory.allocator import Extent
from cache.memory.arena import Arena, KVShape
from cache.memory.keys import digest
from cache.model.adapters import merge_adapter
from cache.model.alibi import AlibiAttention
from cache.model.families import Placement, find_placement, usable_positions
from cache.model.files import ModelSource, bundled_gguf, explained, find_source
from cache.model.packed_linear import prepack
from cache.prompt.model_tokenizer import ModelTokenizer

ATTENTION = "warmdesk"

SCORED_DEPTH = (0.55, 0.7)
"""Where the layers lie whose attention tells which rows of modules a question is about, as shares of the depth."""

FEW_ROWS = 2
NARROW_BELOW = 768
"""A pass of so few rows through a model of so small a hidden size runs on one thread: starting several for each of its
operations costs more than they save (bundled model, 2,048 tokens of context, two cores: 16.7 against 14.5 tokens/s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What the engine must know of a model. max_positions: usable position ids are 0 .. max_positions-1.

    placement_reason: one sentence why modules cannot be placed, empty if they can.
    """

    name: str
    fingerprint: str
    placement: Placement
    placement_reason: str
    max_positions: int
    kv: KVShape
    stop_tokens: frozenset[int]

    @property
    def is_position_independent(self) -> bool:
        """Whether a module encoded once can be placed at any offset."""
        return self.placement in ("rotary", "alibi")

    @property
    def places_modules(self) -> bool:
        """Whether modules can be reused at all; if not, the model runs with exact prefixes only."""
        return self.placement != "none"


class Model(Protocol):
    """What the engine asks of a model; `LanguageModel` is one."""

    info: ModelInfo
    tokenizer: ModelTokenizer
    device: torch.device

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        chunks: Sequence[Chunk],
        arena: Arena,
        outputs: Sequence[int],
    ) -> Tensor:
        """One packed pass: writes the KV of all rows; float32 logits `[len(outputs), vocabulary]`."""

    def score_attention(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        chunk: Chunk,
        arena: Arena,
        rows: int,
        extents: Sequence[Extent],
    ) -> list[Tensor]:
        """How much the last `rows` of a chunk look at extents it sees: float32 `[L]` each. The chunk's KV is spoilt."""


class LanguageModel:
    """A causal language model that attends over an arena.

    hf: a transformers causal model; its attention is replaced, and on CPU in bfloat16 its linear layers are
    prepacked (bitwise the same results). Raises ModelError for a family that is not in `FAMILIES`.
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
        self._alibi = AlibiAttention(hf) if self.info.placement == "alibi" else None
        if self._alibi is None:
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

    @torch.no_grad()
    def score_attention(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        chunk: Chunk,
        arena: Arena,
        rows: int,
        extents: Sequence[Extent],
    ) -> list[Tensor]:
        """How much the last `rows` of a chunk look at extents it sees: float32 `[L]` each (see
        `attention.AttentionScoring`).

        The pass ends at the last watched layer, so the chunk's own KV is not whole afterwards.
        """
        layers = self.info.kv.layers
        scored_layers = frozenset(range(int(SCORED_DEPTH[0] * layers), max(int(SCORED_DEPTH[1] * layers), 1)))
        scores = {extent: torch.zeros(extent.length, device=self.device) for extent in extents}
        scoring = AttentionScoring(scored_layers, rows, scores)
        with suppress(ScoringFinished):
            self._forward(tokens, positions, [chunk], arena, [], scoring)
        return [scoring.scores[extent].cpu() for extent in extents]

    def _forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        chunks: Sequence[Chunk],
        arena: Arena,
        outputs: Sequence[int],
        scoring: AttentionScoring | None = None,
    ) -> Tensor:
        slopes = None if self._alibi is None else self._alibi.slopes
        plan = Pass.plan(chunks, positions, arena, self.kernel, self.device, rotation=self.rotation, slopes=slopes)
        plan.scoring = scoring
        kept = torch.tensor(list(outputs), dtype=torch.long, device=self.device)
        if self._alibi is None:
            options = {"position_ids": plan.positions.unsqueeze(0), "plan": plan}
        else:
            options = self._alibi.options(plan)
        result = self._hf(
            input_ids=torch.tensor([list(tokens)], device=self.device),
            use_cache=False,
            logits_to_keep=kept if len(outputs) else 1,
            **options,
        )
        logits: Tensor = result.logits[0]
        return logits.float() if len(outputs) else logits[:0].float()


def model_info(hf: Any, tokenizer: Any, *, name: str, fingerprint: str) -> ModelInfo:
    """Read a transformers model's configuration. Raises ModelError for an unknown family."""
    config = hf.config
    placement, reason = find_placement(config, name)
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
        placement_reason=reason,
        max_positions=usable_positions(config),
        kv=kv,
        stop_tokens=stop_tokens(hf, tokenizer),
    )


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


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where it is fast (twice float32 on processors that have it), else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    supported = hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if supported else torch.float32


# --- loading -----------------------------------------------------------------------------------------------------


def load_model(
    name: str | None,
    *,
    device: str,
    converted: Path,
    dtype: torch.dtype | None = None,
    adapter: Path | None = None,
) -> LanguageModel:
    """Load a model by name: None for the bundled one, a folder, a `.gguf` file, or a name on the model hub.

    converted: folder for dequantised GGUF files. adapter: folder of a LoRA adapter that is merged into the weights and
    becomes part of the fingerprint. Raises ModelError with what to do.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    target = find_device(device)
    hf, tokenizer, fingerprint = load_stock(name, device=target, converted=converted, dtype=dtype)
    if adapter is not None:
        hf, adapted = merge_adapter(hf, adapter)
        fingerprint = digest(fingerprint, adapted)
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
    source = find_source(name, converted)
    with explained(source):
        tokenizer = AutoTokenizer.from_pretrained(source.place, local_files_only=source.is_local)
        hf = AutoModelForCausalLM.from_pretrained(
            source.place, dtype=dtype, local_files_only=source.is_local, use_safetensors=True
        )
        hf = hf.to(device)
    return hf, tokenizer, source.fingerprint or f"hub:{name}@{getattr(hf.config, '_commit_hash', None)}"


def load_tokenizer(name: str | None, *, converted: Path) -> tuple[ModelTokenizer, int]:
    """A model's tokenizer and its usable positions, without its weights. Raises ModelError."""
    transformers_logging.set_verbosity_error()
    source = find_source(name, converted)
    with explained(source):
        tokenizer = AutoTokenizer.from_pretrained(source.place, local_files_only=source.is_local)
        config = AutoConfig.from_pretrained(source.place, local_files_only=source.is_local)
        return ModelTokenizer(tokenizer), usable_positions(config)


def folder_placement(folder: Path) -> str:
    """Why modules of the model in a folder cannot be placed, empty if they can; only its configuration is read.

    Raises ModelError if it cannot be read or its family is not supported.
    """
    source = ModelSource(str(folder), True, "")
    with explained(source):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return find_placement(config, source.place)[1]


def random_model(shape: Mapping[str, int], tokenizer: ModelTokenizer, *, name: str) -> LanguageModel:
    """A Qwen2 model of a given shape with random weights, on the CPU: takes as long as a real one, and says nothing.

    shape: fields of transformers' Qwen2Config.
    """
    torch.manual_seed(0)
    config = Qwen2Config(**shape)
    hf = AutoModelForCausalLM.from_config(config, dtype=default_dtype(torch.device("cpu")))
    return LanguageModel(hf, tokenizer, name=name, fingerprint=digest("random", repr(sorted(shape.items()))))


def find_device(device: str) -> torch.device:
    """A device by name. Raises ModelError if PyTorch cannot use it here."""
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"device {device!r} cannot be used ({reason}): try --device cpu") from error
    return found
