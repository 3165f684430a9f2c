"""Processes that tests start, forked from one that has imported what takes seconds.

That one, a fork server, starts with the first of them and imports for seconds itself, or it is forked from a process
that has imported everything (`serve_forks`).
"""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess
from multiprocessing.util import Finalize
from typing import Any
from unittest.mock import patch

CONTEXT = multiprocessing.get_context("forkserver")
IMPORTED = ["desks", "desk_site", "app.cli.opening", "cache.serving.engine_server", "transformers.modeling_utils"]
CONTEXT.set_forkserver_preload(IMPORTED)


def serve_forks() -> None:
    """Start the fork server as a fork of this process, which has no threads yet."""

    def fork_instead(path: bytes, arguments: list[str], kept: list[int]) -> int:
        if pid := os.fork():
            return pid
        try:
            logging.root.handlers.clear()  # of pytest
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in {int(name) for name in os.listdir("/dev/fd")} - {0, 1, 2, nowhere, *kept}:
                os.dup2(nowhere, number, inheritable=False)  # else nobody would see that this process has closed it
            forkserver._forkserver._lock.release()  # else its processes could have no fork server of their own
            exec(arguments[-1])  # the fork server's program
        finally:
            os._exit(0)

    resource_tracker.ensure_running()  # a process of its own, started the same way
    with patch("multiprocessing.util.spawnv_passfds", fork_instead):
        forkserver.ensure_running()


def fork(main: Callable[..., object], *arguments: Any) -> ForkServerProcess:
    """Run a function in a process of its own, which is killed with this one, even if it is stopped."""
    process = CONTEXT.Process(target=main, args=arguments)  # no daemon: it may start others
    process.start()
    Finalize(None, process.kill, exitpriority=1)
    return process


class Forked:
    """A function in a process of its own; stands for a `subprocess.Popen` with pipes."""

    def __init__(self, main: Callable[..., object], *arguments: Any) -> None:
        (in_, to_it), (out, to_out), (err, to_err) = pipes = [CONTEXT.Pipe(duplex=False) for _ in range(3)]
        self._process = fork(_run, [in_, to_out, to_err], main, arguments)
        self.pid, self.kill = self._process.pid or 0, self._process.kill
        self.stdin = os.fdopen(os.dup(to_it.fileno()), "w")
        self.stdout, self.stderr = (os.fdopen(os.dup(end.fileno())) for end in (out, err))
        for end in (end for pipe in pipes for end in pipe):
            end.close()

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return self._process.exitcode

    def result(self) -> tuple[int, str, str]:
        """How it ended, and what it wrote, less than a pipe holds."""
        status = self.wait(240)
        return status, self.stdout.read(), self.stderr.read()


def _run(ends: list[Any], main: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin = os.fdopen(0)
    main(*arguments)


def run_module(command: Sequence[str]) -> None:
    """What `python -P -m MODULE ARGUMENTS` does."""
    sys.argv[1:] = command[4:]
    import_module(command[3]).main()
