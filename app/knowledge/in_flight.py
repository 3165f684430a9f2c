"""Questions, and batches to be encoded, between reading conversation and documents and reaching the engine: a passage
they found, or on which an earlier answer rests, may be removed meanwhile.

Whoever removes a document waits for the questions that began before, and then for the engine (`Engine.forget`).
Questions that begin later do not find the document and are not waited for.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class InFlight:
    """Counts these questions. Safe to use from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: set[object] = set()

    @contextmanager
    def track(self) -> Iterator[None]:
        """For the time from before a question reads its conversation and the documents until the engine has it."""
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
        """Return when all questions that are in flight now have ended."""
        with self._changed:
            earlier = set(self._open)
            self._changed.wait_for(lambda: self._open.isdisjoint(earlier))
