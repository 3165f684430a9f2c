"""Whose conversations a request is about. Who sends it was found by the guard, which also checked what it may do.

An answer that is generated in a thread of its own and read by the event loop, which never waits for the engine.

Who leaves stops the answer at once; what there is of it is stored by the thread, as with any other. Threads of their
own, because those of the framework are few and would all be taken by long answers.
"""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from app.access.identity import Keys
from app.api.wire import ApiError
from app.desk.interface import AnswerStream
from app.domain.callers import Caller
from app.domain.logs import in_request

_KEY = "k-"


def owner_of(caller: Caller, user: str | None) -> str:
    """Whose conversations: the caller's, or those of one of its own users. user: OpenAI's field; any text. Only keys
    speak for others.
    """
    if not user or not caller.owner.startswith(_KEY):
        return caller.owner
    return f"{caller.owner}-{hashlib.sha256(user.encode('utf-8', 'replace')).hexdigest()[:16]}"


def count(caller: Caller, keys: Keys) -> None:
    """Count a request that costs something. Raises ApiError when the key has sent too many within a minute."""
    if wait_s := keys.seconds_to_wait(caller):
        raise ApiError(
            429,
            f"this key has sent as many requests as it may in a minute: try again in {wait_s} s",
            "rate_limit_exceeded",
            headers={"retry-after": str(wait_s)},
        )


T = TypeVar("T")


class RunningAnswer(Generic[T]):
    """Iterate, once, for its pieces; then read `answer`. To be made in an event loop.

    start: begins the answer; it may block and raise. What it or the answer raises is raised by the iteration.
    """

    def __init__(self, start: Callable[[], AnswerStream[T]]) -> None:
        self._start, self._loop = start, asyncio.get_running_loop()
        self._events: asyncio.Queue[str | BaseException | None] = asyncio.Queue()
        self._stream: AnswerStream[T] | None = None
        self._answer: list[T] = []
        self._left = False
        self._lock = threading.Lock()
        threading.Thread(target=in_request(self._run), name="api-answer", daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            while (event := await self._events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self.cancel()

    @property
    def answer(self) -> T:
        """The whole answer, after the end of the iteration."""
        return self._answer[0]

    def cancel(self) -> None:
        """Stop soon. Does not wait; does nothing after the end."""
        with self._lock:
            self._left = True
            if self._stream is not None:
                self._stream.cancel()

    def _run(self) -> None:
        try:
            stream = self._start()
            with self._lock:
                self._stream = stream
                if self._left:
                    stream.cancel()
            for piece in stream:
                self._tell(piece)
            self._answer.append(stream.answer)
            self._tell(None)
        except BaseException as error:
            self._tell(error)

    def _tell(self, event: str | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody listens
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
