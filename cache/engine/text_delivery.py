"""Where the text of answers is made: on the thread that asks for it, or on one of its own, so that the engine goes on
to the next pass meanwhile. Not covered: what is made and who gets it (`cache.engine.answer_text`).
"""

import logging
import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]
log = logging.getLogger(__name__)


class TextDelivery:
    """Runs each job at once, on the thread that asks."""

    def run(self, job: Job) -> None:
        """Run a job behind those before it."""
        job()

    def flush(self) -> None:
        """Wait until all jobs have run that were given before."""

    def close(self) -> None:
        """Run what is left; later jobs are not taken."""


class TextThread(TextDelivery):
    """Runs jobs in order on a thread of its own, from the first job until `close`. One thread may give them."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, job: Job) -> None:
        """Run a job later, behind those before it. What it raises goes to the log and stops no other."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="warmdesk-text", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def flush(self) -> None:
        """Wait until all jobs have run that were given before."""
        if self._thread is not None:
            done = threading.Event()
            self._jobs.put(done.set)
            done.wait()

    def close(self) -> None:
        """Run what is left and end the thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                log.exception("text could not be delivered")
