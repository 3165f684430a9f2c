"""Tiny random models of all families, built in code, and the oracle: one full forward pass with a block mask."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MptConfig,
    OPTConfig,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from cache.attention.forward_pass import Kernel, flash_cpu, matmul
from cache.attention.items import Chunk, KVView
from cache.memory.arena import Extent
from cache.memory.keys import digest
from cache.model.language_model import LanguageModel
from cache.prompt.parts import Text
from cache.prompt.plan import Plan, Segment
from cache.prompt.tokenizer import PLAIN

VOCABULARY = 300
SIZES: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 4096,
    "eos_token_id": 299,
    "bos_token_id": 298,
    "pad_token_id": 299,
}
"""Of a model of any family whose configuration has these names."""


class ByteTokenizer:
    """Bytes as token ids; `<x>` in structural text is one special token (256 + the letter's place)."""

    template = PLAIN
    filler = 0
    sink_prefix: tuple[int, ...] = ()

    def encode(self, run: Sequence[Text]) -> list[int]:
        return [token for piece in run for token in self._piece(piece)]

    def _piece(self, piece: Text) -> list[int]:
        text = piece.text
        if piece.structural and len(text) == 3 and text[0] == "<" and text[2] == ">":
            return [256 + ord(text[1]) - ord("a")]
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


def tiny_llama() -> LlamaConfig:
    """The smallest shape in which nothing is left out: several layers, grouped heads."""
    return LlamaConfig(**SIZES, num_key_value_heads=2)


def random_weights(config: Any, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' own model with weights large enough that a wrong layout shows."""
    torch.manual_seed(seed)
    hf = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.12)
    return hf


KERNELS: dict[str, Kernel] = {"matmul": matmul, "flash_cpu": flash_cpu}
CONFIGS: dict[str, Any] = {
    "llama": tiny_llama,
    "llama3-rope": lambda: LlamaConfig(
        **SIZES,
        num_key_value_heads=2,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    ),
    "yarn": lambda: LlamaConfig(
        **SIZES,
        num_key_value_heads=2,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    ),
    "linear-rope": lambda: LlamaConfig(
        **SIZES, num_key_value_heads=2, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    ),
    "multi-query": lambda: LlamaConfig(**SIZES, num_key_value_heads=1),
    "qwen2": lambda: Qwen2Config(**SIZES, num_key_value_heads=2),
    "gemma": lambda: GemmaConfig(**SIZES, num_key_value_heads=1, head_dim=256),
    "qwen3": lambda: Qwen3Config(**SIZES, num_key_value_heads=3, head_dim=16),
    "mistral": lambda: MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=None),
    "phi3": lambda: Phi3Config(**SIZES, num_key_value_heads=2),
    "gpt_neox": lambda: GPTNeoXConfig(**SIZES),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=3, n_head=6, n_positions=4096, eos_token_id=299, bos_token_id=298
    ),
    "opt": lambda: OPTConfig(**SIZES, ffn_dim=96, word_embed_proj_dim=48, dropout=0.0),
    "bloom": lambda: BloomConfig(
        vocab_size=VOCABULARY, hidden_size=48, n_layer=3, n_head=6, eos_token_id=299, bos_token_id=298
    ),
    "mpt": lambda: MptConfig(
        vocab_size=VOCABULARY,
        d_model=48,
        n_layers=3,
        n_heads=6,
        max_seq_len=4096,
        attn_config={"clip_qkv": 1.0, "softmax_scale": 0.5},
        eos_token_id=299,
        bos_token_id=298,
    ),
}
FOREVER = 1 << 40
WINDOW = 24
SHORT = {**SIZES, "max_position_embeddings": 400}
UNPLACEABLE: dict[str, Any] = {
    "mistral-window": lambda: MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=WINDOW),
    "phi3-window": lambda: Phi3Config(**SIZES, num_key_value_heads=6, sliding_window=WINDOW),
    "qwen2-half-windowed": lambda: Qwen2Config(
        **SIZES, num_key_value_heads=2, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "gemma2": lambda: Gemma2Config(
        **SIZES, num_key_value_heads=2, head_dim=16, sliding_window=WINDOW, attn_logit_softcapping=1.5
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **SIZES, num_key_value_heads=2, head_dim=16, sliding_window=WINDOW, sliding_window_pattern=2
    ),
    "dynamic-rope": lambda: LlamaConfig(
        **SHORT, num_key_value_heads=2, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    ),
    "longrope": lambda: Phi3Config(
        **SIZES,
        num_key_value_heads=2,
        original_max_position_embeddings=400,
        rope_parameters={
            "rope_type": "longrope",
            "factor": 10.24,
            "rope_theta": 10000.0,
            "short_factor": [1.1, 1.2, 1.3, 1.4],
            "long_factor": [4.0, 5.0, 6.0, 7.0],
        },
    ),
}
"""Models that run with exact prefixes only."""

LEARNED_POSITIONS = {"gpt2", "opt"}  # families whose modules are encoded where they stand


@cache
def _stock(family: str, seed: int, dtype: torch.dtype, layers: int) -> Any:
    config = (CONFIGS | UNPLACEABLE)[family]()
    if layers < config.num_hidden_layers:
        config.num_hidden_layers = layers
    return random_weights(config, seed, dtype)


def stock(family: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, layers: int = 3) -> Any:
    made = _stock(family, seed, dtype, layers)
    torch.manual_seed(seed)  # what a test draws then does not depend on the tests before
    return deepcopy(made)  # takes half as long as making it


def build(
    family: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, layers: int = 3, **options: Any
) -> LanguageModel:
    hf = stock(family, seed, dtype, layers)
    return LanguageModel(hf, ByteTokenizer(), name=family, fingerprint=digest(family, str(seed)), **options)


@dataclass
class OracleRows:
    """Tokens of the oracle's single pass, who sees whom, and which row is the plan's last token."""

    tokens: list[int]
    positions: list[int]
    allowed: Tensor
    last: int


def oracle_rows(plan: Plan) -> OracleRows:
    """Lay a plan out for one forward pass with a block mask.

    Every segment stands there whole, once for each place where it is put, behind copies of its conditioning prefix and
    its left context, at the distances at which it was encoded, seen by itself. The left context of a prefix is seen by
    that prefix only. Computed tokens see every prompt token of the spans before theirs and of their own up to
    themselves, and nothing else of the segments.
    """
    tokens: list[int] = []
    positions: list[int] = []
    segment_of_row: list[int | None] = []
    seen_until: list[int] = []
    order: list[int] = []  # in the prompt; -1: not part of it
    begins = list(accumulate((len(span.tokens) for span in plan.spans), initial=0))
    places = dict.fromkeys((span.segment, span.offset) for span in plan.spans if span.segment is not None)
    for number, (segment, offset) in enumerate(places):
        spans = [
            (begin, span)
            for begin, span in zip(begins, plan.spans, strict=False)
            if span.segment == segment and span.offset == offset
        ]
        shown = {span.row + i: begin + i for begin, span in spans for i in range(len(span.tokens))}
        for part in segment.with_ancestors():
            end = len(tokens) + len(part.left_context) + len(part.tokens)
            tokens.extend((*part.left_context, *part.tokens))
            positions.extend(p + offset for p in (*part.left_context_positions, *part.positions))
            seen_until.extend([end] * len(part.left_context) + [FOREVER] * len(part.tokens))
            order.extend([-1] * len(part.left_context))
            order.extend(shown.get(row, -1) if part is segment else -1 for row in range(len(part.tokens)))
            segment_of_row.extend([number] * (end - len(segment_of_row)))
    for begin, span in zip(begins, plan.spans, strict=False):
        if span.segment is None:
            tokens.extend(span.tokens)
            positions.extend(range(span.start, span.end))
            segment_of_row.extend([None] * len(span.tokens))
            seen_until.extend([FOREVER] * len(span.tokens))
            order.extend(range(begin, begin + len(span.tokens)))
    size = len(tokens)
    at = torch.tensor(order)
    row = torch.arange(size)
    segment = torch.tensor([-1 if number is None else number for number in segment_of_row])
    inside = (segment[:, None] == segment) & (row[:, None] >= row) & (row[:, None] < torch.tensor(seen_until))
    before = (at >= 0) & (at[:, None] >= at)
    allowed = torch.where((segment == -1)[:, None], before, inside)
    return OracleRows(
        tokens, positions, allowed, positions.index(plan.next_position - 1, size - len(plan.spans[-1].tokens))
    )


def oracle_logits(hf: Any, plan: Plan) -> Tensor:
    """Logits of the plan's last token by one full forward pass. For learned positions copies stand at their own ids."""
    rows = oracle_rows(plan)
    positions = torch.tensor([rows.positions])
    if hf.config.model_type not in LEARNED_POSITIONS:
        positions = positions - positions.min().clamp(max=0)  # a shift of all ids changes nothing
    mask = rows.allowed[None, None]
    if hf.config.model_type in {"bloom", "mpt"}:
        mask = written_out_alibi(hf, positions, mask)
    with torch.no_grad():
        out = hf(input_ids=torch.tensor([rows.tokens]), position_ids=positions, attention_mask=mask)
    return out.logits[0, rows.last]


def written_out_alibi(hf: Any, positions: Tensor, allowed: Tensor) -> Tensor:
    """Make a BLOOM or MPT model take its bias from `positions` `[1, S]` instead of from the order of its tokens.

    Returns the mask as the family's own attention wants it: BLOOM adds it, MPT reads what is true as hidden.
    """
    heads = hf.config.num_attention_heads
    if hf.config.model_type == "bloom":
        slopes = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)[:, :, 1:]
        hf.transformer.build_alibi_tensor = lambda mask, heads, dtype: slopes * positions
        return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    slopes = -build_mpt_alibi_tensor(heads, 2)[:, :, :1]
    hf.transformer.build_mpt_alibi_tensor = lambda heads, length, device: slopes * positions
    return ~allowed


def make_chunk(first: int, last: int, own: Extent, views: Sequence[KVView], positions: Sequence[int] = ()) -> Chunk:
    """Rows of a sequence whose tokens, and unless they are given positions, do not matter."""
    return Chunk([0] * (last - first), positions or [0] * (last - first), first, [own], views)


def slots_of(extents: Iterable[Extent]) -> list[int]:
    return [slot for extent in extents for slot in range(extent.start, extent.end)]


def save(folder: Path, family: str = "llama", seed: int = 0) -> Path:
    """The same model in a folder, as transformers loads it, with a tokenizer of bytes."""
    stock(family, seed).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def make_segment(name: str, text: str, prefix: Segment | None = None, start: int | None = None) -> Segment:
    base = 0 if prefix is None else prefix.start + len(prefix.tokens)
    return Segment(name=name, tokens=tuple(text.encode()), start=base if start is None else start, prefix=prefix)
