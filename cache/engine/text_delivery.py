"""Delivery of an answer's text or error. Text is made on the calling thread, or on a separate thread so that the engine
can start the next pass. Out of scope: turning tokens into text (`cache.decoding.sampling`).
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from cache.decoding.sampling import TextStream
from cache.engine.request import Completion, Generation
from cache.errors import CacheError, failure_of

log = logging.getLogger(__name__)

Job = Callable[[], None]


class TextDelivery:
    """Runs each job at once, on the calling thread."""

    def run(self, job: Job) -> None:
        job()

    def flush(self) -> None:
        """Wait for all earlier jobs."""

    def close(self) -> None:
        """Run the remaining jobs. Later jobs are not accepted."""


class TextThread(TextDelivery):
    """Runs jobs in order on a thread of its own, from the first job until `close`. Only one thread may submit jobs."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, job: Job) -> None:
        """Queue a job. Its error goes to the log and stops no other job."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="warmdesk-text", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def flush(self) -> None:
        if self._thread is not None:
            done = threading.Event()
            self._jobs.put(done.set)
            done.wait()

    def close(self) -> None:
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


class AnswerText:
    """Delivers pieces of text and then the end, a completion or an error, to the reader. An error ends only this
    answer. `delivery` makes the text. failure: the error if the text could not be made.
    """

    def __init__(self, stream: TextStream, generation: Generation, delivery: TextDelivery) -> None:
        self.failure: CacheError | None = None
        self.stream, self._generation, self._delivery = stream, generation, delivery

    def update(self, answer: Sequence[int], *, final: bool) -> None:
        """Deliver the new text. answer: all tokens so far; the list may grow later."""
        length = len(answer)
        self._delivery.run(lambda: self._deliver_piece(answer[:length], final))

    def end(self, end: Completion | CacheError) -> None:
        """Deliver the end. A completion gets its text here, or `failure` replaces it if the text could not be made."""
        self._delivery.run(lambda: self._deliver_end(end))

    def _deliver_piece(self, tokens: Sequence[int], final: bool) -> None:
        if self.failure is not None:
            return
        try:
            self._generation.tokens = tokens  # those of the delivered text, not later ones
            if piece := self.stream.update(tokens, final=final):
                self._generation.deliver(piece)
        except Exception as error:
            self.failure = failure_of("the text of the answer", error)

    def _deliver_end(self, end: Completion | CacheError) -> None:
        if isinstance(end, Completion):
            end = self.failure or replace(end, text=self.stream.text)
        self._generation.deliver(end)
