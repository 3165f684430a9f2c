"""Language models as transformers' classes: their properties for the engine, and one packed forward pass.

Models are transformers' classes with our attention. BLOOM and MPT have no registry for attention functions, so their
attention modules are replaced; these models then build no masks and biases.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn

from cache.attention.forward_pass import (
    Kernel,
    Pass,
    Rotation,
    RunningPass,
    ScoringFinished,
    attention_function,
    default_kernel,
    never,
)
from cache.attention.items import Chunk, KVView, ScoredChunk
from cache.errors import ModelError
from cache.gpu.graphs import BUCKETS, Bucket, Capture, GraphedPasses, best_kind, capture_for
from cache.memory.arena import Arena, Extent, name_of
from cache.memory.keys import ENCODER_VERSION, digest
from cache.memory.kv_shape import KVShape
from cache.model.info import ModelInfo, find_position_scheme, usable_positions
from cache.native.decoder import PackedWeights, native_decoder_of
from cache.prompt.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from cache.gpu.graphs import PassKind
    from cache.gpu.tiled_pass import TiledPass


class AlibiAttention:
    """Replaces the attention of a BLOOM or MPT model. running: the current pass, set before each forward. slopes:
    float32 `[H]`, the decrease of a head's score per position id.
    """

    def __init__(self, hf: Any) -> None:
        self.running: RunningPass | None = None
        model, heads = hf.transformer, hf.config.num_attention_heads
        if hf.config.model_type == "bloom":
            two = torch.ones(1, 2, dtype=torch.int64, device=hf.device)
            bias = model.build_alibi_tensor(two, heads, torch.float32)
            model.build_alibi_tensor = lambda mask, heads, dtype: mask
            for block in model.h:
                block.self_attention = BloomAttention(block.self_attention, self)
        else:
            bias = model.build_mpt_alibi_tensor(heads, 2, device=hf.device)
            model.build_mpt_alibi_tensor = lambda heads, length, device: None
            for block in model.blocks:
                block.attn = MptAttention(block.attn, self)
        self.slopes: Tensor = bias[:, 0, 1] - bias[:, 0, 0]
        self._mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=hf.device)

    def options(self, running: RunningPass) -> dict[str, Any]:
        """Return arguments for the model's forward: a mask of one element that the model passes on without reading."""
        self.running = running
        return {"attention_mask": self._mask}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Return the result of `Pass.attend` with the heads joined: `[1, T, H*D]`."""
        assert self.running is not None
        return self.running.attend(layer, q, k, v, scale).flatten(2)


class ReplacedAttention(nn.Module):
    """Replaces an attention module of transformers. own: the replaced module."""

    def __init__(self, own: Any, alibi: AlibiAttention) -> None:
        super().__init__()
        self.own, self._alibi = own, alibi


class BloomAttention(ReplacedAttention):
    """The attention of a BLOOM layer."""

    def forward(self, hidden_states: Tensor, residual: Tensor, **_: Any) -> tuple[Tensor, None]:
        """Return the residual plus the attention output, both `[1, T, hidden]`."""
        own = self.own
        fused = own.query_key_value(hidden_states).unflatten(-1, (own.num_heads, 3, -1))  # [1, T, H, 3, D]
        q, k, v = fused.permute(3, 0, 2, 1, 4)
        return residual + own.dense(self._alibi.attend(own.layer_idx, q, k, v, own.inv_norm_factor)), None


class MptAttention(ReplacedAttention):
    """The attention of an MPT layer."""

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        """Return the attention output for hidden states `[1, T, hidden]`, in the same shape."""
        own = self.own
        fused = own.Wqkv(hidden_states)
        if own.clip_qkv:
            fused = fused.clamp(min=-own.clip_qkv, max=own.clip_qkv)
        q, k, v = fused.unflatten(-1, (3, own.n_heads, -1)).permute(2, 0, 3, 1, 4)
        return own.out_proj(self._alibi.attend(own.layer_idx, q, k, v, own.softmax_scale)), None


ATTENTION = "warmdesk"
TRIED_ROWS = 17  # rows of the first small pass: more than a small block of the kernels has


class Model(Protocol):
    """The interface of a model for the engine. By default, `prepare` does nothing and `decode` is not supported."""

    info: ModelInfo
    tokenizer: ChatTokenizer
    device: torch.device

    def prepare(self, arena: Arena) -> None:
        """Prepare fast passes over a pool. Call it before the first pass. It replaces an earlier pool."""
        return

    def release(self, arena: Arena) -> None:
        """Release what `prepare` made for a pool."""
        return

    def forward(
        self,
        chunks: Sequence[Chunk],
        arena: Arena,
        outputs: Sequence[int],
        give_up: Callable[[], bool] = never,
        scored: Sequence[ScoredChunk] = (),
    ) -> Tensor:
        """Run one packed pass over the chunks' rows, in order, and write their KV into the pool. outputs: packed rows
        whose logits are needed. Returns float32 logits `[len(outputs), vocabulary]` on the model's device. give_up:
        called at every layer; if it returns True, PassGivenUp is raised. scored: chunks whose attention in
        `info.scored_layers` is scored; if all chunks are, the pass ends after these layers: KV is incomplete.
        """

    def decode(
        self, chunks: Sequence[Chunk], arena: Arena, steps: int, is_late: Callable[[], bool]
    ) -> list[list[int]] | None:
        """Choose the most likely next token of each chunk and add it to the chunk, `steps` times. Ends earlier after a
        stop token or if is_late returns True. Returns the tokens of each step; None: not supported, call `forward`.
        chunks: one row each, with consecutive slots for all steps. Raises MemoryError.
        """
        return None


class LanguageModel:
    """A transformers causal model that attends over the KV pool. Passes run in compiled code if it supports the model
    (`cache.native`), otherwise in transformers' classes with our attention; on GPUs with our kernels (`cache.gpu`).
    """

    def __init__(
        self,
        hf: Any,
        tokenizer: Any,
        *,
        name: str,
        fingerprint: str,
        kernel: Kernel | None = None,
        compiled: Path | None = None,
        weights: PackedWeights = "model",
        kind: "PassKind | None" = None,
        capture: Capture | None = None,
        buckets: Sequence[Bucket] = BUCKETS,
    ) -> None:
        """compiled: folder for compiled code; None: do not use it. weights: for compiled code; 8 bits change the
        fingerprint. kind: type of passes with GPU kernels; None: the best for the device. capture, buckets: for graphs
        (`cache.gpu.graphs`); capture None: the device's default. Raises ModelError for an unknown family.
        """
        self.info = model_info(hf, tokenizer, name=name, fingerprint=fingerprint)
        self.tokenizer = tokenizer
        self.device: torch.device = hf.device
        self.kernel = kernel or default_kernel(self.device)
        self._heads = hf.config.num_attention_heads
        self._capture = capture
        self._buckets = buckets
        self._graphed: GraphedPasses | None = None
        self.rotation = find_rotation(hf) if self.info.position_scheme == "rotary" else None
        self.native = None if compiled is None else native_decoder_of(hf, self.rotation, compiled, weights)
        if self.native is not None and weights != "model":
            self.info = replace(self.info, fingerprint=digest(self.info.fingerprint, weights))
        self._alibi = AlibiAttention(hf) if self.info.position_scheme == "alibi" else None
        self._slopes = self._alibi.slopes if self._alibi else None
        if self._alibi is None:
            from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # takes seconds: only with a model

            ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention_function)
            hf.set_attn_implementation(ATTENTION)
        self._hf: Any = None if self.native is not None else hf.eval()  # else the weights would be in memory twice
        self._kind = kind or best_kind(self.device, self._try)

    @torch.no_grad()
    def prepare(self, arena: Arena) -> None:
        capture = self._capture or capture_for(self.device)
        if capture is None or self._kind is None or not self._kind.can_be_captured:
            return
        tiled = cast("type[TiledPass]", self._kind)
        self._graphed = GraphedPasses(
            self._compute,
            partial(tiled, arena=arena, rotation=self.rotation, slopes=self._slopes),
            arena,
            capture,
            heads=self._heads,
            vocabulary=self.info.vocabulary,
            moves=self.info.is_position_independent,
            buckets=self._buckets,
        )

    def release(self, arena: Arena) -> None:
        if self._graphed is not None and self._graphed.arena is arena:
            self._graphed = None

    @torch.no_grad()
    def forward(
        self,
        chunks: Sequence[Chunk],
        arena: Arena,
        outputs: Sequence[int],
        give_up: Callable[[], bool] = never,
        scored: Sequence[ScoredChunk] = (),
    ) -> Tensor:
        if self.native is not None:
            return self.native.forward(chunks, arena, outputs, give_up, scored, self.info.scored_layers)
        graphed = self._graphed
        if graphed is not None and graphed.arena is arena and not scored:
            logits = graphed.forward(chunks, outputs, give_up)
            if logits is not None:
                return logits
        tokens = torch.tensor([token for chunk in chunks for token in chunk.tokens], device=self.device)
        kept = torch.tensor(outputs, device=self.device) if outputs else 1
        with suppress(ScoringFinished):
            logits = self._compute(self._new_pass(chunks, arena, give_up, scored), tokens, kept)
            if outputs:
                return logits.float()
        return torch.empty(0, self.info.vocabulary, device=self.device)

    def decode(
        self, chunks: Sequence[Chunk], arena: Arena, steps: int, is_late: Callable[[], bool]
    ) -> list[list[int]] | None:
        native, ends = self.native, self.info.stop_tokens
        return None if native is None else native.decode(chunks, arena, steps, ends, is_late)

    @torch.no_grad()
    def _try(self, kind: "PassKind") -> None:
        """Run two small passes of a kind: a row after a module, then a prompt and a row together. This compiles the
        kernels for few rows and for many rows. Raises their errors.
        """
        arena = Arena(self.info.kv, 4 + TRIED_ROWS, self.device)
        for layer in (*arena.keys, *arena.values):
            layer.zero_()
        views = [KVView(Extent(0, 2), 1 if self.info.is_position_independent else 0)]
        row = Chunk([0], [5], 1, [Extent(2, 2)], views)
        prompt = Chunk([0] * TRIED_ROWS, [*range(3, 3 + TRIED_ROWS)], 0, [Extent(4, TRIED_ROWS)], views)
        for chunks in ([row], [prompt, row]):
            running = kind.of(chunks, arena, self._heads, rotation=self.rotation, slopes=self._slopes)
            rows = sum(len(chunk.tokens) for chunk in chunks)
            logits = self._compute(running, torch.zeros(rows, dtype=torch.int64, device=self.device), rows)
            if not bool(logits.isfinite().all()):
                raise ArithmeticError("its results are infinite or undefined numbers")

    def _compute(self, plan: RunningPass, tokens: Tensor, outputs: Tensor | int) -> Tensor:
        """Return logits `[N, vocabulary]`. tokens: int64 `[T]`. outputs: rows, int64 `[N]`, or N for the last N."""
        alibi = self._alibi
        options = alibi.options(plan) if alibi else {"position_ids": plan.positions.unsqueeze(0), "plan": plan}
        result = self._hf(input_ids=tokens.unsqueeze(0), use_cache=False, logits_to_keep=outputs, **options)
        logits: Tensor = result.logits[0]
        return logits

    def _new_pass(
        self, chunks: Sequence[Chunk], arena: Arena, give_up: Callable[[], bool], scored: Sequence[ScoredChunk]
    ) -> RunningPass:
        """Return a pass, with GPU kernels if available. GPU kernels compute no scores: a scored pass uses none."""
        if self._kind is not None and not scored:
            of = self._kind.of
            return of(chunks, arena, self._heads, rotation=self.rotation, slopes=self._slopes, give_up=give_up)
        return Pass(
            chunks,
            arena,
            self.kernel,
            self.device,
            rotation=self.rotation,
            slopes=self._slopes,
            scored=scored,
            scored_layers=self.info.scored_layers,
            give_up=give_up,
        )


def model_info(hf: Any, tokenizer: Any, *, name: str, fingerprint: str) -> ModelInfo:
    """Read a transformers model's configuration. Raises ModelError for an unknown family."""
    config = hf.config
    heads = config.num_attention_heads
    kv = KVShape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=name_of(hf.dtype),
    )
    rope = getattr(config, "rope_parameters", None) or {}
    return ModelInfo(
        name=name,
        fingerprint=digest(fingerprint, ENCODER_VERSION, str(hf.dtype), repr(sorted(rope.items(), key=str))),
        position_scheme=find_position_scheme(config, name)[0],
        max_positions=usable_positions(config),
        vocabulary=hf.get_input_embeddings().weight.shape[0],
        kv=kv,
        stop_tokens=stop_tokens(hf, tokenizer),
    )


def stop_tokens(hf: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    for holder in (hf.config, getattr(hf, "generation_config", None), getattr(tokenizer, "_tokenizer", None)):
        eos = getattr(holder, "eos_token_id", None)
        found.update([eos] if isinstance(eos, int) else eos or [])
    return frozenset(found)


def find_rotation(hf: Any) -> Rotation:
    found = [tensor for m in hf.modules() if isinstance(tensor := getattr(m, "inv_freq", None), Tensor)]
    if len(found) != 1:
        raise ModelError(f"model type {hf.config.model_type!r} has {len(found)} sets of rotary frequencies, not one")
    return Rotation(found[0].float())
