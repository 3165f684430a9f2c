"""Waiting for what other threads and processes do."""

from __future__ import annotations

import threading
from collections.abc import Callable


def wait_until(holds: Callable[[], bool]) -> None:
    """Without a time of its own: the test's limit ends it."""
    waiting = threading.Event()
    while not holds():
        waiting.wait(0.01)
