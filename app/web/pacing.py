"""Connections of the desk's server: how many there are, and how long the other end may keep one waiting.

Whoever connects and then sends nothing, sends slowly, or does not read what is sent to him, takes room that others
want. Such a connection is ended after a while, and at once where there is no room for a new one.

What one visitor, and one address, may have of the desk's time: requests a second, and at the same time.

Who sends too many waits, and is refused only if he may still send none after that. A refusal costs the desk something
too, and who is refused mostly asks again at once: hence it comes late. Not covered: questions (`app.access.limits`);
programs, which have limits of their own; who is signed in.
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

from app.access.addresses import address_of
from app.access.identity import caller_of
from app.access.limits import Rate

MOST: Final = 512
"""Connections at a time. Idle ones of browsers end after five seconds."""
HEAD_S: Final = 15.0
"""Seconds for a request's first line and headers."""
STALLED_S: Final = 30.0
"""Seconds for taking some of what was sent, and for a body before its speed counts."""
SLOWEST_BODY: Final = 10_000
"""Bytes a second that a body has to come with after that."""
LOOKED_AT: Final = 32
"""Connections among which one is chosen that makes room."""
LOOK_S: Final = 5.0
"""Seconds between two looks at all connections."""
_HELD = "connection held"


@contextmanager
def held(scope: Scope) -> Iterator[None]:
    """Within it a request waits because its sender sent too many: its connection may be ended to make room."""
    state: dict[str, Any] = scope.setdefault("state", {})
    state[_HELD] = True
    try:
        yield
    finally:
        del state[_HELD]


class BoundedConnection(H11Protocol):
    """One connection. uvicorn makes it, and calls its methods in the event loop. h11 bounds a request's head, which
    httptools does not, the other parser that uvicorn knows.
    """

    _since = 0.0
    """When the other end began to keep us waiting, or sent what we now work on; seconds of the loop's clock."""
    _taken = 0
    """Bytes of the present request's body that came."""
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Room is made for it where all places are taken."""
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self.connections) > MOST:
            self._make_room()
        self._watch = self.loop.call_later(LOOK_S, self._look)

    def _make_room(self) -> None:
        """End the connection that has kept us waiting longest, of some: to look at all for each new one is too slow
        where hundreds come at once.
        """
        some = random.choices(tuple(self.connections), k=LOOKED_AT)
        waiting = (one for one in some if isinstance(one, BoundedConnection) and one is not self)
        min((one for one in waiting if one.keeps_us_waiting), key=lambda one: one._since, default=self).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """By whichever end."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some of a request."""
        was_idle = self._is_idle
        super().data_received(data)
        if self._is_idle:
            return
        if was_idle:
            self._since, self._taken = self.loop.time(), 0
        self._taken += len(data)

    def on_response_complete(self) -> None:
        """The next request may come."""
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The other end does not read."""
        self._since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self._since = self.loop.time()
        super().resume_writing()

    def _should_upgrade(self) -> bool:
        return False  # no page uses websockets: such a request is one like any other

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def keeps_us_waiting(self) -> bool:
        """Whether we do no work for the other end now, but wait for it, or let it wait."""
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
        """End it at once, whatever is still to be sent."""
        self.transport.abort()


A_SECOND: Final = 10
"""Requests of a visitor, on average."""
IN_A_ROW: Final = 150
"""Requests of a visitor after a pause. A page with its scripts is about seventy, once in each browser."""
BROWSERS_AT_AN_ADDRESS: Final = 10
"""As many times a visitor's limit are an address's: where many work, many open the page, and few ask."""
FAILED: Final = 10
"""As many count for one that is answered by an error: our pages send few such."""
AT_ONCE: Final = 8
"""Requests of a visitor that are answered at the same time; others wait. A browser sends six."""
REFUSED_S: Final = 2.0
"""Seconds that a request waits, and after which it is refused."""


class Pacing:
    """For one event loop."""

    def __init__(self, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._visitors = Rate(A_SECOND, IN_A_ROW)
        self._addresses = Rate(A_SECOND * BROWSERS_AT_AN_ADDRESS, IN_A_ROW * BROWSERS_AT_AN_ADDRESS)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._sleep = sleep

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[float]:
        """A block within which a request is answered: gives 0, or the seconds after which it may come again, and then
        it is to be refused.
        """
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
        turns = self._turns.setdefault(caller.owner or address, asyncio.Semaphore(AT_ONCE))
        with held(request.scope):
            await turns.acquire()
        try:
            yield 0
        finally:
            turns.release()

    def _wait_s(self, owner: str, address: str) -> float:
        """A visitor who is refused takes nothing from others at his address."""
        return (owner and self._visitors.wait_s(owner)) or self._addresses.wait_s(address)

    def failed(self, request: Request) -> None:
        """A request was answered by an error of its sender."""
        if _is_paced(request):
            self._addresses.charge(address_of(request), FAILED - 1)
            if owner := caller_of(request).owner:
                self._visitors.charge(owner, FAILED - 1)


def _is_paced(request: Request) -> bool:
    caller = caller_of(request)
    return not (caller.role or caller.scopes)
