"""An answer that is generated in its own thread and read by the event loop, which never waits for the engine.

If the client disconnects, generation stops at once and the thread stores the partial answer. Each answer has its own
thread, because long answers would occupy all of the framework's few threads.
"""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from app.access.identity import Keys
from app.api.wire import ApiError
from app.desk.service import AnswerStream
from app.domain.callers import Caller
from app.domain.logs import in_request

_KEY = "k-"


def owner_of(caller: Caller, user: str | None) -> str:
    """The owner of the conversations: the caller, or one of its own users. user: OpenAI's field, any text. Only keys
    act for users.
    """
    if not user or not caller.owner.startswith(_KEY):
        return caller.owner
    return f"{caller.owner}-{hashlib.sha256(user.encode('utf-8', 'replace')).hexdigest()[:16]}"


def count(caller: Caller, keys: Keys) -> None:
    """Count a request that costs something. Raises ApiError if the key has sent too many within a minute."""
    if wait_s := keys.seconds_to_wait(caller):
        raise ApiError(
            429,
            f"this key has sent as many requests as it may in a minute: try again in {wait_s} s",
            "rate_limit_exceeded",
            headers={"retry-after": str(wait_s)},
        )


T = TypeVar("T")


class RunningAnswer(Generic[T]):
    """Iterate, once, for the pieces; then read `answer`. Must be made in an event loop.

    start: starts the answer; it may block and raise. The iteration raises every error of `start` and of the answer.
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
        """Stop soon, without waiting. Does nothing after the end."""
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
        with suppress(RuntimeError):  # the loop has ended, nothing reads
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
