"""Wrappers of the whole application: maximum size of a body, /readyz, and responses during the start.

A body is counted while it is read, because a body in chunks does not name its length. While the models load, the server
reports that it is alive and names the missing parts, and shows a page that reloads itself.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.domain.progress import in_own_thread
from app.web.rendering import page_language, render

if TYPE_CHECKING:  # FastAPI is imported later: the server answers before that
    from fastapi import FastAPI


class BodyLimit:
    """Refuses requests with a body that is too large. most: returns the maximum bytes for a path."""

    def __init__(self, app: ASGIApp, *, most: Callable[[str], int], refused: Callable[[Request], Response]) -> None:
        self._app, self._most, self._refused = app, most, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._most(scope["path"])
        declared = Headers(scope=scope).get("content-length", "0")
        refused = self._refused(Request(scope))
        refused.headers["connection"] = "close"  # the rest of the body is not read
        if not (declared.isascii() and declared.isdigit() and int(declared) <= most):
            await refused(scope, receive, send)
            return
        taken, too_large, started = 0, False, False

        async def counted() -> Message:
            nonlocal taken, too_large
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                too_large = True
                raise ClientDisconnect  # the application's response is not sent
            return message

        async def sent(message: Message) -> None:
            nonlocal started
            if not too_large or started:
                started = True
                await send(message)

        try:
            await self._app(scope, counted, sent)
        except Exception:
            if not too_large:
                raise
        if too_large and not started:
            await refused(scope, receive, send)


def at_start(send: Send, change: Callable[[MutableHeaders, int], None]) -> Send:
    """Return a `send` that changes a response's headers first. change: gets the headers and the status."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            change(MutableHeaders(scope=message), message["status"])
        await send(message)

    return sending


ALIVE, READY = "/healthz", "/readyz"
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "retry-after": "2",
    "x-content-type-options": "nosniff",
}


class ReadyAnswer:
    """Answers /readyz. Concurrent requests share one check in its own thread, because the routes' threads may all be
    occupied. For one event loop.
    """

    def __init__(self, missing: Callable[[], Sequence[str]]) -> None:
        self._missing = missing
        self._look: Future[Sequence[str]] | None = None

    async def answer(self, besides: Sequence[str] = (), awaited: str = "") -> Response:
        """Return 200, or 503 with the missing parts and the awaited step. besides: parts to name if these are ready."""
        if self._look is None or self._look.done():
            self._look = in_own_thread(self._missing)
        if missing := [*await asyncio.wrap_future(self._look)] or [*besides]:
            waiting = {"waiting_for": awaited} if awaited else {}
            return JSONResponse({"status": "not ready", "missing": missing, **waiting}, 503)
        return JSONResponse({"status": "ready"})


PARTS = ("model", "engine", "database")


class Opening:
    """An ASGI application that answers in place of another application until `open` is called."""

    def __init__(self, missing: Callable[[], Sequence[str]] = lambda: PARTS, awaited: Callable[[], str] = str) -> None:
        self.watch(missing, awaited)
        self._app: FastAPI | None = None
        self._listening = threading.Event()

    def watch(self, missing: Callable[[], Sequence[str]], awaited: Callable[[], str]) -> None:
        """Set two functions. missing: returns the parts that are not ready. awaited: returns the step in progress."""
        self._readiness, self._awaited = ReadyAnswer(missing), awaited

    def open(self, app: "FastAPI") -> None:
        """Start the application and switch to it. Call it from any thread except the server's."""
        self._listening.wait()
        asyncio.run_coroutine_threadsafe(self._start(app), self._loop).result()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await (await self._answer(Request(scope)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.scope["path"]
        if path == ALIVE:
            return JSONResponse({"status": "ok"})
        if path == READY:
            return await self._readiness.answer(["pages"], self._awaited())
        html = render("starting.html", language=page_language(request.headers))
        return HTMLResponse(html, 503, _HEADERS)

    async def _live(self, receive: Receive, send: Send) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._living: asyncio.Task[None] | None = None
        await receive()
        await send({"type": "lifespan.startup.complete"})
        self._listening.set()
        await receive()
        self._ending.set()
        if self._living is not None:
            await self._living
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self, app: "FastAPI") -> None:
        started: asyncio.Future[None] = self._loop.create_future()

        async def live() -> None:  # a lifespan must begin and end in the same task
            async with app.router.lifespan_context(app):
                self._app = app
                started.set_result(None)
                await self._ending.wait()

        living = asyncio.create_task(live())
        await asyncio.wait({living, started}, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            await living  # raises the application's error
        self._living = living
