"""Limits on the number of requests.

A request above the limit of its visitor or IP address waits. If it is still above the limit afterwards, it is refused.
Refusals also cost time, and clients mostly retry at once, so refusals are delayed. Out of scope: connections
(`connections`); questions (`app.access.limits`); programs, which have their own limits; signed-in users.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from starlette.requests import Request

from app.access.identity import caller_of
from app.access.limits import Rate, address_of
from app.web.connections import held

A_SECOND: Final = 10  # mean requests per second of a visitor
IN_A_ROW: Final = 150
"""Maximum burst of a visitor's requests. A page with its scripts needs about seventy, once per browser."""
BROWSERS_AT_AN_ADDRESS: Final = 10
"""The limit of an IP address is this many times a visitor's limit: in an office many open the page, and few ask."""
FAILED: Final = 10  # an error response counts as this many requests: our pages cause few
PAGES: Final = frozenset({"/", "/config"})
"""Paths whose response is computed for each request, which takes ten times as long as sending a file."""
PAGE: Final = 10  # a request for one of PAGES counts as this many
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
        """Answer a request in this block. Yields 0 if it is accepted; if refused, the seconds until a retry."""
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
