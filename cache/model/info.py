"""Properties of language models for the engine, and position schemes of model families, without PyTorch."""

from dataclasses import dataclass
from typing import Any, Literal

from cache.errors import ModelError
from cache.memory.kv_shape import KVShape

PositionScheme = Literal["rotary", "absolute", "alibi", "none"]
"""Where modules can be placed. rotary: at any position, by rotating queries. alibi: at any position, by the distance of
position ids. absolute: positions are learned, so a module is encoded for one position. none: nowhere; the model reuses
exact prefixes only."""

FAMILIES: dict[PositionScheme, str] = {
    "rotary": "llama mistral qwen2 qwen3 phi3 gemma gemma2 gemma3_text gpt_neox",
    "absolute": "gpt2 opt",
    "alibi": "bloom mpt",
}
"""Transformers' model types by position scheme. A configuration can still prevent placement (`why_not_placeable`). A
family is added when tests compare it with transformers.
"""

STATIC_ROPE = {"default", "linear", "llama3", "yarn"}

POSITION_LIMITS = ("max_position_embeddings", "max_seq_len", "seq_length")
POSITIONS_OF_BLOOM = 2048  # training length of BLOOM models; most configurations lack it


def find_position_scheme(config: Any, name: str) -> tuple[PositionScheme, str]:
    """Return a model's position scheme, and why modules cannot be placed (empty if they can). Raises ModelError."""
    scheme = next((scheme for scheme, types in FAMILIES.items() if config.model_type in types.split()), None)
    if scheme is None:
        known = ", ".join(sorted(" ".join(FAMILIES.values()).split()))
        raise ModelError(f"model {name!r} is of type {config.model_type!r}; supported types are {known}")
    if getattr(config, "use_bidirectional_attention", False):
        raise ModelError(f"model {name!r} lets tokens see later tokens: choose a causal model")
    reason = why_not_placeable(config)
    return ("none", reason) if reason else (scheme, "")


def why_not_placeable(config: Any) -> str:
    """Return why modules cannot be moved: keys and values depend on more than tokens and a shift. Empty if they can."""
    window = sliding_window(config)
    if window is not None:
        return f"attention is limited to a sliding window of {window} tokens"
    schemes = rope_schemes(config)
    for scheme in schemes:
        if (kind := scheme.get("rope_type", "default")) not in STATIC_ROPE:
            return f"rotary frequencies depend on the length of the prompt (rope type {kind!r})"
    if len(schemes) > 1:
        return "layers differ in their rotary frequencies"
    return ""


def usable_positions(config: Any) -> int:
    """Return the number n of position ids 0 .. n-1 at which the model works as trained. If rotary frequencies depend on
    the prompt's length, the limit is the original training length: up to it they are constant.
    """
    limit: int = next((n for name in POSITION_LIMITS if (n := getattr(config, name, None))), POSITIONS_OF_BLOOM)
    for scheme in rope_schemes(config):
        if scheme.get("rope_type", "default") not in STATIC_ROPE:
            limit = min(limit, scheme.get("original_max_position_embeddings") or limit)
    return limit


def sliding_window(config: Any) -> int | None:
    """Return the maximum number of keys that a query sees in some layer; None if no prompt can exceed it."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not window or window >= usable_positions(config) or (kinds and "sliding_attention" not in kinds):
        return None
    return window


def rope_schemes(config: Any) -> list[dict[str, Any]]:
    """Return the parameters of each set of rotary frequencies. Some families have one set per kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    by_kind = [scheme for scheme in rope.values() if isinstance(scheme, dict)]
    return [scheme for i, scheme in enumerate(by_kind or [rope]) if scheme not in by_kind[:i]]


SCORED_DEPTH = (0.55, 0.7)
"""First layer whose attention scores rows for a question, and the layer after the last, as shares of the depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts about a model. max_positions: usable position ids are 0 .. max_positions-1. vocabulary: token ids are 0 ..
    vocabulary-1. is_elsewhere: the model is remote (`cache.remote`), and its memory is unknown.
    """

    name: str
    fingerprint: str
    position_scheme: PositionScheme
    max_positions: int
    vocabulary: int
    kv: KVShape
    stop_tokens: frozenset[int]
    is_elsewhere: bool = False

    @property
    def is_position_independent(self) -> bool:
        return self.position_scheme in ("rotary", "alibi")

    @property
    def places_modules(self) -> bool:
        """Return whether modules can be reused. If not, only exact prefixes are."""
        return self.position_scheme != "none"

    @property
    def scored_layers(self) -> range:
        first, last = (int(depth * self.kv.layers) for depth in SCORED_DEPTH)
        return range(first, max(last, first + 1))


Weights = Literal["model", "int8", "fp8"]
"""Weights as in the model, or rounded to 8 bits: integers (int8) or floating point (fp8, e4m3)."""
