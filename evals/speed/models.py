"""The models under test, whose answers always have the requested length, and engines for them.

One model has random weights: speed does not depend on the values of weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from cache.engine.engine import Engine
from cache.memory.keys import digest
from cache.model.language_model import LanguageModel
from cache.model.loading import default_dtype, find_device, load_stock, wrap_tokenizer
from cache.native.decoder import PackedWeights
from cache.prompt.plan import Segment
from cache.prompt.tokenizer import ModelTokenizer
from evals.peers.random_prompts import no_stop_tokens
from evals.speed.floor import ModelCost

NAME = "0.5B shape, random"
SHAPE = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
}


def half_billion() -> Any:
    """transformers' own model on the CPU, with the same weights in every call."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE), dtype=default_dtype(torch.device("cpu"))).eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A model, and what its passes cost."""

    model: LanguageModel
    cost: ModelCost

    @classmethod
    def load(cls, name: str | None, converted: Path, weights: PackedWeights = "model") -> "Measured":
        """On the CPU. Raises ModelError."""
        hf, tokenizer, fingerprint = load_stock(name, device=find_device("cpu"), converted=converted)
        return cls.of(hf, wrap_tokenizer(tokenizer, name), name or "bundled", fingerprint, converted, weights)

    @classmethod
    def half_billion(cls, tokenizer: ModelTokenizer, converted: Path) -> "Measured":
        """The model with random weights."""
        fingerprint = digest("random", repr(sorted(SHAPE.items())))
        return cls.of(half_billion(), tokenizer, NAME, fingerprint, converted)

    @classmethod
    def of(
        cls,
        hf: Any,
        tokenizer: ModelTokenizer,
        name: str,
        fingerprint: str,
        converted: Path,
        weights: PackedWeights = "model",
    ) -> "Measured":
        """Of transformers' own model, which is changed by it. converted: folder for compiled code."""
        cost = ModelCost.of(hf)
        model = LanguageModel(hf, tokenizer, name=name, fingerprint=fingerprint, compiled=converted, weights=weights)
        model.info = no_stop_tokens(model.info)
        return cls(model=model, cost=cost)

    @property
    def dtype(self) -> str:
        """Of weights and KV, as people write it."""
        return str(self.model.info.kv.dtype).removeprefix("torch.")


@contextmanager
def warm_engine(model: LanguageModel, tokens: int, segments: Sequence[Segment]) -> Iterator[Engine]:
    """An engine with KV memory for so many tokens that has encoded the segments."""
    engine = Engine(model, memory=tokens * model.info.kv.bytes_per_token).start()
    try:
        engine.encode(segments).result()
        yield engine
    finally:
        engine.close()
