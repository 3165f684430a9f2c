"""How many rows a pass may have where device memory has run out: half as many each time, and slowly more again.

What a pass needs besides the arena grows with its rows, so that work which did not fit may fit in smaller passes. Not
covered: what becomes of work that does not even fit alone, one row at a time (`cache.engine.engine_core`).

The largest passes that an engine may run, on made-up tokens: to see what memory they need, before it serves.

Each row reads several modules and its own past, whose partial results are all there until they are merged. One pass
ends with the choice of tokens for all answers, another one is scored, which runs the plain kernels. Not covered:
answers that are given and read (`Request.teacher_forced`), which want logits for each row.

When a pass was computed. A GPU computes behind the host's back: a pass returns before it is done, so that the host's
clock says only when it was launched. There events tell, which the device stamps when it comes to them.

Timing waits for nothing: times are read after the tokens of a pass were copied to the host, for which the engine waits
in any case, or at a later pass. Not covered: what is made of the times (`cache.engine.engine_core`).

How large the arena is: as many bytes as were asked for, or "auto", what the device has room for.

On a GPU that is what is free behind the weights, less what the largest pass was measured to need (`trial_pass`), less
something to spare. On a processor it is a share of the free main memory. Not covered: what is kept in the arena.
"""

import gc
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import psutil
import torch
from torch import Tensor

from cache.attention.items import Chunk, KVView
from cache.attention.scoring import ScoredChunk
from cache.decoding.choosing import choose_tokens
from cache.decoding.sampling import Sampler, Sampling
from cache.engine.scheduler import MOST_ROWS
from cache.engine.sequence import Sequence
from cache.errors import CapacityError
from cache.memory.arena import Arena, Extent
from cache.memory.store import Cost
from cache.model.language_model import Model, ModelInfo

T = TypeVar("T")
PATIENCE = 64
"""So many passes must have used all they may have, and gone well, before the next are larger by a quarter: each time
that is too much costs a pass that fails."""
_TEXTS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory", "[CUDA]: out of memory")
"""What cuBLAS, CUDA and Triton say when they get no memory; PyTorch passes it on as an error without a type."""
NO_MEMORY = (
    "the device has no memory left for passes, not even of one row: lower device_memory (--memory), "
    "or stop what else runs on the device"
)
log = logging.getLogger(__name__)


class RowLimit:
    """most: rows that a pass may have now. num_shortages: how often device memory has run out."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.most, self.num_shortages = MOST_ROWS, 0
        self._computed: dict[Sequence, int] = {}  # in which of the passes that were cut each sequence had rows last
        self._num_cut = self._num_well = 0

    def fit(self, scheduled: dict[Sequence, int]) -> dict[Sequence, int]:
        """As much of a pass, rows by sequence, as may be computed. Those come first that were left out longest."""
        if sum(scheduled.values()) <= self.most:
            return scheduled
        self._num_cut += 1
        fitting: dict[Sequence, int] = {}
        last = {sequence: self._computed.get(sequence, 0) for sequence in scheduled}
        for sequence in sorted(scheduled, key=last.__getitem__):
            if rows := min(scheduled[sequence], self.most - sum(fitting.values())):
                fitting[sequence] = rows
        self._computed = last | dict.fromkeys(fitting, self._num_cut)
        return {sequence: fitting[sequence] for sequence in scheduled if sequence in fitting}

    def attempt(self, rows: int, compute: Callable[[], T]) -> T | None:
        """What a pass of so many rows gives; None if device memory has run out, and smaller passes are to be tried.
        Raises CapacityError if it was one row, and what `compute` raises.
        """
        try:
            computed = compute()
        except Exception as error:
            if not is_shortage(error):
                raise
            reason = str(error)
        else:
            self._note_well(rows)
            return computed
        self.note_shortage(rows, reason)
        if rows == 1:
            raise CapacityError(NO_MEMORY)
        return None

    def note_shortage(self, rows: int, reason: str) -> None:
        """Device memory has run out in a pass of so many rows: give back what PyTorch keeps for later, and let passes
        be half as large.

        To be called when the error is gone: it holds the frames of the pass, and with them all that they allocated.
        """
        self.num_shortages += 1
        if self._device.type == "cuda":
            gc.collect()  # frames of the pass may refer to each other
            torch.cuda.empty_cache()
        self.most, self._num_well = max(1, min(self.most, rows) // 2), 0
        log.warning("device memory has run out in a pass of %d rows, the next has %d: %s", rows, self.most, reason)

    def _note_well(self, rows: int) -> None:
        self._num_well += rows >= self.most
        if self._num_well == PATIENCE:
            self.most, self._num_well = min(MOST_ROWS, self.most + max(1, self.most // 4)), 0


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that device memory has run out."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _TEXTS)


MODULES, MODULE_ROWS = 8, 256
"""Modules that each row reads, and their tokens: system text, passages, and parts of a conversation."""
SCORED_ROWS = 256
"""Rows of a long question."""


def trial_arena(model: Model, rows: int) -> Arena:
    """An arena for passes of so many rows."""
    return Arena(model.info.kv, MODULES * MODULE_ROWS + rows, model.device)


def run_largest_passes(model: Model, arena: Arena, rows: int, answers: int) -> None:
    """Run passes of so many rows, in an arena that `trial_arena` gave. answers: whose tokens are chosen."""
    chunks = trial_chunks(model.info, rows)
    wanted = min(rows, answers)
    logits = model.forward(chunks, arena, range(rows - wanted, rows))
    samplers = [Sampler(Sampling(temperature=1.0, seed=0)) for _ in range(wanted)]  # needs more than the likeliest
    choose_tokens(logits, samplers, [()] * wanted)
    if model.info.places_modules:
        squares = {
            (view.extent, view.offset): torch.zeros(len(model.info.scored_layers), MODULE_ROWS, device=model.device)
            for view in chunks[0].views
        }
        scored = ScoredChunk(0, min(SCORED_ROWS, len(chunks[0].tokens)), squares)
        model.forward(chunks, arena, [], scored=[scored])


def trial_chunks(info: ModelInfo, rows: int) -> list[Chunk]:
    """So many rows behind the same modules, as few sequences as the model has positions for."""
    offset = 1 if info.is_position_independent else 0
    views = [KVView(Extent(number * MODULE_ROWS, MODULE_ROWS), offset) for number in range(MODULES)]
    chunks = []
    for first in range(0, rows, info.max_positions):
        length = min(info.max_positions, rows - first)
        own = Extent(MODULES * MODULE_ROWS + first, length)
        chunks.append(Chunk([0] * length, range(length), 0, [own], views))
    return chunks


PREFILL_ROWS = 64
"""Passes of fewer rows say little about what computing a module costs."""


class PassTimer(Protocol):
    """The times of passes, one after another, on the thread that launches them. Seconds of `time.perf_counter`."""

    def start(self) -> None:
        """A pass begins."""

    def launched(self, rows: int) -> None:
        """All that computes its rows was given to the device."""

    def to_host(self, x: Tensor) -> Tensor:
        """Copy to the host what was computed last, such as the chosen tokens."""

    def finished(self) -> float:
        """When the device was done with what the host has read of the pass that began last."""

    def costs(self) -> list[tuple[float, int]]:
        """Seconds and rows of the passes that the device has computed since this was last asked."""


class HostTimer:
    """For processors, on which what was called is done when it returns."""

    def __init__(self) -> None:
        self._started = 0.0
        self._costs: list[tuple[float, int]] = []

    def start(self) -> None:
        self._started = time.perf_counter()

    def launched(self, rows: int) -> None:
        self._costs.append((time.perf_counter() - self._started, rows))

    def to_host(self, x: Tensor) -> Tensor:
        return x.cpu()

    def finished(self) -> float:
        return time.perf_counter()

    def costs(self) -> list[tuple[float, int]]:
        costs, self._costs = self._costs, []
        return costs


class TimedEvent(Protocol):
    """A place in what the device does. `torch.cuda.Event` is one."""

    def query(self) -> bool:
        """Whether the device has come to it. Does not wait."""

    def elapsed_time(self, later: Any, /) -> float:
        """Milliseconds from this event to a later one, once the device has come to both."""


class Events(Protocol):
    """Where events come from. `CudaEvents` is one."""

    def is_idle(self) -> bool:
        """Whether the device has done all it was given. Does not wait."""

    def record(self) -> TimedEvent:
        """An event behind all that the device was given so far."""


class EventTimer:
    """For devices that compute behind the host's back."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._start: TimedEvent = events.record()
        self._end = self._start
        # an event that the device came to when it was recorded, and when that was; noted anew as often as possible,
        # because events count milliseconds in float32, which is too coarse after days
        self._anchor = time.perf_counter(), self._start
        self._open: deque[tuple[TimedEvent, TimedEvent, int]] = deque()

    def start(self) -> None:
        is_idle, now = self._events.is_idle(), time.perf_counter()
        self._start = self._events.record()
        if is_idle:  # else the event comes later than now
            self._anchor = now, self._start

    def launched(self, rows: int) -> None:
        self._end = self._events.record()
        self._open.append((self._start, self._end, rows))

    def to_host(self, x: Tensor) -> Tensor:
        self._end = self._events.record()
        return x.cpu()

    def finished(self) -> float:
        if not self._end.query():  # tokens that had to follow were chosen without the device
            return time.perf_counter()
        then, event = self._anchor
        return then + event.elapsed_time(self._end) / 1e3

    def costs(self) -> list[tuple[float, int]]:
        costs = []
        while self._open and self._open[0][1].query():
            start, end, rows = self._open.popleft()
            costs.append((start.elapsed_time(end) / 1e3, rows))
        return costs


class CudaEvents:
    """Events of the stream in which a GPU computes passes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def is_idle(self) -> bool:
        return torch.cuda.current_stream(self._device).query()

    def record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def timer_for(device: torch.device) -> PassTimer:
    """What times passes on a device."""
    return EventTimer(CudaEvents(device)) if device.type == "cuda" else HostTimer()


def note_costs(timer: PassTimer, cost: Cost) -> None:
    """Learn what a row costs from the passes that the device has computed by now."""
    for seconds, rows in timer.costs():
        if rows >= PREFILL_ROWS:
            cost.measured(seconds, rows)


ArenaSize = int | Literal["auto"]
"""Bytes, or what there is room for."""
GIB = 1 << 30
SPARE, LEAST_SPARE = 0.05, GIB // 2
"""Of a GPU's memory, what stays free: the allocator loses some between its blocks, CUDA loads kernels when they are
first used, graphs are captured later, and a request that is computed again has KV memory of its own.
"""
HOST_SHARE, HOST_MOST = 0.25, GIB
"""Of the free main memory, what "auto" takes on a processor, and the most of it: there disk is nearly as fast."""
log.setLevel(logging.INFO)  # one line at each start, which people look for


class Gauge(Protocol):
    """Measures the memory of a device. `CudaGauge` is one."""

    def free(self) -> tuple[int, int]:
        """Bytes that are free, and all there are."""

    def peak_of(self, run: Callable[[], None]) -> int:
        """Bytes that something needs while it runs, at most at a time."""


class CudaGauge:
    """The memory of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free(self) -> tuple[int, int]:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)

    def peak_of(self, run: Callable[[], None]) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


class HostGauge:
    """Main memory."""

    def free(self) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def peak_of(self, run: Callable[[], None]) -> int:
        raise NotImplementedError("what passes need on a processor is not measured")


def allocate_arena(model: Model, size: ArenaSize, answers: int, row_limit: RowLimit) -> Arena:
    """The arena of an engine. answers: how many may be written at the same time. row_limit: of the device. Raises
    CapacityError if there is too little memory.
    """
    device = model.device
    gauge: Gauge = CudaGauge(device) if device.type == "cuda" else HostGauge()
    if size != "auto":
        num_bytes = size
    elif device.type == "cuda":
        num_bytes = room_on_gpu(model, answers, row_limit, gauge)
    else:
        num_bytes = room_on_host(gauge)
    try:
        return Arena(model.info.kv, max(1, num_bytes // model.info.kv.bytes_per_token), device)
    except RuntimeError as error:
        if not is_shortage(error) and "allocate memory" not in str(error):
            raise
    free, total = gauge.free()  # behind the error, which holds what was allocated
    raise CapacityError(
        f"device_memory is {gib(num_bytes)}, and {device} has {gib(free)} of {gib(total)} free: "
        "set device_memory (--memory) lower, or to auto"
    )


def room_on_gpu(model: Model, answers: int, row_limit: RowLimit, gauge: Gauge) -> int:
    """Bytes for the arena of a GPU on which the weights are. Raises CapacityError if there is no room."""
    while (
        peak := row_limit.attempt(row_limit.most, partial(peak_of_passes, model, answers, row_limit, gauge))
    ) is None:
        pass
    free, total = gauge.free()
    spare = max(LEAST_SPARE, int(SPARE * total))
    room = free - peak - spare
    told = f"{gib(free)} of {gib(total)} are free behind the weights, passes need {gib(peak)}, {gib(spare)} are spared"
    if room < model.info.kv.bytes_per_token:
        raise CapacityError(
            f"{model.device} has no room for keys and values ({told}): use a smaller model, or stop what else runs "
            "on the device"
        )
    log.info("memory of %s: %s; %s are for keys and values", model.device, told, gib(room))
    return room


def peak_of_passes(model: Model, answers: int, row_limit: RowLimit, gauge: Gauge) -> int:
    """Bytes that passes need beside the arena."""
    arena = trial_arena(model, row_limit.most)
    return gauge.peak_of(partial(run_largest_passes, model, arena, row_limit.most, answers))


def room_on_host(gauge: Gauge) -> int:
    """Bytes for the arena of a processor."""
    free, total = gauge.free()
    room = min(HOST_MOST, int(HOST_SHARE * free))
    log.info("main memory: %s of %s are free; %s are for keys and values", gib(free), gib(total), gib(room))
    return room


def gib(num_bytes: int) -> str:
    """A size for people."""
    return f"{num_bytes / GIB:.2f} GiB"
