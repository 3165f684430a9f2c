"""Which slots of the KV arena are taken: an allocator of extents, which may be freed in other pieces than they were
allocated in. Free extents (holes) are found by length and by address, without a walk through all of them. No tensors,
no policy. Not thread-safe: the engine thread owns it.

The stream of a GPU on which keys and values are copied, beside the one that computes, and memory that it can read.

A stream does what it is given in order, and nobody waits for it but by events. Copies beside computation need host
memory whose pages are locked (pinned). Not covered: what is copied, and who waits for it (`cache.memory.arena`).

Copies of modules between the arena of a GPU and host memory, beside the passes that compute.

What is noted between two passes makes a batch: the first layer of all its copies, then the second, with an event behind
each layer. A pass waits in each layer for that layer of the newest batch, and computes the first layers while the last
ones are still copied. As there is one stream, in order, this covers earlier batches, too. It also means that
copies in wait for copies out, although the bus could do both at once.

Within a layer copies run in the order in which they were noted, and none touches another layer. So the memory that one
reads may be given to a later one at once, in the arena and in host memory; a pass that writes there waits as above.
Not covered: whose memory it is. Owned by the engine thread.

The KV arena: one K and one V tensor per layer, `[slots, kv_heads, head_dim]` in the model's dtype, allocated once,
and for each slot the position id at which its key was encoded. Not covered: who owns which slots.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from cache.errors import CacheError

LEAST_PIECE = 16
"""Slots of a piece that is worth having: every piece is one more item for attention."""


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """Slots `start` .. `start + length - 1` of the arena."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """First slot behind the extent."""
        return self.start + self.length

    def part(self, first: int, last: int) -> "Extent":
        """Rows `first` .. `last`-1 of this extent."""
        assert 0 <= first <= last <= self.length, (self, first, last)
        return Extent(self.start + first, last - first)


def total_length(extents: Iterable[Extent]) -> int:
    """How many slots these are."""
    return sum(extent.length for extent in extents)


def part_of(extents: Iterable[Extent], first: int, last: int) -> list[Extent]:
    """Rows `first` .. `last`-1 of extents that hold rows one after another."""
    assert 0 <= first <= last, (first, last)
    parts: list[Extent] = []
    for extent in extents:
        if first < extent.length and last > 0:
            parts.append(extent.part(max(first, 0), min(last, extent.length)))
        first, last = first - extent.length, last - extent.length
    assert last <= 0, ("rows beyond the extents", last)
    return [one for one in parts if one.length]


def join_extents(extents: Iterable[Extent]) -> list[Extent]:
    """Each extent joined with the one before it where they touch; empty ones are left out."""
    joined: list[Extent] = []
    for extent in extents:
        if joined and joined[-1].end == extent.start:
            joined[-1] = Extent(joined[-1].start, joined[-1].length + extent.length)
        elif extent.length:
            joined.append(extent)
    return joined


class ExtentAllocator:
    """Allocation over `capacity` slots."""

    def __init__(self, capacity: int) -> None:
        self.capacity = self.free_slots = capacity
        self._starts: list[int] = []  # of the holes, ascending
        self._length: dict[int, int] = {}  # of each hole, by its start
        self._by_length: list[tuple[int, int]] = []  # (length, start) of each hole, ascending
        if capacity:
            self._add(Extent(0, capacity))

    @property
    def holes(self) -> list[Extent]:
        """The free extents, ascending; they never touch."""
        return [Extent(start, self._length[start]) for start in self._starts]

    def allocate(self, length: int) -> Extent | None:
        """The beginning of the smallest hole that fits, or None."""
        assert length > 0, length
        at = bisect_left(self._by_length, (length, 0))
        return None if at == len(self._by_length) else self._take(self._by_length[at][1], length)

    def allocate_pieces(self, length: int, least: int = LEAST_PIECE) -> list[Extent] | None:
        """So many slots in few pieces, from the largest holes, so that they can be extended; None if there are too few.
        least: slots of a piece, except where fewer are all that is missing.
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
        """The extent with up to so many slots more, as far as those behind it are free."""
        more = min(length, self._length.get(extent.end, 0))
        return extent if not more else Extent(extent.start, extent.length + self._take(extent.end, more).length)

    def free(self, extent: Extent) -> None:
        """Return slots. Freeing a slot twice is a broken invariant."""
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
        """The first hole that begins at a slot or behind it."""
        at = bisect_left(self._starts, slot)
        return None if at == len(self._starts) else Extent(self._starts[at], self._length[self._starts[at]])

    def hole_before(self, slot: int) -> Extent | None:
        """The last hole that begins before a slot."""
        at = bisect_left(self._starts, slot) - 1
        return None if at < 0 else Extent(self._starts[at], self._length[self._starts[at]])

    def check_integrity(self, used: Iterable[Extent]) -> None:
        """Assert that `used` and the holes tile the arena exactly, and that the books of the holes agree."""
        cursor = 0
        for extent in sorted((*self.holes, *(e for e in used if e.length))):
            assert extent.start == cursor, ("gap or overlap at slot", cursor, extent)
            cursor = extent.end
        assert cursor == self.capacity, ("slots lost", cursor, self.capacity)
        assert self.free_slots == total_length(self.holes)
        assert self._by_length == sorted((length, start) for start, length in self._length.items())
        assert self._starts == sorted(self._length)

    def _take(self, start: int, length: int) -> Extent:
        """The first slots of the hole that begins there."""
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
    """A point of a stream."""

    def query(self) -> bool:
        """Whether the stream is past it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from here to another event; the stream must be past both."""


class CopyStream(Protocol):
    """What is asked of the stream; `CudaStream` is one."""

    def run(self, work: Callable[[], None]) -> None:
        """Have the stream do what a function asks of the device."""

    def record(self) -> Event:
        """The point behind everything that it was given."""

    def wait_for_compute(self) -> None:
        """Let the stream wait until the stream that computes has done what it was given so far."""

    def hold_compute(self, event: Event) -> None:
        """Let the stream that computes wait for a point of this one; the caller does not wait."""

    def synchronize(self) -> None:
        """Wait until the stream has done everything."""

    def staged(self, rows: Tensor) -> Tensor:
        """A copy of a tensor in locked memory. From any thread."""

    def lock(self, memory: Tensor) -> None:
        """Lock the pages of host memory. Raises CacheError if there are too few."""

    def unlock(self, memory: Tensor) -> None:
        """Undo `lock`; the stream must be done with the memory."""


class CudaStream:
    """A stream of a CUDA device. The stream that computes is the current one of the thread that calls."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def run(self, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self._stream):  # what is allocated meanwhile is used again by this stream only
            work()

    def record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait_for_compute(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def hold_compute(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event), event
        torch.cuda.current_stream(self._device).wait_event(event)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def staged(self, rows: Tensor) -> Tensor:
        # PyTorch keeps such memory and gives it out again when the copies that read it are over: locking is slow
        return torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows)

    def lock(self, memory: Tensor) -> None:
        # not by `pin_memory`, which rounds the size up to a power of two
        error = int(self._runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        if error:
            size = f"{memory.nbytes >> 20} MiB of host memory"
            raise CacheError(f"{size} cannot be locked for copies (CUDA error {error}): set host_memory lower")

    def unlock(self, memory: Tensor) -> None:
        self._runtime.cudaHostUnregister(memory.data_ptr())


def copy_stream_of(device: torch.device) -> CopyStream | None:
    """A stream for copies; None on a processor, where threads copy."""
    return CudaStream(device) if device.type == "cuda" else None


CopyLayer = Callable[[int], None]
"""Asks the device to copy one layer of a module."""


@dataclass(slots=True, eq=False)
class Batch:
    """Copies that run together. began, ends: events before the first layer, and behind each that was begun. begun: of
    the next layer, how many copies were; a copy that could not be is begun again later.
    """

    copies: Sequence[CopyLayer]
    tokens: int
    began: Event
    ends: list[Event] = field(default_factory=list)
    begun: int = 0


class Copies:
    """Copies of one arena of so many layers, on a stream."""

    def __init__(self, stream: CopyStream, layers: int) -> None:
        self.stream, self._layers = stream, layers
        self._noted: list[tuple[CopyLayer, int]] = []
        self._batches: deque[Batch] = deque()  # that were not measured yet
        self._newest: Batch | None = None  # until a pass has waited for its last layer

    def __bool__(self) -> bool:
        """Whether a pass would have to wait for copies in its layers."""
        return bool(self._noted) or self._newest is not None

    def add(self, copy: CopyLayer, tokens: int) -> None:
        """Note a copy. It begins with the next pass or call of `begin`, behind what was noted before."""
        self._noted.append((copy, tokens))

    def begin(self) -> None:
        """Give the stream everything that is noted. Raises what the device raises; then the next call goes on there."""
        self._go_on()
        if self._noted:
            self.stream.wait_for_compute()  # it may be writing what is copied, or reading what is replaced
            copies, tokens = [copy for copy, _ in self._noted], sum(tokens for _, tokens in self._noted)
            self._newest = Batch(copies, tokens, self.stream.record())
            self._noted.clear()
            self._batches.append(self._newest)
            self._go_on()

    def await_layer(self, layer: int) -> None:
        """Let the stream that computes wait for this layer of everything that is copied."""
        self.begin()
        if self._newest is not None:
            self.stream.hold_compute(self._newest.ends[layer])
            if layer == self._layers - 1:
                self._newest = None

    def finish(self) -> None:
        """Wait until everything that was noted is copied."""
        self.begin()
        self.stream.synchronize()

    def drop(self) -> None:
        """Forget what has not begun, and wait for the rest."""
        self._noted.clear()
        self._batches.clear()
        self._newest = None
        self.stream.synchronize()

    def measured(self) -> Iterator[tuple[float, int]]:
        """Seconds and tokens of batches that are over, each once."""
        while self._batches and len((batch := self._batches[0]).ends) == self._layers and batch.ends[-1].query():
            yield batch.began.elapsed_time(batch.ends[-1]) / 1e3, batch.tokens
            self._batches.popleft()

    def _go_on(self) -> None:
        """Begin what is left of the newest batch."""
        batch = self._newest
        while batch is not None and len(batch.ends) < self._layers:
            while batch.begun < len(batch.copies):
                self.stream.run(partial(batch.copies[batch.begun], len(batch.ends)))
                batch.begun += 1
            batch.ends.append(self.stream.record())
            batch.begun = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """Shape of one token's keys and values."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class Arena:
    """KV memory of `slots` tokens on one device. positions: int64 `[slots + 1]`. scratch_slot: one more, for rows that
    nobody reads. copies: of modules from and to it, beside the passes; None on a processor.
    """

    def __init__(self, shape: KVShape, slots: int, device: torch.device) -> None:
        self.shape, self.slots, self.device = shape, slots, device
        self.scratch_slot = slots
        size = (slots + 1, shape.kv_heads, shape.head_dim)
        self.keys = [torch.empty(size, dtype=shape.dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.empty(size, dtype=shape.dtype, device=device) for _ in range(shape.layers)]
        self.positions = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        # the same memory as attention kernels want it: [1, kv_heads, slots, head_dim]
        self.key_rows = [keys.transpose(0, 1).unsqueeze(0) for keys in self.keys]
        self.value_rows = [values.transpose(0, 1).unsqueeze(0) for values in self.values]
        stream = copy_stream_of(device)
        self.copies = None if stream is None else Copies(stream, shape.layers)

    @property
    def has_copies(self) -> bool:
        """Whether a pass must call `await_layer`; if not, it may be replayed from a graph, which waits for nothing."""
        return bool(self.copies)

    def await_layer(self, layer: int) -> None:
        """Called by a pass in each layer before it writes or reads keys: what is copied is there when it does."""
        if self.copies is not None:
            self.copies.await_layer(layer)

    def begin_copies(self) -> None:
        """Begin what is to be copied, before the next pass is planned or where there is none."""
        if self.copies is not None:
            self.copies.begin()

    def read(self, extent: Extent) -> Tensor:
        """A copy of an extent in host memory: `[2, layers, length, kv_heads, head_dim]`, keys first."""
        self.await_layer(self.shape.layers - 1)
        rows = [layer[extent.start : extent.end] for layer in (*self.keys, *self.values)]
        return torch.stack(rows).cpu().view(2, self.shape.layers, *rows[0].shape)

    def write(self, extent: Extent, rows: Tensor) -> None:
        """Copy rows shaped as `read` gives them into an extent."""
        self.await_layer(self.shape.layers - 1)
        for layer, copy in zip((*self.keys, *self.values), rows.flatten(0, 1), strict=True):
            layer[extent.start : extent.end] = copy

    def read_layer(self, layer: int, extent: Extent) -> Tensor:
        """A copy of one layer of an extent on the device: `[2, length, kv_heads, head_dim]`."""
        return torch.stack([rows[layer][extent.start : extent.end] for rows in (self.keys, self.values)])

    def write_layer(self, layer: int, extent: Extent, rows: Tensor) -> None:
        """Copy rows shaped as `read_layer` gives them, on any device; from locked memory the caller does not wait."""
        for into, copy in zip((self.keys, self.values), rows, strict=True):
            into[layer][extent.start : extent.end].copy_(copy, non_blocking=True)

    def place(self, extent: Extent, positions: Sequence[int]) -> None:
        """Note the position ids of an extent's keys."""
        ids = torch.tensor(positions, pin_memory=self.device.type == "cuda")  # a plain copy waits for the device
        self.positions[extent.start : extent.end].copy_(ids, non_blocking=True)
