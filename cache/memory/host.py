"""The host tier: modules that were evicted from the device, in ordinary memory. A module is in one of the two: it
leaves this tier when it goes back to the device.

Owned by the engine thread. Not covered: which module leaves the device (`cache.memory.device`), copying into the arena
(`cache.memory.loader`).
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from torch import Tensor

from cache.memory.eviction import EvictionQueue
from cache.memory.half_life import HalfLife, Marks
from cache.memory.kv_format import packed_bytes
from cache.memory.module_header import ModuleHeader


@dataclass(slots=True, eq=False)
class HostEntry:
    """A module of the tier. tensors: see `cache.memory.kv_format`. marks: of its uses on the device."""

    header: ModuleHeader
    tensors: Mapping[str, Tensor]
    marks: Marks | None


class HostTier:
    """At most `capacity` bytes. cost: seconds per token to get back what is evicted. half_life: of the device, by which
    uses fade here, too. evictions: how many so far. kept: keys of those that go last.
    """

    def __init__(self, capacity: int, cost: Callable[[str], float], half_life: HalfLife) -> None:
        self.capacity, self.num_bytes, self.evictions = capacity, 0, 0
        self.kept: Set[str] = frozenset()
        self.entries: dict[str, HostEntry] = {}
        self._queue = EvictionQueue[HostEntry](
            is_evictable=lambda entry: self.entries.get(entry.header.key) is entry,
            cost=lambda entry: cost(entry.header.key),
            is_kept=lambda entry: entry.header.key in self.kept,
            half_life=half_life,
        )

    def put(self, entry: HostEntry) -> None:
        """Keep a module, unless it alone is larger than the tier. Others go that are worth less."""
        if packed_bytes(entry.tensors) > self.capacity:
            return
        self.remove(entry.header.key)
        self.entries[entry.header.key] = entry
        self.num_bytes += packed_bytes(entry.tensors)
        self._queue.add(entry)
        while self.num_bytes > self.capacity:
            (victim,) = self._queue.lowest(1)
            self.remove(victim.header.key)
            self._queue.evicted()
            self.evictions += 1

    def remove(self, key: str) -> None:
        """Let a module go; unknown keys are fine."""
        if (entry := self.entries.pop(key, None)) is not None:
            self.num_bytes -= packed_bytes(entry.tensors)
            entry.tensors = {}  # the queue may hold the entry for a while

    def keep(self, keys: Set[str]) -> None:
        """From now on evict these modules only when nothing else may be evicted."""
        self.kept = keys
        self._queue.refresh()

    def check_integrity(self) -> None:
        """Assert that the books agree."""
        assert self.num_bytes == sum(packed_bytes(entry.tensors) for entry in self.entries.values()) <= self.capacity
