"""The card: what it is called, and the floors that it sets, measured in the same process as what is compared with them.

  memory   a copy within its memory reads and writes every byte, so bytes per second are 2 * size / seconds
  products a product of two matrices of width n is 2 * n^3 operations
  host     a copy from page-locked memory of the host: size / seconds
Each is the best of some repeats. On a processor the same is done with ordinary memory.
"""

import importlib.metadata
from dataclasses import dataclass
from typing import Any

import torch

from evals.floor import Floor
from evals.gpu.sizes import Sizes
from evals.gpu.timing import device_seconds
from evals.machine import processor

REPEATS = 10
PACKAGES = ("torch", "transformers", "triton", "torchao")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFloor:
    """What the card reached. own: reading and multiplying. host_bytes_per_s: copies from the host."""

    own: Floor
    host_bytes_per_s: float

    def copy_seconds(self, num_bytes: float) -> float:
        """The least for bringing so many bytes from the host."""
        return num_bytes / self.host_bytes_per_s


def measure_card(device: torch.device, sizes: Sizes, dtype: torch.dtype) -> CardFloor:
    """Best of some repeats; dtype: of the products."""
    source = torch.ones(sizes.copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    in_host = torch.ones(sizes.copied // 2, dtype=torch.uint8, pin_memory=device.type == "cuda")
    part = target[: len(in_host)]
    left, right = torch.randn(2, sizes.product, sizes.product, device=device).to(dtype)
    return CardFloor(
        own=Floor(
            threads=1,
            bytes_per_s=2 * len(source) / best(device, lambda: target.copy_(source)),
            flops=2 * sizes.product**3 / best(device, lambda: left @ right),
        ),
        host_bytes_per_s=len(in_host) / best(device, lambda: part.copy_(in_host, non_blocking=True)),
    )


def best(device: torch.device, run: Any) -> float:
    """Seconds of the fastest of some runs, after three that do not count."""
    for _ in range(3):
        run()
    return min(device_seconds(device, run) for _ in range(REPEATS))


def describe_card(device: torch.device) -> dict[str, Any]:
    """For the result: the card, and the versions that matter for speed; None where a package is not installed."""
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
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
