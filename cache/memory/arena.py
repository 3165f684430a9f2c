"""The KV pool of a device: its slots, their allocation, and copies of modules between it and host memory.

The pool (`Arena`) is one K and one V tensor per layer, allocated once, with the position id of each slot's key.
`ExtentAllocator` finds free slot ranges by length and by address. The engine thread owns both. Out of scope: which
module has which slots.

On a GPU, copies use a stream of their own and pinned memory, so that passes run at the same time. Copies added between
two passes form a batch: the first layer of all copies, then the second, and so on, with an event after each layer.
Before each layer, a pass waits for its event. Copies of one layer run in the order in which they were added, and no
copy touches another layer, so a later copy may overwrite memory that an earlier one reads.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from cache.errors import CacheError
from cache.memory.kv_shape import DType, KVShape

LEAST_PIECE = 16  # smallest useful length of a piece, in slots: each piece is one more item for attention


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """The slots `start` .. `start + length - 1`."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length

    def part(self, first: int, last: int) -> "Extent":
        assert 0 <= first <= last <= self.length, (self, first, last)
        return Extent(self.start + first, last - first)


def total_length(extents: Iterable[Extent]) -> int:
    return sum(extent.length for extent in extents)


def part_of(extents: Iterable[Extent], first: int, last: int) -> list[Extent]:
    assert 0 <= first <= last, (first, last)
    parts: list[Extent] = []
    for extent in extents:
        if first < extent.length and last > 0:
            parts.append(extent.part(max(first, 0), min(last, extent.length)))
        first, last = first - extent.length, last - extent.length
    assert last <= 0, ("rows beyond the extents", last)
    return [one for one in parts if one.length]


def join_extents(extents: Iterable[Extent]) -> list[Extent]:
    joined: list[Extent] = []
    for extent in extents:
        if joined and joined[-1].end == extent.start:
            joined[-1] = Extent(joined[-1].start, joined[-1].length + extent.length)
        elif extent.length:
            joined.append(extent)
    return joined


class ExtentAllocator:
    """Allocates extents among `capacity` slots. Parts of an extent may be freed separately. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = self.free_slots = capacity
        self._starts: list[int] = []  # of the holes, ascending
        self._length: dict[int, int] = {}  # of each hole, by its start
        self._by_length: list[tuple[int, int]] = []  # (length, start) of each hole, ascending
        if capacity:
            self._add(Extent(0, capacity))

    @property
    def holes(self) -> list[Extent]:
        return [Extent(start, self._length[start]) for start in self._starts]

    def allocate(self, length: int) -> Extent | None:
        """Return the first `length` slots of the smallest free range (hole) that fits, or None."""
        assert length > 0, length
        at = bisect_left(self._by_length, (length, 0))
        return None if at == len(self._by_length) else self._take(self._by_length[at][1], length)

    def allocate_pieces(self, length: int, least: int = LEAST_PIECE) -> list[Extent] | None:
        """Return `length` slots in few pieces, from the largest holes, because these leave space to extend; None if too
        few slots are free or pieces would be too short. least: minimum slots of a piece, except for the last one.
        """
        pieces: list[Extent] = []
        while length:
            most, start = self._by_length[-1] if self._by_length else (0, 0)
            if most < min(length, least):
                for piece in pieces:
                    self.free(piece)
                return None
            pieces.append(self._take(start, min(most, length)))
            length -= pieces[-1].length
        return pieces

    def extend(self, extent: Extent, length: int) -> Extent:
        """Extend an extent by the free slots after it, at most `length`, and return it."""
        more = min(length, self._length.get(extent.end, 0))
        return extent if not more else Extent(extent.start, extent.length + self._take(extent.end, more).length)

    def free(self, extent: Extent) -> None:
        if extent.length == 0:
            return
        left, right = self.hole_before(extent.start), self.hole_from(extent.start)
        start, end = extent.start, extent.end
        assert left is None or left.end <= start, ("freed twice", extent, left)
        assert right is None or right.start >= end, ("freed twice", extent, right)
        if left is not None and left.end == start:
            self._remove(left)
            start = left.start
        if right is not None and right.start == end:
            self._remove(right)
            end = right.end
        self._add(Extent(start, end - start))
        self.free_slots += extent.length

    def hole_from(self, slot: int) -> Extent | None:
        at = bisect_left(self._starts, slot)
        return None if at == len(self._starts) else Extent(self._starts[at], self._length[self._starts[at]])

    def hole_before(self, slot: int) -> Extent | None:
        at = bisect_left(self._starts, slot) - 1
        return None if at < 0 else Extent(self._starts[at], self._length[self._starts[at]])

    def check_integrity(self, used: Iterable[Extent]) -> None:
        """Assert that `used` and the holes cover the pool exactly, and that both indexes of the holes agree."""
        cursor = 0
        for extent in sorted((*self.holes, *(e for e in used if e.length))):
            assert extent.start == cursor, ("gap or overlap at slot", cursor, extent)
            cursor = extent.end
        assert cursor == self.capacity, ("slots lost", cursor, self.capacity)
        assert self.free_slots == total_length(self.holes)
        assert self._by_length == sorted((length, start) for start, length in self._length.items())
        assert self._starts == sorted(self._length)

    def _take(self, start: int, length: int) -> Extent:
        hole = Extent(start, self._length[start])
        self._remove(hole)
        if hole.length > length:
            self._add(hole.part(length, hole.length))
        self.free_slots -= length
        return hole.part(0, length)

    def _add(self, hole: Extent) -> None:
        self._length[hole.start] = hole.length
        insort(self._starts, hole.start)
        insort(self._by_length, (hole.length, hole.start))

    def _remove(self, hole: Extent) -> None:
        del self._length[hole.start]
        del self._starts[bisect_left(self._starts, hole.start)]
        del self._by_length[bisect_left(self._by_length, (hole.length, hole.start))]


class Event(Protocol):
    """A point in a CUDA stream, for example a `torch.cuda.Event`."""

    def query(self) -> bool:
        """Return whether the stream has passed this point. Does not wait."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Return the milliseconds until another event. The stream must have passed both."""


class CopyStream:
    """A CUDA stream for copies. Passes run on another stream: the current one of the calling thread."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def run(self, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self._stream):  # memory allocated here is reused by this stream only
            work()

    def record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait_for_compute(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def hold_compute(self, event: Event) -> None:
        """Make the computing stream wait for an event of this stream. The caller does not wait."""
        assert isinstance(event, torch.cuda.Event), event
        torch.cuda.current_stream(self._device).wait_event(event)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def staged(self, rows: Tensor) -> Tensor:
        """Return a copy of a tensor in pinned memory. Any thread may call it."""
        # PyTorch caches pinned memory and reuses it after its copies have ended: pinning is slow
        return torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows)

    def lock(self, memory: Tensor) -> None:
        """Pin host memory. Raises CacheError if the system refuses."""
        # not by `pin_memory`, which rounds the size up to a power of two
        error = int(self._runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        if error:
            size = f"{memory.nbytes >> 20} MiB of host memory"
            raise CacheError(f"{size} cannot be pinned for copies (CUDA error {error}): set host_memory lower")

    def unlock(self, memory: Tensor) -> None:
        self._runtime.cudaHostUnregister(memory.data_ptr())


def copy_stream_of(device: torch.device) -> CopyStream | None:
    return CopyStream(device) if device.type == "cuda" else None


CopyLayer = Callable[[int], None]  # queues the copy of one layer of a module


@dataclass(slots=True, eq=False)
class Batch:
    """Copies that run together. began, ends: events before the first layer and after each started layer. begun: number
    of copies started in the next layer; a failed copy is started again later.
    """

    copies: Sequence[CopyLayer]
    tokens: int
    began: Event
    ends: list[Event] = field(default_factory=list)
    begun: int = 0


class Copies:
    """Runs the copies of one pool, layer by layer, on a stream. Owned by the engine thread."""

    def __init__(self, stream: CopyStream, layers: int) -> None:
        self.stream, self._layers = stream, layers
        self._noted: list[tuple[CopyLayer, int]] = []
        self._batches: deque[Batch] = deque()  # that were not measured yet
        self._newest: Batch | None = None  # until a pass has waited for its last layer

    def __bool__(self) -> bool:
        """Return whether a pass must wait for copies in its layers."""
        return bool(self._noted) or self._newest is not None

    def add(self, copy: CopyLayer, tokens: int) -> None:
        """Add a copy. It starts with the next pass or call of `begin`, after earlier ones."""
        self._noted.append((copy, tokens))

    def begin(self) -> None:
        """Queue all added copies on the stream. Raises device errors; the next call continues at the failed copy."""
        self._go_on()
        if self._noted:
            self.stream.wait_for_compute()  # it may still write rows to copy, or read rows to replace
            copies, tokens = [copy for copy, _ in self._noted], sum(tokens for _, tokens in self._noted)
            self._newest = Batch(copies, tokens, self.stream.record())
            self._noted.clear()
            self._batches.append(self._newest)
            self._go_on()

    def await_layer(self, layer: int) -> None:
        self.begin()
        if self._newest is not None:
            self.stream.hold_compute(self._newest.ends[layer])
            if layer == self._layers - 1:
                self._newest = None

    def finish(self) -> None:
        self.begin()
        self.stream.synchronize()

    def drop(self) -> None:
        self._noted.clear()
        self._batches.clear()
        self._newest = None
        self.stream.synchronize()

    def measured(self) -> Iterator[tuple[float, int]]:
        """Yield seconds and tokens of finished batches that were not yielded yet."""
        while self._batches and len((batch := self._batches[0]).ends) == self._layers and batch.ends[-1].query():
            yield batch.began.elapsed_time(batch.ends[-1]) / 1e3, batch.tokens
            self._batches.popleft()

    def _go_on(self) -> None:
        batch = self._newest
        while batch is not None and len(batch.ends) < self._layers:
            while batch.begun < len(batch.copies):
                self.stream.run(partial(batch.copies[batch.begun], len(batch.ends)))
                batch.begun += 1
            batch.ends.append(self.stream.record())
            batch.begun = 0


def name_of(dtype: torch.dtype) -> DType:
    return cast("DType", str(dtype).removeprefix("torch."))


class Arena:
    """KV memory of `slots` tokens on one device. positions: ids of the keys, int64 `[slots + 1]`. scratch_slot: one
    more slot, for rows that are never read. copies: copies modules from and to the pool during passes; None on a CPU.
    """

    def __init__(self, shape: KVShape, slots: int, device: torch.device) -> None:
        self.shape, self.slots, self.device = shape, slots, device
        self.dtype: torch.dtype = getattr(torch, shape.dtype)
        self.scratch_slot = slots
        size = (slots + 1, shape.kv_heads, shape.head_dim)
        self.keys = [torch.empty(size, dtype=self.dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.empty(size, dtype=self.dtype, device=device) for _ in range(shape.layers)]
        self.positions = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        # the same memory in the shape of attention kernels: [1, kv_heads, slots, head_dim]
        self.key_rows = [keys.transpose(0, 1).unsqueeze(0) for keys in self.keys]
        self.value_rows = [values.transpose(0, 1).unsqueeze(0) for values in self.values]
        stream = copy_stream_of(device)
        self.copies = None if stream is None else Copies(stream, shape.layers)

    @property
    def has_copies(self) -> bool:
        return bool(self.copies)

    def await_layer(self, layer: int) -> None:
        """Wait for the copies of a layer. A pass calls it in each layer before it writes or reads keys."""
        if self.copies is not None:
            self.copies.await_layer(layer)

    def begin_copies(self) -> None:
        if self.copies is not None:
            self.copies.begin()

    def read(self, extent: Extent) -> Tensor:
        """Return a copy of an extent in host memory: `[2, layers, length, kv_heads, head_dim]`, keys first."""
        self.await_layer(self.shape.layers - 1)
        rows = [layer[extent.start : extent.end] for layer in (*self.keys, *self.values)]
        return torch.stack(rows).cpu().view(2, self.shape.layers, *rows[0].shape)

    def write(self, extent: Extent, rows: Tensor) -> None:
        self.await_layer(self.shape.layers - 1)
        for layer, copy in zip((*self.keys, *self.values), rows.flatten(0, 1), strict=True):
            layer[extent.start : extent.end] = copy

    def read_layer(self, layer: int, extent: Extent) -> Tensor:
        """Return a copy of one layer of an extent on the device: `[2, length, kv_heads, head_dim]`."""
        return torch.stack([rows[layer][extent.start : extent.end] for rows in (self.keys, self.values)])

    def write_layer(self, layer: int, extent: Extent, rows: Tensor) -> None:
        """Copy rows, shaped as `read_layer` returns them, from any device. The caller does not wait for pinned
        memory.
        """
        for into, copy in zip((self.keys, self.values), rows, strict=True):
            into[layer][extent.start : extent.end].copy_(copy, non_blocking=True)

    def place(self, extent: Extent, positions: Sequence[int]) -> None:
        ids = torch.tensor(positions, pin_memory=self.device.type == "cuda")  # a plain copy waits for the device
        self.positions[extent.start : extent.end].copy_(ids, non_blocking=True)
