"""Waiting for what other threads and processes do."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 60.0
"""Far longer than anything takes, also beside other work: whoever waits so long waits for ever."""


def wait_until(holds: Callable[[], bool]) -> None:
    """Fails where it does not come to be."""
    waiting, end = threading.Event(), time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"it did not come to be within {PATIENCE_S:.0f} s"
        waiting.wait(0.01)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or is only waited for by whoever adopted it."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
