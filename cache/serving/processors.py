"""How many processors this process may use."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_processors() -> int:
    """Return how many CPUs this process may use, at least 1: its affinity, or less if its cgroup limits its time.
    PyTorch counts all CPUs of the machine: in a container with 2 of 32 CPUs, 32 threads would wait for each other.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *(math.ceil(limit) for limit in _limits())]))


def _limits() -> Iterator[float]:
    """Return the CPUs of each group and its parents. A container's own group may be mounted as the root."""
    for line in _read(OWN_GROUPS).splitlines():
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        if kinds and "cpu" not in kinds.split(","):
            continue
        folder = CGROUPS / kinds / path.lstrip("/")
        while folder != CGROUPS.parent:
            yield from _limit(folder)
            folder = folder.parent


def _limit(folder: Path) -> Iterator[float]:
    old = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    numbers = (_read(folder / "cpu.max") or " ".join(old)).split()
    if len(numbers) == 2 and all(number.isdecimal() and int(number) for number in numbers):
        yield int(numbers[0]) / int(numbers[1])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
