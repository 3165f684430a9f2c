"""Connections that keep the server waiting, over real sockets."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from waiting import wait_until

from app.web import connections
from app.web.connections import BoundedConnection, held

GET = b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n"
waiting = threading.Event()


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """/long is answered with more than a connection holds; /held is held until `waiting` is set; bodies are read."""
    request = Request(scope, receive)
    response: Response = PlainTextResponse("fine")
    if request.url.path == "/long":
        response = StreamingResponse(iter([b"x" * 100_000] * 200))
    elif request.url.path == "/held":
        with held(scope):
            while not waiting.is_set():
                await asyncio.sleep(0.01)
    elif request.url.path == "/busy":
        while not waiting.is_set():
            await asyncio.sleep(0.01)
    try:
        await request.body()
    except ClientDisconnect:
        return
    await response(scope, receive, send)


@contextmanager
def served() -> Iterator[int]:
    waiting.clear()
    config = uvicorn.Config(
        application, http=BoundedConnection, ws="none", port=0, log_level="critical", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        waiting.set()
        server.should_exit = True
        thread.join(10)


def connect(port: int, sent: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.sendall(sent)
    return sock


def is_ended(sock: socket.socket) -> bool:
    """Whether the server ends the connection; waits for it."""
    try:
        while sock.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.fixture
def quick(monkeypatch):
    for name, value in {"HEAD_S": 0.2, "STALLED_S": 0.2, "LOOK_S": 0.05, "SLOWEST_BODY": 1_000_000}.items():
        monkeypatch.setattr(connections, name, value)


@pytest.mark.usefixtures("quick")
def test_a_request_that_does_not_come_ends_its_connection():
    """Was wrong once: such a connection stayed open for ever."""
    begun = (
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: a\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc",
        (GET % b"/")[:-2] + b"\r\n" + b"GET / HTTP/1.1\r\nHost",
    )
    with served() as port, ExitStack() as stack:
        opened = [stack.enter_context(connect(port, sent)) for sent in begun]
        assert all(map(is_ended, opened))


@pytest.mark.usefixtures("quick")
def test_who_does_not_read_is_left(monkeypatch):
    """Was wrong once: an answer that nobody took waited for ever."""
    with served() as port, connect(port, GET % b"/long") as sock:
        sock.recv(100)
        time.sleep(0.6)
        received = 100
        try:
            while piece := sock.recv(1 << 20):
                received += len(piece)
        except ConnectionError:
            pass
        assert received < 20_000_000


@pytest.mark.usefixtures("quick")
def test_who_sends_and_reads_is_answered():
    body = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\n"
    with served() as port, connect(port, body + b"abc") as sock:
        time.sleep(0.1)
        sock.sendall(b"de")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    with served() as port, connect(port, GET % b"/busy") as sock:
        time.sleep(0.5)  # work of ours keeps nobody waiting
        waiting.set()
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("kind", [b"", GET % b"/held", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"])
def test_the_oldest_that_waits_makes_room(monkeypatch, kind):
    monkeypatch.setattr(connections, "MOST", 4)
    with served() as port, ExitStack() as stack:
        oldest = stack.enter_context(connect(port, kind))
        time.sleep(0.1)
        others = [stack.enter_context(connect(port, kind)) for _ in range(3)]
        time.sleep(0.1)
        new = stack.enter_context(connect(port, GET % b"/"))
        assert new.recv(1000).startswith(b"HTTP/1.1 200")
        assert is_ended(oldest)
        for one in others:
            one.settimeout(0.05)
            assert not is_ended(one)


def test_no_answer_in_progress_makes_room(monkeypatch):
    monkeypatch.setattr(connections, "MOST", 2)
    with served() as port, connect(port, GET % b"/busy") as one, connect(port, GET % b"/busy") as two:
        time.sleep(0.2)
        with connect(port, GET % b"/") as new:
            assert is_ended(new)
        waiting.set()
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
        assert two.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_websocket_is_a_request_like_any_other(caplog):
    upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with served() as port, connect(port, upgrade) as sock:
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    assert not caplog.records
