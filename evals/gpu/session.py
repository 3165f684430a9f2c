"""State that the rows of one process share: device, lower bounds, open model, sizes.

The lower bounds are measured in the same process as the results compared with them, each as the best of several:
  memory    a copy within its memory reads and writes every byte: 2 * size / seconds
  products  a product of two matrices of width n has 2 * n^3 operations
  host      a copy from pinned host memory: size / seconds
On a CPU the same is measured with ordinary memory. Work on a GPU is timed by its events, answers by the wall clock.

Models have random weights, which take the same time as trained ones. A model stays open until a row needs another one.
So the plan lists the rows of one shape together. A GPU uses the full sizes. The tiny sizes take seconds on a CPU.
"""

import gc
import importlib.metadata
import random
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, models
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from cache.engine.engine import Engine
from cache.engine.request import Completion
from cache.memory.keys import digest
from cache.model.language_model import LanguageModel
from cache.model.loading import default_dtype, load_stock
from cache.model.source import wrap_tokenizer
from cache.planning.costs import SHAPES
from cache.prompt.plan import Plan
from cache.prompt.tokenizer import ModelTokenizer
from evals.peers.random_prompts import SYSTEM_TOKENS, RandomDocuments, no_stop_tokens, token_ids, tokens
from evals.peers.transformers_peer import TransformersPeer
from evals.report import processor
from evals.speed.models import Floor, ModelCost, first_token, shortest, wall_seconds

Size = Literal["full", "tiny"]


def config_of(model: str) -> dict[str, int]:
    """Return the sizes of a model of `warmdesk plan`, by their names in transformers."""
    shape = SHAPES[model]
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes. cached: tokens of system text and documents that a prompt reuses, in `modules` modules. question: fresh
    tokens. conversations: number of simultaneous answers; shared_modules: the modules they share; shared_tokens: tokens
    of each. many: modules of the largest set; many_tokens: tokens of each; asked: requests that count; budgets: modules
    that fit in device and host memory; drawn: modules of a request. repeats: maximum runs of each timing. rounds: how
    often requests are sent, to check whether memory grows. copied, product: bytes and width to measure the GPU.
    """

    cached: int = 4096
    modules: int = 8
    question: int = 32
    conversations: int = 64
    shared_modules: int = 16
    shared_tokens: int = 512
    answer: int = 64
    many: int = 20_000
    many_tokens: int = 32
    asked: int = 400
    drawn: int = 4
    budgets: tuple[tuple[int, int], ...] = ((500, 1500), (2000, 4000), (6000, 8000))
    repeats: int = 15
    rounds: int = 20
    copied: int = 2 << 30
    product: int = 8192


SIZES: dict[Size, Sizes] = {
    "full": Sizes(),
    "tiny": Sizes(
        cached=72,
        modules=2,
        question=4,
        conversations=3,
        shared_modules=2,
        shared_tokens=16,
        answer=4,
        many=24,
        many_tokens=8,
        asked=12,
        drawn=2,
        budgets=((4, 4), (8, 8)),
        repeats=2,
        rounds=4,
        copied=1 << 20,
        product=64,
    ),
}


Shape = Literal["8b", "4b", "0.5b", "bundled", "tiny"]

CONFIGS: dict[str, Callable[[], Any]] = {
    "8b": lambda: LlamaConfig(**config_of("Llama-3.1-8B"), max_position_embeddings=131_072),
    "4b": lambda: Qwen3Config(
        **config_of("Qwen3-4B"), head_dim=128, max_position_embeddings=40_960, tie_word_embeddings=True
    ),
    "0.5b": lambda: Qwen2Config(**config_of("Qwen2.5-0.5B"), max_position_embeddings=32_768, tie_word_embeddings=True),
    "tiny": lambda: LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    ),
}
NAMES: dict[Shape, str] = {
    "8b": "Llama 3.1 8B, random",
    "4b": "Qwen3 4B, random",
    "0.5b": "Qwen2.5 0.5B, random",
    "bundled": "the bundled model",
    "tiny": "tiny, random",
}


def random_model(shape: Shape, device: torch.device, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(CONFIGS[shape](), dtype=dtype).eval()


def word_tokenizer(vocabulary: int) -> Any:
    """Return a transformers tokenizer with `vocabulary` words; the first one replaces unknown text."""
    words = {f"t{number}": number for number in range(vocabulary)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "t0")), unk_token="t0")


def twin(hf: Any) -> Any:
    """Copy a transformers model without copying its tensors. Changes to the modules of one do not affect the other."""
    return deepcopy(hf, {id(tensor): tensor for tensor in tensors_of(hf)})


def tensors_of(hf: nn.Module) -> list[torch.Tensor]:
    return [*hf.parameters(), *hf.buffers()]


Times = list[float]  # results of several runs, in their unit


class Share:
    """The time limit of a row. It starts when this object is made."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end


def repeated(run: Callable[[], float], repeats: int, share: Share, *, warm_up: int = 2) -> Times:
    """Run several times, after warm-up runs in which kernels are compiled. Stops at the end of the share, but runs at
    least once.
    """
    for _ in range(warm_up):
        if not share.is_over:
            run()
    values = [run()]
    while len(values) < repeats and not share.is_over:
        values.append(run())
    return values


def device_seconds(device: torch.device, run: Callable[[], object]) -> float:
    if device.type != "cuda":
        return wall_seconds(run)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


REPEATS = 10
PACKAGES = ("torch", "transformers", "triton", "torchao")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFloor:
    """Measured limits of the GPU. own: its reads and multiplications. host_bytes_per_s: copies from the host."""

    own: Floor
    host_bytes_per_s: float


def measure_card(device: torch.device, sizes: Sizes, dtype: torch.dtype) -> CardFloor:
    fastest = partial(shortest, timed=partial(device_seconds, device), repeats=REPEATS)
    source = torch.ones(sizes.copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    in_host = torch.ones(sizes.copied // 2, dtype=torch.uint8, pin_memory=device.type == "cuda")
    part = target[: len(in_host)]
    left, right = torch.randn(2, sizes.product, sizes.product, device=device).to(dtype)
    return CardFloor(
        own=Floor(
            threads=1,
            bytes_per_s=2 * len(source) / fastest(lambda: target.copy_(source)),
            flops=2 * sizes.product**3 / fastest(lambda: left @ right),
        ),
        host_bytes_per_s=len(in_host) / fastest(lambda: part.copy_(in_host, non_blocking=True)),
    )


def describe_card(device: torch.device) -> dict[str, Any]:
    versions = {name: version_of(name) for name in PACKAGES}
    if device.type != "cuda":
        return {"device": str(device), "card": processor(), **versions}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": str(device),
        "card": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        **versions,
    }


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(slots=True, kw_only=True)
class OpenedModel:
    """A model under test. peer: transformers over the same weights. weight_bytes: size of all its tensors. documents:
    the documents in its prompts. prefill: measured times of transformers for a whole prompt.
    """

    model: LanguageModel
    cost: ModelCost
    peer: TransformersPeer
    weight_bytes: int
    documents: RandomDocuments
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    prefill: Times | None = None

    @property
    def vocabulary(self) -> int:
        return self.model.info.vocabulary

    @property
    def token_bytes(self) -> int:
        return self.model.info.kv.bytes_per_token


class Session:
    """The state of one process. folder: for temporary files. models: folder of the converted bundled model."""

    def __init__(self, device: torch.device, size: Size, folder: Path, models: Path) -> None:
        self.device, self.folder, self.models = device, folder, models
        self.sizes: Sizes = SIZES[size]
        self.is_tiny = size == "tiny"
        self.dtype = default_dtype(device) if device.type == "cuda" else torch.float32
        self.share = Share(0)
        self._opened: tuple[Shape, OpenedModel] | None = None

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @cached_property
    def floor(self) -> CardFloor:
        return measure_card(self.device, self.sizes, self.dtype)

    def name_of(self, shape: Shape) -> str:
        return NAMES["tiny" if self.is_tiny else shape]

    def opened(self, shape: Shape | None) -> OpenedModel:
        assert shape is not None
        wanted = "tiny" if self.is_tiny else shape
        if self._opened is None or self._opened[0] != wanted:
            self.close()
            self._opened = wanted, self._open(wanted)
        return self._opened[1]

    def close(self) -> None:
        self._opened = None
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()

    def _open(self, shape: Shape) -> OpenedModel:
        tokenizer: ModelTokenizer
        if shape == "bundled":
            hf, found, fingerprint = load_stock(None, device=self.device, converted=self.models)
            tokenizer = wrap_tokenizer(found, None)
        else:
            hf = random_model(shape, self.device, self.dtype)
            tokenizer = ModelTokenizer(word_tokenizer(hf.config.vocab_size))
            fingerprint = digest("random", shape)
        cost, weight_bytes = ModelCost.of(hf), sum({id(t): t.nbytes for t in tensors_of(hf)}.values())
        peer = TransformersPeer(twin(hf))
        peer.hf.set_attn_implementation("sdpa")
        model = LanguageModel(hf, tokenizer, name=NAMES[shape], fingerprint=fingerprint)
        model.info = no_stop_tokens(model.info)
        sizes, vocabulary = self.sizes, model.info.vocabulary
        size = sizes.cached - SYSTEM_TOKENS
        documents = RandomDocuments.make(size, vocabulary, random.Random(0), -(-size // sizes.modules))
        return OpenedModel(model=model, cost=cost, peer=peer, weight_bytes=weight_bytes, documents=documents)

    def prompt(self, subject: OpenedModel, *, in_order: bool = False) -> Plan:
        """Make a prompt of all documents and a new question. in_order: in a fixed order, else in a new one."""
        question = tokens(self.sizes.question, subject.vocabulary, subject.rng)
        if in_order:
            return subject.documents.plan(question, subject.documents.modules)
        return subject.documents.shuffled(question, subject.rng)

    def full_prefill(self, subject: OpenedModel) -> Times:
        """Return seconds to the first token of transformers for whole prompts, measured once for each model."""
        if subject.prefill is None:
            subject.prefill = repeated(
                lambda: subject.peer.first_token(token_ids(self.prompt(subject)), keep=False),
                self.sizes.repeats,
                self.share,
            )
        return subject.prefill

    def first_token(self, engine: Engine, plan: Plan) -> tuple[float, Completion]:
        synchronize(self.device)
        started = perf_counter()
        completion = first_token(engine, plan)
        return perf_counter() - started, completion
