"""What one visitor, and one address, may have of the desk's time: requests a second, and at the same time.

Who sends too many waits, and is refused only if he may still send none after that. A refusal costs the desk something
too, and who is refused mostly asks again at once: hence it comes late. Not covered: questions (`app.access.limits`);
programs, which have limits of their own; who is signed in.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from starlette.requests import Request

from app.access.addresses import address_of
from app.access.identity import caller_of
from app.access.rate import Rate
from app.web.connections import held

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
