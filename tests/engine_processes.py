"""Engines in processes of their own, for tests: of a tiny model, forked from a process that has all imports."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

from forked import fork

from cache.engine.request import Limits
from cache.serving import child_process, engine_server
from cache.serving.messages import EngineSpec


def spec_of(folder, modules, **changes):
    """folder: of the model."""
    given = {"model": str(folder), "converted": folder.parent, "modules": modules, "memory": 16 << 20, "disk": 1 << 30}
    given |= {"limits": Limits(running=8), "threads": 1, "dtype": "float32"}
    return EngineSpec(**(given | changes))


class ForkedEngine:
    """Stands for a `subprocess.Popen` of the engine's program."""

    def __init__(self, command, *, pass_fds, **options):
        with socket.socket(fileno=os.dup(*pass_fds)) as end:
            self._process = fork(serve, end)
        self.pid, self.kill = self._process.pid, self._process.kill

    def wait(self, timeout):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("engine", timeout)
        return self._process.exitcode


def serve(end):
    sys.argv[1:] = [str(end.detach())]
    engine_server.main()


def fork_engines(patched):
    """From now on engines' processes are forked. patched: a `MonkeyPatch`."""
    names = SimpleNamespace(Popen=ForkedEngine, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    patched.setattr(child_process, "subprocess", names)
    fork(int).join()  # nobody waits for the imports later
