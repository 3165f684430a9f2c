"""What one visitor, and one address, may have of the desk's time."""

import asyncio
import itertools
import socket
import time

import pytest
from starlette.requests import Request

from app.access import limits
from app.access.limits import Rate
from app.domain.callers import NOBODY, Caller
from app.web import pacing
from app.web.middleware import Opening
from app.web.pacing import AT_ONCE, BROWSERS_AT_AN_ADDRESS, FAILED, PAGE, REFUSED_S, Pacing
from app.web.serve import ACCEPTED_AT_ONCE, DeskServer, bind

pytestmark = pytest.mark.anyio
IN_A_ROW = 100
ANN, BOB = Caller(owner="v-ann"), Caller(owner="v-bob")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def pace(monkeypatch):
    monkeypatch.setattr(pacing, "IN_A_ROW", IN_A_ROW)


class Sent:
    def __init__(self) -> None:
        self.slept = list[float]()
        self.pacing = Pacing(sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def request(self, caller: Caller, address: str = "10.0.0.1", path: str = "/style.css") -> Request:
        scope = {"type": "http", "headers": [], "client": (address, 1), "path": path, "state": {"caller": caller}}
        return Request(scope)

    async def passed(self, caller: Caller, many: int, address: str = "10.0.0.1") -> int:
        """How many of so many requests pass."""
        passed = 0
        for _ in range(many):
            async with self.pacing.turn(self.request(caller, address)) as wait_s:
                passed += not wait_s
        return passed


async def test_one_visitor_too_fast_is_refused_late_and_nobody_else(monkeypatch):
    monkeypatch.setattr(pacing, "A_SECOND", 1e-6)
    sent = Sent()
    assert await sent.passed(ANN, IN_A_ROW + 50) == IN_A_ROW
    assert sent.slept == [REFUSED_S] * 50
    assert await sent.passed(BOB, 20) == 20, "an address has room for others"


async def test_who_is_a_little_too_fast_waits():
    sent, began = Sent(), time.monotonic()
    await sent.passed(ANN, IN_A_ROW)
    sent.pacing._visitors._clock = lambda: began + REFUSED_S * len(sent.slept)
    assert await sent.passed(ANN, 50) == 50
    assert 0 < len(sent.slept) < 10


async def test_an_address_has_a_limit_whoever_asks_from_it(monkeypatch):
    monkeypatch.setattr(pacing, "IN_A_ROW", 2)
    monkeypatch.setattr(pacing, "A_SECOND", 1e-6)
    sent = Sent()
    visitors = [Caller(owner=f"v-{number}") for number in range(30)]
    assert sum([await sent.passed(one, 1) for one in visitors]) == 2 * BROWSERS_AT_AN_ADDRESS
    assert await sent.passed(NOBODY, 1) == 0
    assert await sent.passed(NOBODY, 1, "10.0.0.2") == 1


async def test_a_page_counts_as_several(monkeypatch):
    monkeypatch.setattr(pacing, "A_SECOND", 1e-6)
    sent, passed = Sent(), 0
    for _ in range(IN_A_ROW):
        async with sent.pacing.turn(sent.request(ANN, path="/")) as wait_s:
            passed += not wait_s
    assert passed == IN_A_ROW // PAGE


async def test_what_fails_counts_as_several(monkeypatch):
    monkeypatch.setattr(pacing, "A_SECOND", 1e-6)
    sent = Sent()
    for _ in range(IN_A_ROW // FAILED):
        assert await sent.passed(ANN, 1) == 1
        sent.pacing.answered(sent.request(ANN), 404)
    assert await sent.passed(ANN, 1) == 0
    assert await sent.passed(BOB, 20) == 20


async def test_programs_and_staff_are_not_paced(monkeypatch):
    monkeypatch.setattr(pacing, "IN_A_ROW", 1)
    sent = Sent()
    for caller in (Caller(owner="operator", role="agent"), Caller(owner="k-1", scopes=frozenset({"chat"}))):
        assert await sent.passed(caller, 50) == 50


async def test_only_so_many_requests_of_a_visitor_are_answered_at_once():
    sent, answering, go = Sent(), set[int](), asyncio.Event()

    async def ask(number: int) -> None:
        async with sent.pacing.turn(sent.request(ANN)):
            answering.add(number)
            await go.wait()

    asking = [asyncio.create_task(ask(number)) for number in range(AT_ONCE + 9)]
    await asyncio.sleep(0)
    assert len(answering) == AT_ONCE
    assert await sent.passed(BOB, 1) == 1
    go.set()
    await asyncio.gather(*asking)
    assert len(answering) == AT_ONCE + 9
    assert not sent.pacing._turns, "nothing is kept of who asks nothing"


async def test_many_new_connections_leave_turns_to_others():
    listener = bind("127.0.0.1", 0)
    server = DeskServer(Opening(lambda: ["models"]), lambda: None)
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    connections, turns = server.server_state.connections, [0]
    visitors = [socket.create_connection(listener.getsockname()) for _ in range(8 * ACCEPTED_AT_ONCE)]
    while turns[-1] < len(visitors):
        await asyncio.sleep(0)
        turns.append(len(connections))
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 2 * ACCEPTED_AT_ONCE
    for visitor in visitors:
        visitor.close()
    server.should_exit = True
    await serving


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_so_many_at_once_and_then_one_at_a_time():
    clock = Clock()
    often = Rate(2, 3, clock=clock)
    assert [often.wait_s("ann") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now += 0.25
    assert often.wait_s("ann") == 0.25, "who is refused waits no longer for it"
    clock.now += 0.25
    assert often.wait_s("ann") == 0
    assert often.wait_s("ann") == 0.5
    clock.now += 1000
    assert [often.wait_s("ann") for _ in range(4)] == [0, 0, 0, 0.5], "a pause gives no more than at once"


def test_only_so_many_askers_are_kept():
    clock, most = Clock(), limits.MOST_BUCKETS
    often = Rate(1, 1, clock=clock)
    for number in range(most + 50):
        often.wait_s(str(number))
    assert len(often._buckets) == most
