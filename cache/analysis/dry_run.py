"""What an engine would compute for a series of requests, counted by the engine itself without a model.

Admission, store, eviction and prefix tree are the real ones. The arena has room for as many tokens, but with a row of
one byte each, and the model returns zeros. One token is generated per request; timings mean nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cache.attention.forward_pass import never
from cache.attention.items import Chunk
from cache.attention.scoring import ScoredChunk
from cache.engine.engine import Engine
from cache.engine.request import Request, Usage
from cache.memory.arena import Arena, KVShape
from cache.model.language_model import ModelInfo
from cache.prompt.tokenizer import ChatTokenizer

NO_KV = KVShape(layers=1, kv_heads=1, head_dim=1, dtype=torch.int8)


class CountingModel:
    """A model for the engine that computes nothing."""

    def __init__(self, info: ModelInfo, tokenizer: ChatTokenizer) -> None:
        self.info = replace(info, kv=NO_KV, stop_tokens=frozenset())
        self.tokenizer = tokenizer
        self.device = torch.device("cpu")

    def prepare(self, arena: Arena) -> None:
        """Nothing is computed."""

    def release(self, arena: Arena) -> None:
        """As `prepare`."""

    def forward(
        self,
        chunks: Sequence[Chunk],
        arena: Arena,
        outputs: Sequence[int],
        give_up: Callable[[], bool] = never,
        scored: Sequence[ScoredChunk] = (),
    ) -> Tensor:
        """Zeros `[len(outputs), 1]`: token 0 is the likeliest. Nothing is scored: the first rows are as good as any."""
        return torch.zeros(len(outputs), 1)


def count_tokens(requests: Sequence[Request], info: ModelInfo, tokenizer: ChatTokenizer, memory: int) -> list[Usage]:
    """Usage of each request when they are answered one after another from a cold start.

    info, tokenizer: of the model. memory: bytes of the arena it would have. Raises CacheError as the engine does.
    """
    slots = max(1, memory // info.kv.bytes_per_token)
    engine = Engine(CountingModel(info, tokenizer), memory=slots * NO_KV.bytes_per_token).start()
    try:
        one_token = [replace(r, sampling=replace(r.sampling, max_tokens=1)) for r in requests]
        return [engine.submit(request).completion.usage for request in one_token]
    finally:
        engine.close()
