"""The stream of a GPU on which keys and values are copied, beside the one that computes, and memory that it can read.

A stream does what it is given in order, and nobody waits for it but by events. Copies beside computation need host
memory whose pages are locked (pinned). Not covered: what is copied, and who waits for it (`cache.memory.copies`).
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from cache.errors import CacheError


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
