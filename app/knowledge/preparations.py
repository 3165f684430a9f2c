"""Questions between reading the documents and reaching the engine: what they found may be gone by then.

Whoever removes a document waits for those that began before, and then for the engine (`Engine.forget`). Questions that
begin later find it no more and are not waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Preparations:
    """Counts questions that are being prepared. Safe to use from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: set[object] = set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """From before a question reads the documents until the engine has it."""
        mark = object()
        with self._changed:
            self._open.add(mark)
        try:
            yield
        finally:
            with self._changed:
                self._open.remove(mark)
                self._changed.notify_all()

    def wait(self) -> None:
        """Return when all that are open now have ended."""
        with self._changed:
            earlier = set(self._open)
            self._changed.wait_for(lambda: self._open.isdisjoint(earlier))
