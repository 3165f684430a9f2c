"""Limits on the number of connections and requests, and on the time that clients may delay them.

A client that sends nothing, sends slowly or does not read occupies a connection that others need. Such a connection is
closed after a while, and at once if a new one needs its place. A visitor or an address with too many requests waits,
and is refused only if the limit still applies after that. Refusals also cost time, and clients mostly repeat at once,
so they are delayed. Out of scope: questions (`app.access.limits`); programs, which have their own limits; signed-in
users.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.access.identity import caller_of
from app.access.limits import Rate, address_of

MOST: Final = 512
"""Maximum connections. Idle ones of browsers end after five seconds."""
HEAD_S: Final = 15.0  # seconds for a request's first line and headers
STALLED_S: Final = 30.0  # seconds for reading some of the response, and for a body before its speed counts
SLOWEST_BODY: Final = 10_000  # minimum bytes per second of a body after that
LOOKED_AT: Final = 32  # number of connections among which one is chosen to be ended
LOOK_S: Final = 5.0  # seconds between two checks of all connections
_HELD = "connection held"


@contextmanager
def held(scope: Scope) -> Iterator[None]:
    """Inside this block a request waits for its sender's limit. Its connection may be closed for a new one."""
    state: dict[str, Any] = scope.setdefault("state", {})
    state[_HELD] = True
    try:
        yield
    finally:
        del state[_HELD]


class BoundedConnection(H11Protocol):
    """One connection. uvicorn makes it, and calls its methods in the event loop. h11 limits a request's head, which
    httptools, uvicorn's other parser, does not.
    """

    _since = 0.0
    """Time when the client began to delay us, or sent the current work, in seconds of the loop's clock."""
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


A_SECOND: Final = 10  # mean requests per second of a visitor
IN_A_ROW: Final = 150
"""Maximum burst of a visitor's requests. A page with its scripts needs about seventy, once per browser."""
BROWSERS_AT_AN_ADDRESS: Final = 10
"""An address has this many times a visitor's limit, because in an office many open the page, and few ask."""
FAILED: Final = 10  # an error response counts as this many requests: our pages cause few
PAGES: Final = frozenset({"/", "/config"})
"""Paths whose response is computed for each request, which takes ten times as long as sending a file."""
PAGE: Final = 10  # a request for one of them counts as this many
AT_ONCE: Final = 8
"""Maximum concurrent requests of a visitor; more wait. A browser sends six."""
REFUSED_S: Final = 2.0  # seconds that a request waits before it is refused


class Pacing:
    """Limits the requests of visitors and addresses. Use it in one event loop."""

    def __init__(self, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._visitors = Rate(A_SECOND, IN_A_ROW)
        self._addresses = Rate(A_SECOND * BROWSERS_AT_AN_ADDRESS, IN_A_ROW * BROWSERS_AT_AN_ADDRESS)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._sleep = sleep

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[float]:
        """Answer a request in this block. Yields 0, or the seconds until a retry; the request must then be refused."""
        if not _is_paced(request):
            yield 0
            return
        caller, address = caller_of(request), address_of(request)
        if self._wait_s(caller.owner, address):
            with held(request.scope):
                await self._sleep(REFUSED_S)
            if wait_s := self._wait_s(caller.owner, address):
                yield wait_s
                return
        if request.scope["path"] in PAGES:
            self._charge(request, PAGE - 1)
        turns = self._turns.setdefault(caller.owner or address, asyncio.Semaphore(AT_ONCE))
        with held(request.scope):
            await turns.acquire()
        try:
            yield 0
        finally:
            turns.release()

    def _wait_s(self, owner: str, address: str) -> float:
        """Return the seconds to wait. A refused visitor does not use up the limit of its address."""
        return (owner and self._visitors.wait_s(owner)) or self._addresses.wait_s(address)

    def answered(self, request: Request, status: int) -> None:
        if _is_paced(request) and 400 <= status < 500:
            self._charge(request, FAILED - 1)

    def _charge(self, request: Request, tokens: int) -> None:
        self._addresses.charge(address_of(request), tokens)
        if owner := caller_of(request).owner:
            self._visitors.charge(owner, tokens)


def _is_paced(request: Request) -> bool:
    caller = caller_of(request)
    return not (caller.role or caller.scopes)
