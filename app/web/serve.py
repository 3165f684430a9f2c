"""`warmdesk serve`: listens on a socket, opens the desk on another thread, and serves until Ctrl-C or SIGTERM.

Importing and loading a desk takes seconds (`opening`). The server listens before that and answers that it is starting,
so this file and its imports need no large library.
"""

import asyncio
import logging
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.domain.errors import DeskError
from app.domain.logs import of_request, say
from app.domain.progress import in_own_thread
from app.domain.settings import Settings
from app.web.connections import BoundedConnection
from app.web.middleware import ALIVE, READY, Opening, at_start

T = TypeVar("T")

GRACE_S = 1  # seconds for open connections when the server stops; answers have ended by then
ACCEPTED_AT_ONCE = 16
"""Connections accepted before other work continues. Without a limit asyncio would accept all, hundreds in a flood."""
WAITING = 2048  # maximum connections that wait in the operating system
HEADER = "x-request-id"
_requests = logging.getLogger("app.web.request_log")  # the name that operators know from their logs
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
_ASKED_ALL_THE_TIME = frozenset({ALIVE, READY, "/metrics"})
_LONGEST_PATH = 200


class RequestLog:
    """The outermost layer of the server: each request gets an id, which is sent back, and a line in the log.

    The line has the method, the path without the query, the status and the milliseconds: no text of customers or
    agents, and no IP address. Frequent requests of programs are logged at the level debug.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given, begun, status = Headers(scope=scope).get(HEADER, ""), time.perf_counter(), 0
        id_ = given if _SANE.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = id_

        def answered(headers: MutableHeaders, sent: int) -> None:
            nonlocal status
            headers[HEADER], status = id_, sent

        send = at_start(send, answered)
        with of_request(id_):
            try:
                await self._app(scope, receive, send)
            except asyncio.CancelledError:  # the server stops and does not wait, for example for an upload
                if status:
                    raise
                from app.web.guard import come_again  # imported by now

                await come_again(Request(scope))(scope, receive, send)
            finally:
                spent_ms = (time.perf_counter() - begun) * 1e3
                method, path = scope["method"], quote(scope["path"][:_LONGEST_PATH])
                level = logging.DEBUG if scope["path"] in _ASKED_ALL_THE_TIME else logging.INFO
                fields = {"method": method, "path": path, "status": status, "milliseconds": round(spent_ms, 1)}
                _requests.log(level, "%s %s %d %.1f ms", method, path, status, spent_ms, extra=fields)


class DeskServer(uvicorn.Server):
    """A server that ends answers before it closes their connections."""

    def __init__(self, application: Opening, end_answers: Callable[[], None] = lambda: None) -> None:
        config = uvicorn.Config(
            RequestLog(application),
            http=BoundedConnection,
            ws="none",
            log_config=None,  # use Warmdesk's own configuration
            log_level="error",  # its warnings contain bytes of invalid requests
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            backlog=ACCEPTED_AT_ONCE,
            proxy_headers=False,  # only from the setting `trusted_proxies`: see `create_app`
        )
        super().__init__(config)
        self.end_answers = end_answers

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(WAITING)  # asyncio uses ACCEPTED_AT_ONCE for this as well

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.wrap_future(in_own_thread(self.end_answers))
        await super().shutdown(sockets)


class Start:
    """The listening server, for the thread that loads the models. address: as customers write it, without "/"."""

    def __init__(self, opening: Opening, server: DeskServer, address: str) -> None:
        self.opening, self.server, self.address = opening, server, address
        self._contexts, self._lock = ExitStack(), threading.Lock()
        self._has_ended = False

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context and leave it when the server ends. Raises DeskError if the server has ended."""
        with self._lock:
            if self._has_ended:
                raise DeskError("the server was stopped while it started", code="stopped")
            return self._contexts.enter_context(context)

    def __enter__(self) -> "Start":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._has_ended = True
            self._contexts.close()


def serve(settings: Settings, open_desk: Callable[[Start], None]) -> None:
    """Listen, load the models and serve, in the main thread. open_desk: called in another thread. Raises DeskError if
    the port is in use, and the errors of `open_desk`.
    """
    # Handle SIGTERM as Ctrl-C: uvicorn raises the signal again, which would kill the process with an open engine.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    listener = bind(settings.host, settings.port)
    port = listener.getsockname()[1]
    here = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    address = settings.public_url.rstrip("/") if settings.public_url else f"http://{here}:{port}"
    opening = Opening()
    server = DeskServer(opening)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            open_desk(start)
        except BaseException as error:  # the error must end the command, not only this thread
            failures.append(error)
            server.should_exit = True

    say(f"{address}/ is ready soon ...")
    with listener, Start(opening, server, address) as start, suppress(KeyboardInterrupt):  # the way to stop the server
        threading.Thread(target=run, name="opening", daemon=True).start()
        server.run(sockets=[listener])
        if failures:
            raise failures[0]


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # If the protocol is not named, asyncio leaves Nagle's algorithm on. Then the second part of an answer waits 40 ms
    # for the client's delayed acknowledgement of the first part.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        reason = "it is in use by another program" if "in use" in str(error).lower() else error.strerror or str(error)
        raise DeskError(
            f"cannot listen on {host} port {port}: {reason}; use another --port", code="port-in-use"
        ) from None
    return listener
