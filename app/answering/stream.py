"""An answer on its way to the reader. It is recorded when it ends, also if the reader has left before that."""

import logging
import threading
import time
from collections.abc import Iterator
from typing import Protocol
from weakref import WeakSet, finalize

from app.answering.check import CheckedText
from app.answering.record import AskedQuestion, finished, without_model
from app.answering.recording import record_patiently
from app.domain.answers import BETWEEN, Answer
from app.domain.errors import DeskError
from app.storage.history import History
from cache.engine.request import Generation
from cache.errors import CacheError, EngineFull, PromptError

log = logging.getLogger(__name__)


class AnswerInProgress:
    """The desk's own `app.desk.interface.AnswerStream`."""

    def __init__(
        self,
        history: History,
        asked: AskedQuestion,
        running: tuple[Generation, CheckedText] | None,
        open_answers: "OpenAnswers",
    ) -> None:
        """running: the engine's answer and its text as it may be shown; None if the model is not asked."""
        self._history, self._asked, self._running = history, asked, running
        self._answer: Answer | None = None
        self._finishing = threading.Lock()
        self.is_finished = threading.Event()
        self._open = open_answers
        self._open.add(self)
        finalize(self, history.ended, asked.question_id)  # nobody has to read it

    def __iter__(self) -> Iterator[str]:
        says = self._asked.prepared.decision.says
        if self._running is None:
            try:
                self._answer, details = without_model(self._asked)
                self._history.record_answer(self._answer, details)
            finally:
                self._ended()
            yield says
            return
        generation, shown = self._running
        try:
            lead = says + BETWEEN if says else ""  # with the first words: alone it would be no answer
            for piece in shown:
                yield lead + piece
                lead = ""
        except CacheError as error:
            raise engine_failed(error) from error
        except BaseException:  # the reader has left: what there is so far is kept
            generation.cancel()
            raise
        finally:
            self.finish()

    @property
    def conversation_id(self) -> str:
        """Where the answer is recorded."""
        return self._asked.conversation_id

    def cancel(self) -> None:
        """Stop generating soon."""
        if self._running is not None:
            self._running[0].cancel()

    @property
    def answer(self) -> Answer:
        """The whole answer, after the end of the iteration. Raises DeskError if there is none."""
        if self._answer is None:
            raise DeskError("there is no answer: it was stopped before it began", code="no-answer")
        return self._answer

    def finish(self) -> None:
        """Wait for the engine, and record what it said as far as it was shown. Once; also if nobody reads any more."""
        with self._finishing:
            if self._running is None or self.is_finished.is_set():
                return
            generation, shown = self._running
            try:
                completion = generation.completion
                if shown.text or not (completion.finish_reason == "cancelled" or completion.silence):
                    self._answer, details = finished(completion, shown, self._asked)
                    record_patiently(self._history, self._answer, details, self._open.is_ending)
            except CacheError:
                return
            finally:
                self._ended()

    def _ended(self) -> None:
        is_withdrawn = bool(self._asked.replaces) and self._answer is None
        self._history.ended(self._asked.question_id, is_withdrawn=is_withdrawn)
        self._open.remove(self)
        self.is_finished.set()


def engine_failed(error: CacheError) -> DeskError:
    """What readers get for an answer that the engine did not give."""
    codes = ((EngineFull, "engine-full"), (PromptError, "context-full"))
    return DeskError(str(error), code=next((code for kind, code in codes if isinstance(error, kind)), "engine"))


class OpenAnswer(Protocol):
    """What can be ended: an `AnswerInProgress`, or an answer of the language model alone."""

    is_finished: threading.Event

    def cancel(self) -> None: ...

    def finish(self) -> None: ...


class OpenAnswers:
    """The answers on their way. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_ending = threading.Event()
        self._answers: WeakSet[OpenAnswer] = WeakSet()  # nobody has to read an answer that was asked for

    def add(self, answer: OpenAnswer) -> None:
        """An answer begins."""
        with self._lock:
            self._answers.add(answer)

    def remove(self, answer: OpenAnswer) -> None:
        """It is recorded, or there is none."""
        with self._lock:
            self._answers.discard(answer)

    def end(self, patience_s: float, most_s: float = 8.0) -> None:
        """Stop them all, and record what they said so far. patience_s: how long their readers, together, have to read
        what was generated; what they did not read is not recorded. most_s: how long recording may take; an engine or a
        database that hangs must not keep the desk from ending.
        """
        self.is_ending.set()
        with self._lock:
            answers = list(self._answers)
        for answer in answers:
            answer.cancel()
        deadline = time.monotonic() + patience_s
        answers = [one for one in answers if not one.is_finished.wait(max(0.0, deadline - time.monotonic()))]
        finishing = [threading.Thread(target=_finish, args=(one,), daemon=True) for one in answers]
        for thread in finishing:  # one each, so that none waits for another one
            thread.start()
        deadline = time.monotonic() + most_s
        for thread in finishing:
            thread.join(max(0.0, deadline - time.monotonic()))
        if left := sum(thread.is_alive() for thread in finishing):
            log.error("%d of the answers did not end within %g s and are not recorded", left, most_s)


def _finish(answer: OpenAnswer) -> None:
    try:
        answer.finish()
    except Exception as error:  # the others are recorded all the same
        log.error("an answer could not be recorded: %s", error)
