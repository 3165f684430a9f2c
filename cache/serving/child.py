"""A child process with an engine: started with one end of a pair of sockets, ended when the other end is closed.

Nothing listens, and the socket has no name: nobody else can connect. Not covered: what is asked of it (`exchange`).
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cache.errors import CacheError
from cache.serving.connection import Connection
from cache.serving.messages import Begin, Begun, Failed, FromEngine, encoded, read_all
from cache.serving.spec import EngineSpec

SEND_S = 20
"""A process that reads nothing for so long hangs."""
KILLED_S = 5.0
"""How long one that is killed may take to end: it may wait for a disk."""
_ROOT = Path(__file__).resolve().parents[2]
_MODULE = "cache.serving.engine_server"


class Child:
    """The process, from its start on. messages: what it sends."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints must not stand in what the parent prints
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), _python_path())))},
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        self.connection = Connection(ours, SEND_S)
        self.messages: Iterator[Any] = read_all(self.connection.frames(), FromEngine)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def begin(self, spec: EngineSpec) -> Begun:
        """Have it load the model; waits for it. Raises CacheError."""
        try:
            self.connection.send(encoded(Begin(spec)))
            first = next(self.messages, None)
        except OSError:
            first = None
        if isinstance(first, Begun):
            return first
        if isinstance(first, Failed):
            raise first.error.error()
        raise CacheError(f"the engine's process could not begin ({self.end(0)}): see what it wrote to stderr")

    def kill(self) -> None:
        """At once. Its messages end, too, even if it cannot."""
        self._process.kill()
        self.connection.close()

    def end(self, patience_s: float) -> str:
        """Let it end by itself, at last by force; gives how it ended."""
        self.connection.end_sending()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
        try:
            status = self._process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            return "killed, but it waits for a disk or a device before it ends"
        return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"


def _python_path() -> str:
    return os.environ.get("PYTHONPATH", "")
