"""When a pass was computed. A GPU computes behind the host's back: a pass returns before it is done, so that the host's
clock says only when it was launched. There events tell, which the device stamps when it comes to them.

Timing waits for nothing: times are read after the tokens of a pass were copied to the host, for which the engine waits
in any case, or at a later pass. Not covered: what is made of the times (`cache.engine.engine_core`).
"""

import time
from collections import deque
from typing import Any, Protocol

import torch
from torch import Tensor

from cache.memory.store import Cost

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
