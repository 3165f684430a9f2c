"""Model families: how modules of each can be placed and why not, and how far position ids go."""

from typing import Any, Literal

from cache.errors import ModelError

PositionScheme = Literal["rotary", "absolute", "alibi", "none"]
"""rotary: anywhere, by rotating queries. alibi: anywhere, by the distance of position ids. absolute: positions are
learned, so a module is encoded where it stands. none: not at all; such a model reuses exact prefixes only."""

FAMILIES: dict[PositionScheme, str] = {
    "rotary": "llama mistral qwen2 qwen3 phi3 gemma gemma2 gemma3_text gpt_neox",
    "absolute": "gpt2 opt",
    "alibi": "bloom mpt",
}
"""Transformers' model types by position scheme, unless the configuration forbids it (`why_not_placeable`). A family
enters this table when the oracle tests cover it."""

STATIC_ROPE = {"default", "linear", "llama3", "yarn"}

POSITION_LIMITS = ("max_position_embeddings", "max_seq_len", "seq_length")
POSITIONS_OF_BLOOM = 2048
"""What BLOOM models were trained with; most of their configurations do not say."""


def find_position_scheme(config: Any, name: str) -> tuple[PositionScheme, str]:
    """How modules of a model are placed, and why not (empty if they are). Raises ModelError if it cannot be served."""
    scheme = next((scheme for scheme, types in FAMILIES.items() if config.model_type in types.split()), None)
    if scheme is None:
        known = ", ".join(sorted(" ".join(FAMILIES.values()).split()))
        raise ModelError(f"model {name!r} is of type {config.model_type!r}; supported types are {known}")
    if getattr(config, "use_bidirectional_attention", False):
        raise ModelError(f"model {name!r} lets tokens see later ones; only causal models can be served")
    reason = why_not_placeable(config)
    return ("none", reason) if reason else (scheme, "")


def why_not_placeable(config: Any) -> str:
    """Why a module's keys and values depend on more than its own tokens and a shift; empty if they do not."""
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
    """Position ids 0 .. n-1 at which the model works as it was trained to. Rotary frequencies that depend on the length
    of the prompt are constant up to the length the model was first trained with, so that is the limit.
    """
    limit: int = next((n for name in POSITION_LIMITS if (n := getattr(config, name, None))), POSITIONS_OF_BLOOM)
    for scheme in rope_schemes(config):
        if scheme.get("rope_type", "default") not in STATIC_ROPE:
            limit = min(limit, scheme.get("original_max_position_embeddings") or limit)
    return limit


def sliding_window(config: Any) -> int | None:
    """Keys a query of some layer sees at most, or None if no prompt is long enough for that to matter."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not window or window >= usable_positions(config) or (kinds and "sliding_attention" not in kinds):
        return None
    return window


def rope_schemes(config: Any) -> list[dict[str, Any]]:
    """The parameters of each different set of rotary frequencies. Some families have one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    by_kind = [scheme for scheme in rope.values() if isinstance(scheme, dict)]
    return [scheme for i, scheme in enumerate(by_kind or [rope]) if scheme not in by_kind[:i]]
