"""Clocks: work on a device by its events, answers by the wall clock; repeats within a share of time."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Times:
    """Of some runs, in the unit of these."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """In the middle."""
        return statistics.median(self.values)

    @property
    def least(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def most(self) -> float:
        """The largest."""
        return max(self.values)


class Share:
    """Time that a row has, from now on."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether nothing more should be begun."""
        return time.monotonic() >= self._end


def repeated(run: Callable[[], float], repeats: int, share: Share, *, warm_up: int = 2) -> Times:
    """What some runs give, after some that do not count: kernels are compiled then. Fewer when the share is over, but
    at least one.
    """
    for _ in range(warm_up):
        if not share.is_over:
            run()
    values = [run()]
    while len(values) < repeats and not share.is_over:
        values.append(run())
    return Times(tuple(values))


def device_seconds(device: torch.device, run: Callable[[], object]) -> float:
    """Seconds that work takes on its device: between two events of a GPU."""
    if device.type != "cuda":
        started = time.perf_counter()
        run()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has nothing to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
