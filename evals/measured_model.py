"""The model under test: every answer is as long as was asked for. And engines for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache.engine.engine import Engine
from cache.memory.keys import digest
from cache.model.language_model import LanguageModel
from cache.model.loading import find_device, load_stock, wrap_tokenizer
from cache.native.decoder import PackedWeights
from cache.prompt.plan import Segment
from cache.prompt.tokenizer import ModelTokenizer
from evals import random_model
from evals.floor import ModelCost
from evals.random_prompts import no_stop_tokens


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
        """The model with random weights (`evals.random_model`)."""
        fingerprint = digest("random", repr(sorted(random_model.SHAPE.items())))
        return cls.of(random_model.half_billion(), tokenizer, random_model.NAME, fingerprint, converted)

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
