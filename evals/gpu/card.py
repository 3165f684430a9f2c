"""The GPU: its name, clocks, and its lower bounds, measured in the same process as the results compared with them.

  memory    a copy within its memory reads and writes every byte: 2 * size / seconds
  products  a product of two matrices of width n has 2 * n^3 operations
  host      a copy from pinned host memory: size / seconds
Each is the best of several repeats. On a CPU the same is measured with ordinary memory. Work on a GPU is timed by its
events, answers by the wall clock.
"""

import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from evals.gpu.sizes import Sizes
from evals.report import processor
from evals.speed.floor import Floor, shortest, wall_seconds

Times = list[float]
"""Results of several runs, in their unit."""


class Share:
    """The time of a row, from now on."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end


def repeated(run: Callable[[], float], repeats: int, share: Share, *, warm_up: int = 2) -> Times:
    """Run several times, after runs that do not count because kernels are compiled then. Stops at the end of the share,
    but runs at least once.
    """
    for _ in range(warm_up):
        if not share.is_over:
            run()
    values = [run()]
    while len(values) < repeats and not share.is_over:
        values.append(run())
    return values


def device_seconds(device: torch.device, run: Callable[[], object]) -> float:
    """Time work on its device: on a GPU between two events."""
    if device.type != "cuda":
        return wall_seconds(run)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def synchronize(device: torch.device) -> None:
    """Wait until a GPU is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


REPEATS = 10
PACKAGES = ("torch", "transformers", "triton", "torchao")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFloor:
    """What the GPU reached. own: reading and multiplying. host_bytes_per_s: copies from the host."""

    own: Floor
    host_bytes_per_s: float

    def copy_seconds(self, num_bytes: float) -> float:
        """Return the shortest possible time of a copy from the host."""
        return num_bytes / self.host_bytes_per_s


def measure_card(device: torch.device, sizes: Sizes, dtype: torch.dtype) -> CardFloor:
    """Take the best of several repeats. dtype: of the products."""
    fastest = partial(shortest, timed=partial(device_seconds, device), repeats=REPEATS)
    source = torch.ones(sizes.copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    in_host = torch.ones(sizes.copied // 2, dtype=torch.uint8, pin_memory=device.type == "cuda")
    part = target[: len(in_host)]
    left, right = torch.randn(2, sizes.product, sizes.product, device=device).to(dtype)
    return CardFloor(
        own=Floor(
            threads=1,
            bytes_per_s=2 * len(source) / fastest(lambda: target.copy_(source)),
            flops=2 * sizes.product**3 / fastest(lambda: left @ right),
        ),
        host_bytes_per_s=len(in_host) / fastest(lambda: part.copy_(in_host, non_blocking=True)),
    )


def describe_card(device: torch.device) -> dict[str, Any]:
    """Return the GPU and the versions that affect speed, None for a package that is not installed."""
    versions = {name: version_of(name) for name in PACKAGES}
    if device.type != "cuda":
        return {"device": str(device), "card": processor(), **versions}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": str(device),
        "card": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        **versions,
    }


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
