"""The text of one answer on its way to the reader. Not covered: how it is made (`cache.decoding.text_stream`)."""

from collections.abc import Sequence
from dataclasses import replace

from cache.decoding.text_stream import TextStream
from cache.engine.failures import failure_of
from cache.engine.request import Completion, Generation
from cache.engine.text_delivery import TextDelivery
from cache.errors import CacheError


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
