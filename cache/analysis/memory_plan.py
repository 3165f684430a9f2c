"""Estimate reuse without a model: dry-run requests, group them, and find the hit rate of a memory size.

The dry run uses the engine's admission, store, eviction and prefix tree. The KV pool has as many tokens as the real
one, with two bytes each, and the model returns zeros. One token is generated per request; timings mean nothing. `group`
puts requests that share modules, and then a prefix, next to each other. `replay` repeats recorded uses of modules from
an empty memory. Out of scope: the KV of conversations, and the disk tier.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from cache.attention.forward_pass import never
from cache.attention.items import Chunk, ScoredChunk
from cache.engine.engine import Engine
from cache.engine.request import Request, Usage
from cache.errors import CapacityError
from cache.memory.arena import Arena
from cache.memory.device import CacheEntry
from cache.memory.keys import PUBLIC_TENANT
from cache.memory.kv_shape import KVShape
from cache.memory.store import Store
from cache.model.info import ModelInfo
from cache.model.language_model import Model
from cache.prompt.plan import Plan, Segment
from cache.prompt.tokenizer import ChatTokenizer

NO_KV = KVShape(layers=1, kv_heads=1, head_dim=1, dtype="int8")


class CountingModel(Model):
    """A stand-in for a model. The engine can run it, but it computes nothing."""

    def __init__(self, info: ModelInfo, tokenizer: ChatTokenizer) -> None:
        self.info = replace(info, kv=NO_KV, stop_tokens=frozenset())
        self.tokenizer = tokenizer
        self.device = torch.device("cpu")

    def forward(
        self,
        chunks: Sequence[Chunk],
        arena: Arena,
        outputs: Sequence[int],
        give_up: Callable[[], bool] = never,
        scored: Sequence[ScoredChunk] = (),
    ) -> Tensor:
        """Return zeros `[len(outputs), 1]`: token 0 is most likely. Scores stay zero: any rows may be selected."""
        return torch.zeros(len(outputs), 1)


def count_tokens(requests: Sequence[Request], info: ModelInfo, tokenizer: ChatTokenizer, memory: int) -> list[Usage]:
    """Return the usage of each request. Requests are answered one after another, starting with empty memory. memory:
    bytes of the model's KV pool. Raises CacheError as the engine does.
    """
    slots = max(1, memory // info.kv.bytes_per_token)
    engine = Engine(CountingModel(info, tokenizer), memory=slots * NO_KV.bytes_per_token).start()
    try:
        one_token = [replace(r, sampling=replace(r.sampling, max_tokens=1)) for r in requests]
        return [engine.submit(request).completion.usage for request in one_token]
    finally:
        engine.close()


Signature = tuple[tuple[int, ...], tuple[int, ...]]


def group(plans: Sequence[Plan]) -> list[list[int]]:
    """Return indices of the plans, in groups. Plans of a group have the same most popular module; modules that all
    plans share do not count. Plans without other modules are one group, ordered by their tokens.
    """
    popularity = Counter(segment for plan in plans for segment in plan.segments())
    ranked = sorted(popularity, key=lambda segment: (-popularity[segment], segment.name, segment.tokens))
    rank = {segment: number for number, segment in enumerate(ranked)}
    everywhere = {segment for segment, number in popularity.items() if number == len(plans)}

    def signature(index: int) -> Signature:
        plan = plans[index]
        ranks = sorted(rank[segment] for segment in plan.segments() if segment not in everywhere)
        return tuple(ranks), tuple(token for span in plan.spans for token in span.tokens)

    ordered = sorted(range(len(plans)), key=signature)
    return [list(members) for _, members in groupby(ordered, key=lambda index: signature(index)[0][:1])]


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a replay. uses: number of module uses. found: uses found in memory. missing_tokens: of the others."""

    uses: int
    found: int
    missing_tokens: int


def replay(prompts: Iterable[Sequence[tuple[str, int]]], slots: int) -> Replayed:
    """Look up the modules of all prompts, one prompt after another. prompts: key and length of each module. slots: size
    of the memory in tokens. A module that does not fit into memory with the other modules of its prompt is not stored.
    """
    store = Store(Arena(NO_KV, slots, torch.device("cpu")), "replay")
    segments: dict[str, Segment] = {}
    uses = found = missing_tokens = 0
    for modules in prompts:
        pinned: list[CacheEntry] = []
        for key, tokens in modules:
            segment = segments.setdefault(key, Segment(name=key, tokens=(len(segments),) * max(1, tokens)))
            uses += 1
            if (entry := store.find(segment, PUBLIC_TENANT).entry) is not None:
                found += 1
                pinned.append(entry)
                store.device.count_use([entry])
                continue
            missing_tokens += tokens
            try:
                pinned.append(store.put(segment, PUBLIC_TENANT, store.device.reserve(len(segment.tokens))))
            except CapacityError:
                continue
        for entry in pinned:
            store.device.release(entry)
    return Replayed(uses, found, missing_tokens)
