"""The start and end of an engine's process, and the number of CPUs that a process may use.

The process needs seconds for its imports, so a program starts it before its own imports. If no message arrives, it ends
with its parent. Out of scope: messages to it (`engine_process`), and the child's side (`engine_server`).
"""

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

KILLED_S = 5.0  # maximum wait for the end of a killed child, which may be waiting for a disk
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
                stdout=2,  # to stderr: output of libraries must not mix with the parent's output
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
        """Wait for the end of a process that is ending or was killed. Returns a text that tells how it ended."""
        try:
            status = self._process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            return "killed, but it still waits for a disk or a device"
        return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"

    def close(self) -> None:
        """Kill an unused process and close the socket."""
        self.kill()
        self.end()
        self.socket.close()


CGROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_processors() -> int:
    """Return the number of CPUs that this process may use, at least 1: its affinity, or less if its cgroup limits it.
    PyTorch counts all CPUs of the machine: in a container with 2 of 32 CPUs, 32 threads would wait for each other.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *(math.ceil(limit) for limit in _limits())]))


def _limits() -> Iterator[float]:
    """Yield the CPU limits of each cgroup and its parents. A container's own cgroup may be mounted as the root."""
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
