"""Where the text of answers is made: on the thread that asks for it, or on one of its own, so that the engine goes on
to the next pass meanwhile. Not covered: what is made and who gets it (`cache.engine.answer_text`).

The text of one answer on its way to the reader. Not covered: how it is made (`cache.decoding.sampling`).
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from cache.decoding.sampling import TextStream
from cache.engine.failures import failure_of
from cache.engine.request import Completion, Generation
from cache.errors import CacheError

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


class AnswerText:
    """Gives the reader pieces of text and, behind all of them, one end. What fails ends this answer alone.

    Called by the engine's thread; text is made where `delivery` makes it. failure: why it could not be made, once that
    is known.
    """

    def __init__(self, stream: TextStream, generation: Generation, delivery: TextDelivery) -> None:
        self.failure: CacheError | None = None
        self._stream, self._generation, self._delivery = stream, generation, delivery

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text, as far as it was made."""
        return self._stream.stopped

    def update(self, answer: Sequence[int], *, final: bool) -> None:
        """Deliver what is new in the text. answer: all tokens so far; it may grow while text is made of it."""
        length = len(answer)
        self._delivery.run(lambda: self._deliver_piece(answer[:length], final))

    def end(self, end: Completion | CacheError) -> None:
        """Deliver the end; a completion gets the text here, or ends with `failure` if there is one."""
        self._delivery.run(lambda: self._deliver_end(end))

    def _deliver_piece(self, tokens: Sequence[int], final: bool) -> None:
        if self.failure is not None:
            return
        try:
            self._generation.tokens = tokens  # those that what is delivered was made of, not later ones
            if piece := self._stream.update(tokens, final=final):
                self._generation.deliver(piece)
        except Exception as error:
            self.failure = failure_of("the text of the answer", error)

    def _deliver_end(self, end: Completion | CacheError) -> None:
        if isinstance(end, Completion):
            end = self.failure or replace(end, text=self._stream.text)
        self._generation.deliver(end)
