"""How many modules a memory of some size would have held ready, by replaying which modules were used.

Store, eviction and allocation are the real ones, over an arena with a row of one byte for each token. The replay begins
with an empty memory. Not covered: the rows of conversations, which need memory besides; the disk behind the memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from cache.analysis.dry_run import NO_KV
from cache.errors import CapacityError
from cache.memory.arena import Arena
from cache.memory.device import CacheEntry
from cache.memory.keys import PUBLIC_TENANT
from cache.memory.store import Store
from cache.prompt.plan import Segment


@dataclass(frozen=True, slots=True)
class TracedModule:
    """A module that a prompt used. tokens: its length."""

    key: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """Uses of modules, how many of them were found in memory, and the tokens of the others."""

    uses: int
    found: int
    missing_tokens: int


def replay(prompts: Iterable[Sequence[TracedModule]], slots: int) -> Replayed:
    """Use the modules of each prompt, one prompt after another. slots: tokens that the memory holds. A module that has
    no room beside the others of its prompt is missing and not kept.
    """
    store = Store(Arena(NO_KV, slots, torch.device("cpu")), "replay")
    segments: dict[str, Segment] = {}
    uses = found = missing_tokens = 0
    for modules in prompts:
        pinned: list[CacheEntry] = []
        for module in modules:
            segment = segments.setdefault(
                module.key, Segment(name=module.key, tokens=(len(segments),) * max(1, module.tokens))
            )
            uses += 1
            if (entry := store.find(segment, PUBLIC_TENANT).entry) is not None:
                found += 1
                pinned.append(entry)
                store.device.count_use([entry])
                continue
            missing_tokens += module.tokens
            try:
                pinned.append(store.put(segment, PUBLIC_TENANT, store.device.reserve(len(segment.tokens))))
            except CapacityError:
                continue
        for entry in pinned:
            store.device.release(entry)
    return Replayed(uses, found, missing_tokens)
