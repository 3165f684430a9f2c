"""What every request passes first: which hosts, origins and paths are served at all, who sees /admin,
security headers.

Gradio brings about a hundred routes (uploads, file access, a proxy, run history, code editing). Only the few
the pages use are let through; everything else under a page is 404. Plain ASGI: no framework is imported. Not
covered: TLS, quotas.

Gradio evaluates HTML templates with `new Function`, hence 'unsafe-eval'; inline scripts run by nonce only.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

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
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
)


def session_token(cookies: str) -> str:
    """The admin token in a Cookie header, or ""."""
    try:
        morsel = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def host_name(host: str) -> str:
    """Host header without port and brackets, in lower case."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]+))(?::\d+)?", host.strip())
    return (match[1] or match[2]).lower().rstrip(".") if match else ""


class Guard:
    """Wraps the whole application. api_paths: paths (and what is below them) that belong to our own HTTP
    routes.
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
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        nonce = secrets.token_urlsafe(16)
        refused = self._refusal(scope, headers)
        if refused:
            await _refuse(*refused, _secured(send, nonce))
        elif scope["method"] == "GET" and scope["path"] in ("/", "/admin/"):
            # Compressed pages could not be given their nonce.
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
            await self._app(scope, receive, _with_nonce(_secured(send, nonce), nonce))
        else:
            await self._app(scope, receive, _secured(send, nonce))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, str] | None:
        path, method = scope["path"], scope["method"]
        host = headers.get("host", "")
        if self._hosts is not None and host_name(host) not in self._hosts:
            return 421, "This desk answers on this machine only (wrong Host header).", ""
        if "transfer-encoding" in headers:
            return 411, "Requests must say their length.", ""
        if not _length_is_fine(headers.get("content-length", "0"), MAX_UPLOAD if path == UPLOAD else MAX_BODY):
            return 413, "The request is too large.", ""
        origin = headers.get("origin")
        # A page of another site may send requests to 127.0.0.1; the browser then names that site here.
        if method not in ("GET", "HEAD") and origin is not None and origin.partition("://")[2].lower() != host.lower():
            return 403, "Requests from other sites are not accepted.", ""
        if any(path == own or path.startswith(own + "/") for own in self._api_paths) or path in _OPEN_ADMIN:
            return None
        if path == "/admin" or path.startswith("/admin/"):
            if not self._is_admin(session_token(headers.get("cookie", ""))):
                if method == "GET" and "text/html" in headers.get("accept", ""):
                    return 303, "", "/admin/login"
                return 401, "Not signed in.", ""
            if path == "/admin":
                return 307, "", "/admin/"
            if _DOCUMENT_PATHS.fullmatch(path):
                return None
            path = path.removeprefix("/admin")
        if method not in ("GET", "HEAD", "POST") or ".." in path or not _PAGE_PATHS.fullmatch(path):
            return 404, "Not found.", ""
        return None


def _length_is_fine(length: str, most: int) -> bool:
    return length.isascii() and length.isdigit() and int(length) <= most


async def _refuse(status: int, words: str, location: str, send: Send) -> None:
    body = (words + "\n").encode() if words else b""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if location:
        headers.append((b"location", location.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _secured(send: Send, nonce: str) -> Send:
    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            ours = {name for name, _ in _HEADERS} | {b"content-security-policy", b"server"}
            # Gradio lets other local ports read answers with cookies; our pages need no cross-origin access.
            kept = [
                (name, value)
                for name, value in message["headers"]
                if name.lower() not in ours and not name.lower().startswith(b"access-control-")
            ]
            policy = _CSP.format(nonce=nonce).encode()
            message = {**message, "headers": [*kept, *_HEADERS, (b"content-security-policy", policy)]}
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
        page = bytes(body)
        if any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in start["headers"]):
            page = _SCRIPT.sub(b'<script nonce="' + nonce.encode() + b'"', _PREVIEW.sub(b"", page))
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        headers += [(b"content-length", str(len(page)).encode()), (b"cache-control", b"no-store")]
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": page})

    return rewriting
