"""Device memory of an engine: the size of its KV pool, and the size and times of its forward passes.

The pool has the configured bytes, or "auto": on a GPU the free memory after the weights, minus a reserve and the need
of the largest passes, which are run on made-up tokens; on a CPU a share of the free main memory. If memory runs out in
a pass, the maximum pass size is halved, and slowly raised again (`RowLimit`).

A GPU computes after the launching call has returned, so passes are timed by events on the device, read when the engine
waits for tokens anyway. Out of scope: work that does not fit even alone (`engine_core`).
"""

import gc
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import psutil
import torch
from torch import Tensor

from cache.attention.items import Chunk, KVView, ScoredChunk
from cache.decoding.choosing import choose_tokens
from cache.decoding.sampling import Sampler, Sampling
from cache.engine.scheduler import MOST_ROWS, Sequence
from cache.errors import NO_MEMORY, CapacityError, is_shortage
from cache.memory.arena import Arena, Event, Extent
from cache.memory.kv_shape import ArenaSize, KVShape
from cache.memory.store import Cost
from cache.model.info import ModelInfo
from cache.model.language_model import Model

T = TypeVar("T")
PATIENCE = 64
"""Number of full passes that must succeed before the limit rises by a quarter. Too high a limit costs a failed pass."""
log = logging.getLogger(__name__)


class RowLimit:
    """Adapts the size of passes. most: rows that a pass may have now. num_shortages: how often memory ran out."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.most, self.num_shortages = MOST_ROWS, 0
        self._computed: dict[Sequence, int] = {}  # number of the last cut pass in which each sequence had rows
        self._num_cut = self._num_well = 0

    def fit(self, scheduled: dict[Sequence, int]) -> dict[Sequence, int]:
        """Reduce a pass to at most `most` rows. scheduled: rows by sequence. Sequences that waited longest go first."""
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
        """Return the result of a pass of `rows` rows; None if device memory ran out and smaller passes should be tried.
        Raises CapacityError for a pass of one row, and the other errors of `compute`.
        """
        try:
            computed = compute()
        except Exception as error:
            if not is_shortage(error):
                raise
            reason = str(error)
        else:
            self._num_well += rows >= self.most
            if self._num_well == PATIENCE:
                self.most, self._num_well = min(MOST_ROWS, self.most + max(1, self.most // 4)), 0
            return computed
        self.note_shortage(rows, reason)
        if rows == 1:
            raise CapacityError(NO_MEMORY)
        return None

    def note_shortage(self, rows: int, reason: str) -> None:
        """Release PyTorch's cached memory after a shortage, and halve the limit. Call it after the exception is
        released, because its frames hold the memory of the pass.
        """
        self.num_shortages += 1
        if self._device.type == "cuda":
            gc.collect()  # frames of the pass may refer to each other
            torch.cuda.empty_cache()
        self.most, self._num_well = max(1, min(self.most, rows) // 2), 0
        log.warning("device memory ran out in a pass of %d tokens; the next one has %d: %s", rows, self.most, reason)


MODULES, MODULE_ROWS = 8, 256
"""Number of modules that each row of a trial pass reads, and tokens of each: system text, passages, earlier turns."""
SCORED_ROWS = 256  # rows of a long question


def trial_arena(model: Model, rows: int) -> Arena:
    return Arena(model.info.kv, MODULES * MODULE_ROWS + rows, model.device)


def run_largest_passes(model: Model, arena: Arena, rows: int, answers: int) -> None:
    """Run the largest passes in a pool of `trial_arena`. answers: number of tokens to choose."""
    chunks = trial_chunks(model.info, rows)
    wanted = min(rows, answers)
    logits = model.forward(chunks, arena, range(rows - wanted, rows))
    # sampling needs more memory than the most likely token
    samplers = [Sampler(Sampling(temperature=1.0, seed=0)) for _ in range(wanted)]
    choose_tokens(logits, samplers, [()] * wanted)
    if model.info.places_modules:
        squares = {
            (view.extent, view.offset): torch.zeros(len(model.info.scored_layers), MODULE_ROWS, device=model.device)
            for view in chunks[0].views
        }
        scored = ScoredChunk(0, min(SCORED_ROWS, len(chunks[0].tokens)), squares)
        model.forward(chunks, arena, [], scored=[scored])


def trial_chunks(info: ModelInfo, rows: int) -> list[Chunk]:
    """Return `rows` rows after the same modules, in as few sequences as the model's positions allow."""
    offset = 1 if info.is_position_independent else 0
    views = [KVView(Extent(number * MODULE_ROWS, MODULE_ROWS), offset) for number in range(MODULES)]
    chunks = []
    for first in range(0, rows, info.max_positions):
        length = min(info.max_positions, rows - first)
        own = Extent(MODULES * MODULE_ROWS + first, length)
        chunks.append(Chunk([0] * length, range(length), 0, [own], views))
    return chunks


PREFILL_ROWS = 64  # smaller passes tell little about the cost of a module


class PassTimer:
    """Measures consecutive passes on the launching thread, in seconds of `time.perf_counter`. On a CPU, a call returns
    when its work is done.
    """

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
        """Return the time when the device finished the values that the host has read from the latest pass."""
        return time.perf_counter()

    def costs(self) -> list[tuple[float, int]]:
        """Return seconds and rows of the passes finished since the last call."""
        costs, self._costs = self._costs, []
        return costs


class CudaEvents:
    """Records events in the stream in which a GPU computes passes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def is_idle(self) -> bool:
        return torch.cuda.current_stream(self._device).query()

    def record(self) -> Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


class EventTimer(PassTimer):
    """Measures passes on a device that computes asynchronously."""

    def __init__(self, events: CudaEvents) -> None:
        self._events = events
        self._start: Event = events.record()
        self._end = self._start
        # an event that the device passed when it was recorded, and that time; renewed as often as possible,
        # because events count milliseconds in float32, which is too coarse after days
        self._anchor = time.perf_counter(), self._start
        self._open: deque[tuple[Event, Event, int]] = deque()

    def start(self) -> None:
        is_idle, now = self._events.is_idle(), time.perf_counter()
        self._start = self._events.record()
        if is_idle:  # otherwise the event is later than now
            self._anchor = now, self._start

    def launched(self, rows: int) -> None:
        self._end = self._events.record()
        self._open.append((self._start, self._end, rows))

    def to_host(self, x: Tensor) -> Tensor:
        self._end = self._events.record()
        return x.cpu()

    def finished(self) -> float:
        if not self._end.query():  # forced tokens were chosen without the device
            return time.perf_counter()
        then, event = self._anchor
        return then + event.elapsed_time(self._end) / 1e3

    def costs(self) -> list[tuple[float, int]]:
        costs = []
        while self._open and self._open[0][1].query():
            start, end, rows = self._open.popleft()
            costs.append((start.elapsed_time(end) / 1e3, rows))
        return costs


def timer_for(device: torch.device) -> PassTimer:
    return EventTimer(CudaEvents(device)) if device.type == "cuda" else PassTimer()


def note_costs(timer: PassTimer, cost: Cost) -> None:
    for seconds, rows in timer.costs():
        if rows >= PREFILL_ROWS:
            cost.measured(seconds, rows)


GIB = 1 << 30
SPARE, LEAST_SPARE = 0.05, GIB // 2
"""Share of a GPU's memory that stays free, and its minimum: for fragmentation, for kernels and graphs that are loaded
later, and for a recomputed request with its own KV memory.
"""
HOST_SHARE, HOST_MOST, HOST_TOKENS = 0.25, GIB * 3 // 4, 32_768
"""Share of the free main memory for "auto" on a CPU, and its maximum: HOST_MOST bytes, or HOST_TOKENS tokens if they
need more. The disk is nearly as fast, and a server with the bundled model stays below 2 GiB.
"""
log.setLevel(logging.INFO)  # one line per start, for operators


class Gauge:
    """Measures memory of a device. This class measures main memory."""

    def free(self) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def peak_of(self, run: Callable[[], None]) -> int:
        raise NotImplementedError("the memory of passes on a CPU is not measured")


class CudaGauge(Gauge):
    """Measures memory of a GPU."""

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


def allocate_arena(model: Model, size: ArenaSize, answers: int, row_limit: RowLimit) -> Arena:
    """Allocate an engine's KV pool. answers: number at the same time. Raises CapacityError if memory is short."""
    device = model.device
    gauge = CudaGauge(device) if device.type == "cuda" else Gauge()
    if size != "auto":
        num_bytes = size
    elif device.type == "cuda":
        num_bytes = room_on_gpu(model, answers, row_limit, gauge)
    else:
        num_bytes = room_on_host(model.info.kv, gauge)
    try:
        return Arena(model.info.kv, max(1, num_bytes // model.info.kv.bytes_per_token), device)
    except RuntimeError as error:
        if not is_shortage(error) and "allocate memory" not in str(error):
            raise
    free, total = gauge.free()  # after the error, which holds the allocated memory
    raise CapacityError(
        f"device_memory is {gib(num_bytes)}, and {device} has {gib(free)} of {gib(total)} free: "
        "set device_memory (--memory) lower, or to auto"
    )


def room_on_gpu(model: Model, answers: int, row_limit: RowLimit, gauge: Gauge) -> int:
    """Return the bytes for the KV pool of a GPU with the weights loaded. Raises CapacityError if none are left."""
    while (
        peak := row_limit.attempt(row_limit.most, partial(peak_of_passes, model, answers, row_limit, gauge))
    ) is None:
        pass
    free, total = gauge.free()
    spare = max(LEAST_SPARE, int(SPARE * total))
    room = free - peak - spare
    told = f"{gib(free)} of {gib(total)} are free after the weights, passes need {gib(peak)}, {gib(spare)} stay free"
    if room < model.info.kv.bytes_per_token:
        raise CapacityError(
            f"{model.device} has no room for keys and values ({told}): use a smaller model, or stop other "
            "programs on the device"
        )
    log.info("memory of %s: %s; %s are used for keys and values", model.device, told, gib(room))
    return room


def peak_of_passes(model: Model, answers: int, row_limit: RowLimit, gauge: Gauge) -> int:
    arena = trial_arena(model, row_limit.most)
    return gauge.peak_of(partial(run_largest_passes, model, arena, row_limit.most, answers))


def room_on_host(kv: KVShape, gauge: Gauge) -> int:
    free, total = gauge.free()
    room = min(max(HOST_MOST, HOST_TOKENS * kv.bytes_per_token), int(HOST_SHARE * free))
    log.info("main memory: %s of %s are free; %s are used for keys and values", gib(free), gib(total), gib(room))
    return room


def gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
