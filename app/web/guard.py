"""What every request passes first: which hosts, origins and paths are served at all, who sees /admin, security headers.

Gradio brings about a hundred routes (uploads, file access, a proxy, run history, code editing). Only the few the pages
use are let through; everything else under a page is 404. Not covered: TLS, quotas.

Gradio evaluates HTML templates with `new Function`, hence 'unsafe-eval'; inline scripts run by nonce only.
"""

import re
import secrets
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "warmdesk_admin"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_BODY = 1 << 20
UPLOAD, MAX_UPLOAD = "/admin/documents/upload", 21 << 20
_PAGE_PATHS = re.compile(
    r"/(|config|theme\.css|manifest\.json|favicon\.ico|robots\.txt|pwa_icon(/\d+)?"
    r"|(assets|static|svelte)/[\w./@+-]+"
    r"|gradio_api/(info|startup-events|app_id|cancel|reset|queue/(join|data|status)|heartbeat/\w+))/?"
)
_DOCUMENT_PATHS = re.compile(r"/admin/documents(/(upload|forget))?")
_OPEN_ADMIN = frozenset({"/admin/login", "/admin/logout"})
_SCRIPT = re.compile(rb"<script\b", re.IGNORECASE)
_PREVIEW = re.compile(rb"<meta\s[^>]*(?:og:|twitter:)[^>]*>", re.IGNORECASE)
_CSP = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "manifest-src 'self'; form-action 'self'; base-uri 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


def host_name(host: str) -> str:
    """Host header without port and brackets, in lower case."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]+))(?::\d+)?", host.strip())
    return (match[1] or match[2]).lower().rstrip(".") if match else ""


class Guard:
    """Wraps the whole application. is_admin: whether a token belongs to a session; it may block. api_paths: paths (and
    what is below them) that belong to our own HTTP routes.
    """

    def __init__(
        self, app: ASGIApp, *, bound_to: str, is_admin: Callable[[str], bool], api_paths: tuple[str, ...]
    ) -> None:
        self._app, self._is_admin, self._api_paths = app, is_admin, api_paths
        self._hosts = LOOPBACK if host_name(bound_to) in LOOPBACK or bound_to in LOOPBACK else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no page uses websockets
        nonce = secrets.token_urlsafe(16)
        send = _secured(send, nonce)
        refusal = await self._refusal(Request(scope))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        if scope["method"] == "GET" and scope["path"] in ("/", "/admin/"):
            del MutableHeaders(scope=scope)["accept-encoding"]  # compressed pages could not be given their nonce
            send = _with_nonce(send, nonce)
        await self._app(scope, receive, send)

    async def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that is not let through."""
        path, method, headers = request.scope["path"], request.method, request.headers
        host = headers.get("host", "")
        if self._hosts is not None and host_name(host) not in self._hosts:
            return _refused(421, "This desk answers on this machine only (wrong Host header).")
        if "transfer-encoding" in headers:
            return _refused(411, "Requests must say their length.")
        length, most = headers.get("content-length", "0"), MAX_UPLOAD if path == UPLOAD else MAX_BODY
        if not (length.isascii() and length.isdigit() and int(length) <= most):
            return _refused(413, "The request is too large.")
        origin = headers.get("origin")
        # A page of another site may send requests to 127.0.0.1; the browser then names that site here.
        if method not in ("GET", "HEAD") and origin is not None and origin.partition("://")[2].lower() != host.lower():
            return _refused(403, "Requests from other sites are not accepted.")
        if any(path == own or path.startswith(own + "/") for own in self._api_paths) or path in _OPEN_ADMIN:
            return None
        if path == "/admin" or path.startswith("/admin/"):
            if not await run_in_threadpool(self._is_admin, request.cookies.get(COOKIE, "")):
                if method == "GET" and "text/html" in headers.get("accept", ""):
                    return RedirectResponse("/admin/login", 303)
                return _refused(401, "Not signed in.")
            if path == "/admin":
                return RedirectResponse("/admin/", 307)
            if _DOCUMENT_PATHS.fullmatch(path):
                return None
            path = path.removeprefix("/admin")
        if method not in ("GET", "HEAD", "POST") or ".." in path or not _PAGE_PATHS.fullmatch(path):
            return _refused(404, "Not found.")
        return None


def _refused(status: int, words: str) -> Response:
    return PlainTextResponse(words + "\n", status)


def _secured(send: Send, nonce: str) -> Send:
    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            # Gradio lets other local ports read answers with cookies; our pages need no cross-origin access.
            for name in {name for name in headers if name == "server" or name.startswith("access-control-")}:
                del headers[name]
            headers.update({**_HEADERS, "content-security-policy": _CSP.format(nonce=nonce)})
        await send(message)

    return secured


def _with_nonce(send: Send, nonce: str) -> Send:
    """Holds an HTML page back until it is whole, gives its scripts the nonce and drops link-preview tags."""
    start: Message = {}
    body = bytearray()

    async def rewriting(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        if message["type"] != "http.response.body":
            await send(message)
            return
        body.extend(message.get("body", b""))
        if message.get("more_body"):
            return
        page, headers = bytes(body), MutableHeaders(scope=start)
        if headers.get("content-type", "").startswith("text/html"):
            page = _SCRIPT.sub(f'<script nonce="{nonce}"'.encode(), _PREVIEW.sub(b"", page))
        headers.update({"content-length": str(len(page)), "cache-control": "no-store"})
        await send(start)
        await send({"type": "http.response.body", "body": page})

    return rewriting
