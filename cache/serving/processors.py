"""How many processors this process may use: those that it may run on, or fewer where its cgroup limits its time.

PyTorch counts the machine's. In a container with 2 of 32 processors, 32 threads would wait for each other all the time.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_processors(cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """At least 1. cgroups: where they are mounted. own_groups: the file that names those of this process."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *(math.ceil(limit) for limit in _limits(cgroups, own_groups))]))


def _limits(cgroups: Path, own_groups: Path) -> Iterator[float]:
    """Processors that each group allows, with those above it. A container's own may be mounted as the outermost."""
    for line in _read(own_groups).splitlines():
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        if kinds and "cpu" not in kinds.split(","):
            continue
        folder = cgroups / kinds / path.lstrip("/")
        while folder != cgroups.parent:
            yield from _limit(folder)
            folder = folder.parent


def _limit(folder: Path) -> Iterator[float]:
    """What a group allows, by version 2 or 1 of cgroups, if it limits anything."""
    old = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    numbers = (_read(folder / "cpu.max") or " ".join(old)).split()
    if len(numbers) == 2 and all(number.isdecimal() and int(number) for number in numbers):
        yield int(numbers[0]) / int(numbers[1])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
