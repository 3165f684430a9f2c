"""The shared state of the rows of one process: the device, its lower bounds, and the open model.

A model stays open until a row needs another one. So the plan lists the rows of one shape together.
"""

import gc
import random
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import perf_counter

import torch

from cache.engine.engine import Engine
from cache.engine.request import Completion
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
from evals.speed.models import first_token


@dataclass(slots=True, kw_only=True)
class OpenedModel:
    """A model under test. peer: transformers over the same weights. weight_bytes: of all its tensors. documents: of its
    prompts. prefill: times of transformers for a whole prompt, once measured.
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
        """Bytes of keys and values of a token."""
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

    def opened(self, shape: Shape) -> OpenedModel:
        """Return the model of a shape. Raises ModelError if the bundled one is not installed."""
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
        """Return the seconds until the client has the first token, and the answer of that one token."""
        synchronize(self.device)
        started = perf_counter()
        completion = first_token(engine, plan)
        return perf_counter() - started, completion
