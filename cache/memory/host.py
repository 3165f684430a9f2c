"""The host tier: modules that were evicted from the device, in main memory. A module is in one of the two: it leaves
this tier when it goes back to the device.

Owned by the engine thread. Not covered: which module leaves the device (`cache.memory.device`), copying into the arena
(`cache.memory.loader`), the tier of a GPU (`cache.memory.pinned`).
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from torch import Tensor

from cache.memory.allocator import Extent
from cache.memory.arena import Arena
from cache.memory.eviction import EvictionQueue
from cache.memory.half_life import HalfLife, Marks
from cache.memory.kv_format import KVStorage, layer_layout, pack, packed_bytes, unpack
from cache.memory.module_header import ModuleHeader


@dataclass(slots=True, eq=False)
class HostEntry:
    """A module of the tier. marks: of its uses on the device. Its rows are in `tensors`, see `cache.memory.kv_format`,
    or in `pieces` of the memory of `cache.memory.pinned`.
    """

    header: ModuleHeader
    marks: Marks | None
    num_bytes: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    pieces: list[Extent] = field(default_factory=list)


class HostTier:
    """At most `capacity` bytes, of modules from an arena. cost: seconds per token to get back what is evicted.
    half_life: of the device, by which uses fade here, too. evictions: how many so far. kept: keys of those that go
    last.
    """

    def __init__(
        self, arena: Arena, storage: KVStorage, capacity: int, cost: Callable[[str], float], half_life: HalfLife
    ) -> None:
        self.capacity, self.num_bytes, self.evictions = capacity, 0, 0
        self.kept: Set[str] = frozenset()
        self.entries: dict[str, HostEntry] = {}
        self._arena, self._storage = arena, storage
        self._queue = EvictionQueue[HostEntry](
            is_evictable=lambda entry: self.entries.get(entry.header.key) is entry,
            cost=lambda entry: cost(entry.header.key),
            is_kept=lambda entry: entry.header.key in self.kept,
            half_life=half_life,
        )

    def put(self, header: ModuleHeader, extent: Extent, marks: Marks | None) -> None:
        """Keep a module whose rows are in an extent, unless it alone is larger than the tier. Others go that are worth
        less.
        """
        entry = HostEntry(header, marks, self._size_of(extent.length))
        if entry.num_bytes > self.capacity:
            return
        self.remove(header.key)
        self.put_back(entry)
        while not self._copy(extent, entry):
            (victim,) = self._queue.lowest(1)
            self.remove(victim.header.key)
            self._queue.evicted()
            self.evictions += 1
            if victim is entry:
                return

    def take(self, key: str) -> HostEntry:
        """Take a module out, with its rows; then nothing evicts it. It is given to `put_back` or to `free`."""
        entry = self.entries.pop(key)
        self.num_bytes -= entry.num_bytes
        return entry

    def put_back(self, entry: HostEntry) -> None:
        """Undo `take`, before anything else was put in."""
        self.entries[entry.header.key] = entry
        self.num_bytes += entry.num_bytes
        self._queue.add(entry)

    def free(self, entry: HostEntry) -> None:
        """Give back the memory of a module that was taken out."""
        entry.tensors = {}  # the queue may hold the entry for a while

    def remove(self, key: str) -> None:
        """Let a module go; unknown keys are fine."""
        if key in self.entries:
            self.free(self.take(key))

    def rows(self, entry: HostEntry) -> Tensor:
        """The rows of a module, `[2, layers, length, kv_heads, head_dim]`."""
        return unpack(entry.tensors, self._arena.shape.dtype)

    def keep(self, keys: Set[str]) -> None:
        """From now on evict these modules only when nothing else may be evicted."""
        self.kept = keys
        self._queue.refresh()

    def close(self) -> None:
        """Give back what the tier has of the system."""

    def check_integrity(self) -> None:
        """Assert that the books agree."""
        assert self.num_bytes == sum(entry.num_bytes for entry in self.entries.values()) <= self.capacity

    def _size_of(self, length: int) -> int:
        """Bytes that a module of so many tokens takes."""
        shape = self._arena.shape
        return shape.layers * packed_bytes(layer_layout(shape, length, self._storage))

    def _copy(self, extent: Extent, entry: HostEntry) -> bool:
        """Copy the rows of a module into the tier; False if there is no room for them."""
        if self.num_bytes > self.capacity:
            return False
        entry.tensors = pack(self._arena.read(extent), self._storage)
        return True
