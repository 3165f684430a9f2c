"""The process of an engine, before anything is said to it.

It imports for seconds, so it is started first, by a program that has imported nothing itself. Without a message it ends
with its parent. Out of scope: what is said to it (`engine_process`), and the child's side (`engine_server`).
"""

import os
import signal
import socket
import subprocess
import sys
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
        """End it, in case that nobody has used it."""
        self.kill()
        self.end()
        self.socket.close()
