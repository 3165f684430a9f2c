"""The host tier of a GPU: modules that were evicted from the device, in main memory that it can read by itself.

The memory is one block, locked once (pinned), so that copies run beside everything else. Locking each module would be
slow, and a few locked buffers on the way to ordinary memory would cost the processor one more copy of each. The block
has a row for each layer, and a module has the same columns of all rows, in pieces where need be, so that no room is
lost between modules. Owned by the engine thread.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from cache.memory.allocator import Extent, ExtentAllocator
from cache.memory.arena import Arena
from cache.memory.copies import Copies
from cache.memory.half_life import HalfLife
from cache.memory.host import HostEntry, HostTier
from cache.memory.kv_format import KVStorage, from_bytes, layer_layout, pack, packed_bytes, to_bytes, unpack

UNIT = 4096
"""Bytes of a row that are given out together. A piece has 16 of them at least: shorter copies waste the bus."""


class PinnedTier(HostTier):
    """See `HostTier`. copies: of the arena. Making one raises CacheError if its memory cannot be had."""

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
        """Copy a module that was taken out into an extent of the arena, and give back its memory."""
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
        """A layer of a module of so many tokens, `[2, 1, length, kv_heads, head_dim]` on a device."""
        layout = layer_layout(self._arena.shape, length, self._storage)
        packed = torch.empty(packed_bytes(layout), dtype=torch.uint8, device=device)
        for part, into in self._parts(layer, pieces, packed):
            into.copy_(part, non_blocking=True)
        return unpack(from_bytes(packed, layout), self._arena.shape.dtype)

    def _parts(self, layer: int, pieces: Sequence[Extent], packed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The pieces of a layer, each with the bytes that belong there; behind the last ones there may be room."""
        first = 0
        for piece in pieces:
            part = packed[first : first + piece.length * UNIT]
            yield self._memory[layer, piece.start * UNIT :][: len(part)], part
            first += len(part)
