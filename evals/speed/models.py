"""The models under test, with answers that always have the requested length, and engines for them.

One model has random weights: speed does not depend on the values of weights.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from app.domain.settings import Settings
from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Completion, Request, Reuse
from cache.memory.keys import digest
from cache.memory.store import Store
from cache.model.language_model import LanguageModel
from cache.model.loading import default_dtype, find_device, load_stock, wrap_tokenizer
from cache.native.decoder import PackedWeights
from cache.planning.costs import SHAPES
from cache.prompt.plan import Plan, Segment
from cache.prompt.tokenizer import ModelTokenizer
from evals.peers.random_prompts import answer_of, no_stop_tokens
from evals.report import describe_machine
from evals.speed.floor import ModelCost

NAME = "0.5B shape, random"


def config_of(model: str) -> dict[str, int]:
    """Return the sizes of a model that `warmdesk plan` knows, as transformers names them."""
    shape = SHAPES[model]
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
    }


SHAPE = config_of("Qwen2.5-0.5B") | {"max_position_embeddings": 32_768}


def random_half_billion() -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE), dtype=default_dtype(torch.device("cpu"))).eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A model, and the cost of its passes."""

    model: LanguageModel
    cost: ModelCost

    @classmethod
    def load(cls, settings: Settings, weights: PackedWeights = "model") -> "Measured":
        name, converted = settings.model, settings.models_folder
        hf, tokenizer, fingerprint = load_stock(name, device=find_device("cpu"), converted=converted)
        return cls.of(hf, wrap_tokenizer(tokenizer, name), name or "bundled", fingerprint, converted, weights)

    @classmethod
    def half_billion(cls, tokenizer: ModelTokenizer, converted: Path) -> "Measured":
        fingerprint = digest("random", repr(sorted(SHAPE.items())))
        return cls.of(random_half_billion(), tokenizer, NAME, fingerprint, converted)

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
        """Wrap and change transformers' own model. converted: folder for compiled code."""
        cost = ModelCost.of(hf)
        model = LanguageModel(hf, tokenizer, name=name, fingerprint=fingerprint, compiled=converted, weights=weights)
        model.info = no_stop_tokens(model.info)
        return cls(model=model, cost=cost)

    def described(self) -> dict[str, str]:
        info = self.model.info
        return {"machine": describe_machine(), "model": info.name, "dtype": str(info.kv.dtype).removeprefix("torch.")}


@contextmanager
def warm_engine(
    model: LanguageModel, tokens: int, segments: Sequence[Segment] = (), **options: Any
) -> Iterator[Engine]:
    """Open an engine with KV memory for `tokens` tokens and encode the segments. options: of `Engine`."""
    engine = Engine(model, memory=tokens * model.info.kv.bytes_per_token, **options).start()
    try:
        if segments:
            engine.encode(segments).result()
        yield engine
    finally:
        engine.close()


def first_token(engine: Engine, plan: Plan, reuse: Reuse = "on") -> Completion:
    return engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=1), reuse=reuse)).completion


def decode_rate(engine: Engine, plans: Sequence[Plan], sampling: Sampling, reuse: Reuse = "on") -> float:
    """Answer all prompts at once. Returns the tokens after the first of each answer, per second from the first token of
    all to the last of all.
    """
    started, answers = [], []
    for plan in plans:
        started.append(time.perf_counter())
        answers.append(engine.submit(Request(plan=plan, sampling=sampling, reuse=reuse)))
    timings = [answer.completion.timings for answer in answers]
    first = min(at + 1e-3 * timing.ttft for at, timing in zip(started, timings, strict=True))
    last = max(at + 1e-3 * timing.total for at, timing in zip(started, timings, strict=True))
    return len(plans) * (sampling.max_tokens - 1) / (last - first)


def most_slots_used(engine: Engine, plans: Sequence[Plan], answer_tokens: int) -> int:
    answers = [engine.submit(Request(plan=plan, sampling=answer_of(answer_tokens))) for plan in plans]
    used = 0
    for answer in answers:
        for _ in answer:
            used = max(used, engine.call(_slots_in_use))
    return max(used, engine.call(_slots_in_use))


def _slots_in_use(store: Store) -> int:
    return store.device.allocator.capacity - store.device.allocator.free_slots
