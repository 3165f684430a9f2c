"""The device memory of one simulated replica: the engine's own bookkeeping (`cache.memory.device`) over empty slots.

Documents are modules identified by numbers. A conversation's rows are one path of the prefix tree, regardless of its
documents.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from math import log, log2

from cache.memory.arena import Extent
from cache.memory.device import CacheEntry, DeviceMemory, Owner
from cache.memory.disk import nameless
from cache.memory.eviction import LONG, SHORT
from cache.memory.prefix_tree import PathStep, PrefixNode


class SimulatedMemory:
    """Memory of `slots` slots. cost: seconds to restore a token of a document, or of rows (None). evicted: documents
    that were evicted since they last came.
    """

    def __init__(self, slots: int, cost: Callable[[int | None], float]) -> None:
        self.device = DeviceMemory(slots, self._seconds, self._note_evicted)
        self._cost = cost
        self._evicted: dict[int, CacheEntry] = {}

    @property
    def documents(self) -> Collection[str]:
        return self.device.entries.keys()

    def find(self, document: int) -> CacheEntry | None:
        entry = self.device.entries.get(str(document))
        return None if entry is None else self.device.pin(entry)

    def put(self, document: int, extent: Extent) -> CacheEntry:
        header = replace(nameless(str(document)), name=str(document), num_tokens=extent.length)
        return self.device.admit(header, extent, self._evicted.pop(document, None))

    def fill(self, document: int, tokens: int, uses: float) -> None:
        """Add a document that was used for a long time. uses: per round (`cache.memory.eviction`)."""
        entry = self.put(document, self.device.reserve(tokens))
        short, long = (log2(uses * half_life / log(2)) for half_life in (SHORT, LONG))
        entry.marks = short, long
        self.device.release(entry)

    def find_rows(self, conversation: str, tokens: int) -> tuple[PrefixNode, int]:
        """Pin and return the available rows of a conversation's first `tokens`, and their number."""
        prefix = self.device.pin_prefix(conversation, [step_of(0, tokens)])
        return prefix, sum(len(node.step.tokens) for node in prefix.path())

    def keep_rows(self, prefix: PrefixNode, first: int, own: list[Extent], tokens: int) -> None:
        """Store the rows that a request computed after a prefix, which is unpinned. first: its first own token."""
        self.device.put_prefix(prefix, [(step_of(first, tokens), own)], None)
        self.device.release_prefix(prefix)

    def _seconds(self, owner: Owner) -> float:
        return self._cost(int(owner.header.name) if isinstance(owner, CacheEntry) else None)

    def _note_evicted(self, entry: CacheEntry) -> None:
        self._evicted[int(entry.header.name)] = entry


def step_of(first: int, tokens: int) -> PathStep:
    """Return a step of a conversation, with arbitrary token ids."""
    return PathStep(start=first, tokens=(0,) * tokens)
