"""The interface of a running answer, which pages and the API read."""

from collections.abc import Iterator
from typing import Literal, Protocol, TypeVar

Feedback = Literal["up", "down"]
T_co = TypeVar("T_co", covariant=True)


class AnswerStream(Protocol[T_co]):
    """A running answer. Iterating returns its text in pieces and may raise DeskError. Citations and numbers are in
    `answer`, which may be read only after the iteration has ended without an error.

    `cancel` may be called from another thread, more than once, and after the end. It does not wait: the iteration ends
    soon afterwards, and `answer` is the text until then. A desk's answer is stored like any other, with a notice. If
    there is no text yet, both raise DeskError (no-answer), and nothing is stored.
    """

    def __iter__(self) -> Iterator[str]: ...

    @property
    def answer(self) -> T_co: ...

    def cancel(self) -> None: ...
