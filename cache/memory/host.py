"""The host tier: modules evicted from the device, in main memory. A module leaves it when it returns to the device.

On a GPU, the tier is one block, pinned once, so that the device copies during passes. The block has a row for each
layer. A module occupies the same columns of all rows, in pieces if necessary. Owned by the engine thread. Out of scope:
evictions from the device (`device`), copies into the pool (`background`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from cache.memory.arena import Arena, Copies, Extent, ExtentAllocator
from cache.memory.disk import ModuleHeader
from cache.memory.eviction import EvictionQueue, HalfLife, Marks
from cache.memory.kv_format import from_bytes, layer_layout, pack, packed_bytes, to_bytes, unpack
from cache.memory.kv_shape import KVStorage


@dataclass(slots=True, eq=False)
class HostEntry:
    """A module in host memory. marks: its uses on the device. Its rows are in `tensors` (see `kv_format`) or in
    `pieces` of pinned memory.
    """

    header: ModuleHeader
    marks: Marks | None
    num_bytes: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    pieces: list[Extent] = field(default_factory=list)


class HostTier:
    """Stores at most `capacity` bytes of evicted modules. cost: seconds per token to restore one. half_life: shared
    with the device's queue. evictions: number so far. kept: pinned keys, evicted last.
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
        """Store a module whose rows are in an extent. If space is short, evict modules of the lowest value, maybe this
        one. A module larger than the tier is not stored.
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
        """Remove and return a module with its rows. Pass it to `put_back` or `free` afterwards."""
        entry = self.entries.pop(key)
        self.num_bytes -= entry.num_bytes
        return entry

    def put_back(self, entry: HostEntry) -> None:
        self.entries[entry.header.key] = entry
        self.num_bytes += entry.num_bytes
        self._queue.add(entry)

    def free(self, entry: HostEntry) -> None:
        entry.tensors = {}  # the queue may still hold the entry

    def remove(self, key: str) -> None:
        if key in self.entries:
            self.free(self.take(key))

    def rows(self, entry: HostEntry) -> Tensor:
        return unpack(entry.tensors, self._arena.dtype)

    def keep(self, keys: Set[str]) -> None:
        self.kept = keys
        self._queue.refresh()

    def close(self) -> None:
        """Release pinned memory, if any."""

    def check_integrity(self) -> None:
        assert self.num_bytes == sum(entry.num_bytes for entry in self.entries.values()) <= self.capacity

    def _size_of(self, length: int) -> int:
        shape = self._arena.shape
        return shape.layers * packed_bytes(layer_layout(shape, length, self._storage))

    def _copy(self, extent: Extent, entry: HostEntry) -> bool:
        if self.num_bytes > self.capacity:
            return False
        entry.tensors = pack(self._arena.read(extent), self._storage)
        return True


UNIT = 4096
"""Allocation unit in bytes of a row. A piece has at least 16 units, because shorter copies are slow."""


class PinnedTier(HostTier):
    """A host tier in pinned memory. copies: of the KV pool. Creating it raises CacheError if the memory is not
    available.
    """

    def __init__(
        self,
        arena: Arena,
        storage: KVStorage,
        capacity: int,
        cost: Callable[[str], float],
        half_life: HalfLife,
        copies: Copies,
    ) -> None:
        layers = arena.shape.layers
        units = capacity // (layers * UNIT)
        super().__init__(arena, storage, units * layers * UNIT, cost, half_life)
        self._copies, self._allocator = copies, ExtentAllocator(units)
        self._memory = torch.empty(layers, units * UNIT, dtype=torch.uint8)
        if units:
            copies.stream.lock(self._memory)

    def load(self, entry: HostEntry, extent: Extent) -> None:
        self._copies.add(partial(self._load_layer, entry.pieces, extent), extent.length)
        self.free(entry)

    def free(self, entry: HostEntry) -> None:
        for piece in entry.pieces:
            self._allocator.free(piece)

    def rows(self, entry: HostEntry) -> Tensor:
        self._copies.finish()
        length, layers = entry.header.num_tokens, range(self._arena.shape.layers)
        return torch.cat([self._unpacked(layer, entry.pieces, length, torch.device("cpu")) for layer in layers], 1)

    def close(self) -> None:
        if self._memory.numel():
            self._copies.stream.unlock(self._memory)
            self._memory = torch.empty(0, dtype=torch.uint8)

    def check_integrity(self) -> None:
        super().check_integrity()
        self._allocator.check_integrity(piece for entry in self.entries.values() for piece in entry.pieces)

    def _size_of(self, length: int) -> int:
        return self._units_of(length) * UNIT * self._arena.shape.layers

    def _units_of(self, length: int) -> int:
        return -(-packed_bytes(layer_layout(self._arena.shape, length, self._storage)) // UNIT)

    def _copy(self, extent: Extent, entry: HostEntry) -> bool:
        pieces = self._allocator.allocate_pieces(self._units_of(extent.length))
        if pieces is None:
            return False
        entry.pieces = pieces
        self._copies.add(partial(self._save_layer, pieces, extent), extent.length)
        return True

    def _save_layer(self, pieces: Sequence[Extent], extent: Extent, layer: int) -> None:
        rows = self._arena.read_layer(layer, extent).unsqueeze(1)
        packed = to_bytes(pack(rows, self._storage))
        for into, part in self._parts(layer, pieces, packed):
            into.copy_(part, non_blocking=True)

    def _load_layer(self, pieces: Sequence[Extent], extent: Extent, layer: int) -> None:
        rows = self._unpacked(layer, pieces, extent.length, self._arena.device)
        self._arena.write_layer(layer, extent, rows.squeeze(1))

    def _unpacked(self, layer: int, pieces: Sequence[Extent], length: int, device: torch.device) -> Tensor:
        """Return one layer of a module, `[2, 1, length, kv_heads, head_dim]`, on a device."""
        layout = layer_layout(self._arena.shape, length, self._storage)
        packed = torch.empty(packed_bytes(layout), dtype=torch.uint8, device=device)
        for part, into in self._parts(layer, pieces, packed):
            into.copy_(part, non_blocking=True)
        return unpack(from_bytes(packed, layout), self._arena.dtype)

    def _parts(self, layer: int, pieces: Sequence[Extent], packed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Return each piece of a layer with its bytes. The last piece may be longer than its bytes."""
        first = 0
        for piece in pieces:
            part = packed[first : first + piece.length * UNIT]
            yield self._memory[layer, piece.start * UNIT :][: len(part)], part
            first += len(part)
