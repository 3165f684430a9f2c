"""What the rows of one process share: the device, its floors, and the model that was opened last.

A model is kept until a row wants another one, so that those of one shape stand beside each other in the plan.
"""

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Completion, Request
from cache.memory.keys import digest
from cache.model.language_model import LanguageModel
from cache.model.loading import default_dtype, load_stock, wrap_tokenizer
from cache.prompt.plan import Plan
from cache.prompt.tokenizer import ModelTokenizer
from evals.gpu.card import CardFloor, Share, Times, measure_card, repeated, synchronize
from evals.gpu.sizes import NAMES, SIZES, Shape, Size, Sizes, random_model, tensors_of, twin, word_tokenizer
from evals.peers.random_prompts import SYSTEM_TOKENS, RandomDocuments, no_stop_tokens, token_ids, tokens
from evals.peers.transformers_peer import TransformersPeer
from evals.speed.floor import ModelCost


@dataclass(slots=True, kw_only=True)
class OpenedModel:
    """A model that is measured. peer: transformers over the same weights. weight_bytes: of all its tensors. documents:
    what its prompts are about. prefill: times of transformers for a whole prompt, once they were measured.
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
        """Token ids are below it."""
        return self.model.info.vocabulary

    @property
    def token_bytes(self) -> int:
        """Keys and values of a token."""
        return self.model.info.kv.bytes_per_token


class Session:
    """For the rows of one process. folder: for files that are needed meanwhile. models: where the bundled model is kept
    once it was converted.
    """

    def __init__(self, device: torch.device, size: Size, folder: Path, models: Path) -> None:
        self.device, self.folder, self.models = device, folder, models
        self.sizes: Sizes = SIZES[size]
        self.is_tiny = size == "tiny"
        self.dtype = default_dtype(device) if device.type == "cuda" else torch.float32
        self.share = Share(0)
        self._opened: tuple[Shape, OpenedModel] | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether what is measured says anything of a GPU."""
        return self.device.type == "cuda"

    @cached_property
    def floor(self) -> CardFloor:
        """Of this card, measured in this process."""
        return measure_card(self.device, self.sizes, self.dtype)

    def name_of(self, shape: Shape) -> str:
        """Of the model that stands for a shape."""
        return NAMES["tiny" if self.is_tiny else shape]

    def opened(self, shape: Shape) -> OpenedModel:
        """The model of a shape. Raises ModelError if the bundled one is not installed."""
        wanted = "tiny" if self.is_tiny else shape
        if self._opened is None or self._opened[0] != wanted:
            self.close()
            self._opened = wanted, self._open(wanted)
        return self._opened[1]

    def close(self) -> None:
        """Give the model's memory back."""
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
        """All documents and a new question; in_order: as in the prompt before, else in a new order."""
        question = tokens(self.sizes.question, subject.vocabulary, subject.rng)
        if in_order:
            return subject.documents.plan(question, subject.documents.modules)
        return subject.documents.shuffled(question, subject.rng)

    def full_prefill(self, subject: OpenedModel) -> Times:
        """Seconds to the first token of transformers for whole prompts; measured once for each model."""
        if subject.prefill is None:
            subject.prefill = repeated(
                lambda: subject.peer.first_token(token_ids(self.prompt(subject)), keep=False),
                self.sizes.repeats,
                self.share,
            )
        return subject.prefill

    def first_token(self, engine: Engine, plan: Plan) -> tuple[float, Completion]:
        """Seconds until the first token is here, as whoever asks sees it, and the answer of that one token."""
        synchronize(self.device)
        started = perf_counter()
        completion = engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=1))).completion
        return perf_counter() - started, completion


@contextmanager
def running(subject: OpenedModel, tokens: int, **options: Any) -> Iterator[Engine]:
    """An engine with KV memory for so many tokens. options: of `Engine`."""
    engine = Engine(subject.model, memory=tokens * subject.token_bytes, **options).start()
    try:
        yield engine
    finally:
        engine.close()
