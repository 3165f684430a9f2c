"""Limits on the number of connections, and on the time that clients may delay them.

A client that sends nothing, sends slowly or does not read occupies a connection that others need. Its connection is
closed after a time limit, or at once if a new connection needs its place. Out of scope: limits on requests (`pacing`).
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST: Final = 512
"""Maximum connections. Browsers' idle connections are closed after five seconds."""
HEAD_S: Final = 15.0  # seconds for a request's first line and headers
STALLED_S: Final = 30.0  # maximum seconds without reading the response; for a body, before its speed counts
SLOWEST_BODY: Final = 10_000  # minimum bytes per second of a body after that
LOOKED_AT: Final = 32  # sample size: one of these connections is closed
LOOK_S: Final = 5.0  # seconds between two checks of all connections
_HELD = "connection held"


@contextmanager
def held(scope: Scope) -> Iterator[None]:
    """Mark a request in this block as waiting for its sender's limit: its connection may be closed for a new one."""
    state: dict[str, Any] = scope.setdefault("state", {})
    state[_HELD] = True
    try:
        yield
    finally:
        del state[_HELD]


class BoundedConnection(H11Protocol):
    """One connection. uvicorn creates it, and calls its methods in the event loop. It uses the parser h11, which limits
    the size of a request's head; uvicorn's other parser, httptools, does not.
    """

    _since = 0.0
    """Time when the client began to delay us, or sent the current request, in seconds of the loop's clock."""
    _taken = 0
    """Received bytes of the current request's body."""
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self.connections) > MOST:
            self._make_room()
        self._watch = self.loop.call_later(LOOK_S, self._look)

    def _make_room(self) -> None:
        """Close the connection that has delayed us longest, in a sample: checking all is too slow with hundreds."""
        some = random.choices(tuple(self.connections), k=LOOKED_AT)
        waiting = (one for one in some if isinstance(one, BoundedConnection) and one is not self)
        min((one for one in waiting if one.keeps_us_waiting), key=lambda one: one._since, default=self).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_idle = self._is_idle
        super().data_received(data)
        if self._is_idle:
            return
        if was_idle:
            self._since, self._taken = self.loop.time(), 0
        self._taken += len(data)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._since = self.loop.time()
        super().resume_writing()

    def _should_upgrade(self) -> bool:
        return False  # no page uses websockets: treat it like any request

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def keeps_us_waiting(self) -> bool:
        """Return whether we wait for the client or hold its request, so that no work is in progress."""
        if self._is_idle:
            return True
        return self.cycle.more_body or self.flow.write_paused or _HELD in self.scope["state"]

    @property
    def _is_overdue(self) -> bool:
        waited_s = self.loop.time() - self._since
        if self.flow.write_paused or self.transport.is_closing():
            return waited_s > STALLED_S
        if self._is_idle:
            return waited_s > HEAD_S
        return self.cycle.more_body and waited_s > STALLED_S + self._taken / SLOWEST_BODY

    def _look(self) -> None:
        if self._is_overdue:
            self.abort()
        else:
            self._watch = self.loop.call_later(LOOK_S, self._look)

    def abort(self) -> None:
        self.transport.abort()
