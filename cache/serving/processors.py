"""The number of CPUs that this process may use: its affinity, or less if its cgroup limits its time.

PyTorch counts the machine's CPUs. In a container with 2 of 32 CPUs, 32 threads would wait for each other.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_processors(cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """Return the number, at least 1. cgroups: their mount point. own_groups: the file with this process's groups."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *(math.ceil(limit) for limit in _limits(cgroups, own_groups))]))


def _limits(cgroups: Path, own_groups: Path) -> Iterator[float]:
    """Return the CPUs of each group and its parents. A container's own group may be mounted as the root."""
    for line in _read(own_groups).splitlines():
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        if kinds and "cpu" not in kinds.split(","):
            continue
        folder = cgroups / kinds / path.lstrip("/")
        while folder != cgroups.parent:
            yield from _limit(folder)
            folder = folder.parent


def _limit(folder: Path) -> Iterator[float]:
    """Return a group's limit in cgroup version 2 or 1, if it has one."""
    old = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    numbers = (_read(folder / "cpu.max") or " ".join(old)).split()
    if len(numbers) == 2 and all(number.isdecimal() and int(number) for number in numbers):
        yield int(numbers[0]) / int(numbers[1])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
