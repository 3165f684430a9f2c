"""The most bytes a request's body may have, counted while it is read: a body in chunks does not say its length.

Put around the whole application. Not covered: how fast a body comes.
"""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Answers requests with more than they may have. most: bytes, by path. refused: the answer."""

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
                raise ClientDisconnect  # whatever the application makes of it is not sent
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
