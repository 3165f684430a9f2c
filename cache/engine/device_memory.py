"""How large the arena is: as many bytes as were asked for, or "auto", what the device has room for.

On a GPU that is what is free behind the weights, less what the largest pass was measured to need (`trial_pass`), less
something to spare. On a processor it is a share of the free main memory. Not covered: what is kept in the arena.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

import psutil
import torch

from cache.engine.row_limit import RowLimit, is_shortage
from cache.engine.trial_pass import run_largest_passes, trial_arena
from cache.errors import CapacityError
from cache.memory.arena import Arena
from cache.model.language_model import Model

ArenaSize = int | Literal["auto"]
"""Bytes, or what there is room for."""
GIB = 1 << 30
SPARE, LEAST_SPARE = 0.05, GIB // 2
"""Of a GPU's memory, what stays free: the allocator loses some between its blocks, CUDA loads kernels when they are
first used, graphs are captured later, and a request that is computed again has KV memory of its own.
"""
HOST_SHARE, HOST_MOST = 0.25, GIB
"""Of the free main memory, what "auto" takes on a processor, and the most of it: there disk is nearly as fast."""
log = logging.getLogger(__name__)
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
