"""The process of an engine, before anything is said to it, and how many processors a process may use.

It imports for seconds, so it is started first, by a program that has imported nothing itself. Without a message it ends
with its parent. Out of scope: what is said to it (`engine_process`), and the child's side (`engine_server`).
"""

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

KILLED_S = 5.0  # seconds that a killed child may take to end: it may wait for a disk
_ROOT = Path(__file__).resolve().parents[2]
_MODULE = "cache.serving.engine_server"


class ChildProcess:
    """A process with one end of a socket pair. socket: the other end, which the owner closes."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        paths = filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # a library's output must not appear in the parent's
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # the parent handles Ctrl-C
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def has_ended(self, patience_s: float) -> bool:
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> str:
        """Wait for the end of a process that ends or was killed. Returns how it ended."""
        try:
            status = self._process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            return "killed, but it still waits for a disk or a device"
        return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"

    def close(self) -> None:
        """Kill a process that was not used."""
        self.kill()
        self.end()
        self.socket.close()


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
