"""The outermost layer of the server: each request gets an id, which is sent back, and a line in the log.

The line has the method, the path without the query, the status and the milliseconds: no text of customers or agents,
and no address. Frequent requests of programs are logged at the level debug.
"""

import asyncio
import logging
import re
import time
import uuid
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.domain.logs import of_request
from app.web.guard import come_again
from app.web.middleware import ALIVE, READY

log = logging.getLogger(__name__)

HEADER = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
_ASKED_ALL_THE_TIME = frozenset({ALIVE, READY, "/metrics"})
_LONGEST_PATH = 200


class RequestLog:
    """Wraps the server's application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id_, begun, status = find_id(Headers(scope=scope)), time.perf_counter(), 0
        scope.setdefault("state", {})["request_id"] = id_

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = id_
            await send(message)

        with of_request(id_):
            try:
                await self._app(scope, receive, sent)
            except asyncio.CancelledError:  # the server stops and does not wait, for example for an upload
                if status:
                    raise
                await come_again(Request(scope))(scope, receive, sent)
            finally:
                _log(scope, status, (time.perf_counter() - begun) * 1e3)


def find_id(headers: Headers) -> str:
    """The id that a proxy or program gave the request, if it is plain; else a new one."""
    given = headers.get(HEADER, "")
    return given if _SANE.fullmatch(given) else uuid.uuid4().hex


def _log(scope: Scope, status: int, milliseconds: float) -> None:
    method, path = scope["method"], quote(scope["path"][:_LONGEST_PATH])
    level = logging.DEBUG if scope["path"] in _ASKED_ALL_THE_TIME else logging.INFO
    fields = {"method": method, "path": path, "status": status, "milliseconds": round(milliseconds, 1)}
    log.log(level, "%s %s %d %.1f ms", method, path, status, milliseconds, extra=fields)
