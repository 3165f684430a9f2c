"""An answer on its way to the reader. It is recorded when it ends, also if the reader has left before that."""

from collections.abc import Iterator

from app.answering.check import CheckedText
from app.answering.record import AskedQuestion, finished, without_model
from app.domain.answers import BETWEEN, Answer
from app.domain.errors import DeskError
from app.storage.history import History
from cache.engine.request import Generation
from cache.errors import CacheError


class AnswerInProgress:
    """The desk's own `app.desk.interface.AnswerStream`."""

    def __init__(self, history: History, asked: AskedQuestion, running: tuple[Generation, CheckedText] | None) -> None:
        """running: the engine's answer and its text as it may be shown; None if the model is not asked."""
        self._history, self._asked, self._running = history, asked, running
        self._answer: Answer | None = None

    def __iter__(self) -> Iterator[str]:
        says = self._asked.prepared.decision.says
        if self._running is None:
            self._answer, details = without_model(self._asked)
            self._history.record_answer(self._answer, details)
            yield says
            return
        generation, shown = self._running
        try:
            lead = says + BETWEEN if says else ""  # with the first words: alone it would be no answer
            for piece in shown:
                yield lead + piece
                lead = ""
        except CacheError as error:
            raise DeskError(str(error), code="engine") from error
        except BaseException:  # the reader has left: what there is so far is kept
            generation.cancel()
            raise
        finally:
            self._finish(generation, shown)

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

    def _finish(self, generation: Generation, shown: CheckedText) -> None:
        try:
            completion = generation.completion
        except CacheError:
            return
        if shown.text or completion.finish_reason != "cancelled":
            self._answer, details = finished(completion, shown, self._asked)
            self._history.record_answer(self._answer, details)
