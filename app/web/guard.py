"""The checks that every request passes first: hosts, origins and paths, callers, visitors' cookies, security headers.

The server's own names follow the setting `public_url`, because a proxy may hide the browser's address. Without it, a
server on loopback accepts loopback names only, and a server on the network accepts any. With TLS, cookie names have a
prefix, so that browsers accept them over TLS only, and a visitor's cookie only from this host. A page of a neighbouring
domain cannot set such a cookie. Gradio evaluates HTML templates with `new Function`, which needs 'unsafe-eval'. Inline
scripts need a nonce. Out of scope: TLS, limits on requests (`pacing`), the size of bodies (`middleware`).
"""

import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import identity as visitors
from app.access.identity import COOKIE, Identity, caller_of
from app.api.wire import BUSY_S, ApiError
from app.domain.callers import KNOWN, NOBODY, Caller
from app.domain.errors import DeskError
from app.domain.words import gettext, speaking, translatable
from app.web.access_rules import find_rule
from app.web.admin_pages import home_of
from app.web.middleware import ALIVE, READY, at_start
from app.web.pacing import Pacing
from app.web.rendering import LANGUAGES, UNAVAILABLE, page_language, translations

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def host_name(host: str) -> str:
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]+))(?::\d+)?", host.strip())
    return (match[1] or match[2]).lower().rstrip(".") if match else ""


def is_loopback(host: str) -> bool:
    return host in LOOPBACK or host_name(host) in LOOPBACK


class Site:
    """The server's own addresses. bound_to: the listening address. public_url: as customers write it, or None."""

    def __init__(self, bound_to: str, public_url: str | None) -> None:
        url = urlsplit(public_url or "")
        self._origin = f"{url.scheme}://{url.netloc}".lower() if public_url else None
        self._hosts = LOOPBACK | {host_name(url.netloc)} if public_url else LOOPBACK if is_loopback(bound_to) else None
        self._is_tls = url.scheme == "https"

    def answers_to(self, request: Request) -> bool:
        return self._hosts is None or host_name(request.headers.get("host", "")) in self._hosts

    def takes_from(self, request: Request) -> bool:
        """Return whether a request that changes data comes from one of our pages or from a program without a page."""
        origin = request.headers.get("origin")
        if origin is None or origin.lower() == self._origin:
            return True
        return origin.partition("://")[2].lower() == request.headers.get("host", "").lower()

    def is_called(self, host: str) -> bool:
        """Return whether a host name is the public address. A proxy forwards the browser's host name."""
        return self._origin is not None and host.strip().lower() == self._origin.partition("://")[2]

    def is_secure(self, request: Request) -> bool:
        """Return whether the browser uses TLS, so that cookies may require it."""
        return self._is_tls or request.url.scheme == "https"


SCRIPT, PAGE = "/widget.js", "/widget"


@dataclass(frozen=True, slots=True)
class SiteCookie:
    """A cookie. name: without TLS. prefix: precedes the name with TLS. path: URL path to which it is sent."""

    name: str
    prefix: str
    path: str
    samesite: Literal["lax", "strict"]

    def read(self, request: Request, site: Site) -> str:
        return request.cookies.get(self._named(request, site), "")

    def give(self, response: Response, value: str, lifetime_s: int, request: Request, site: Site) -> None:
        response.set_cookie(
            self._named(request, site),
            value,
            max_age=lifetime_s,
            path=self.path,
            httponly=True,
            samesite=self.samesite,
            secure=site.is_secure(request),
        )

    def drop(self, response: Response, request: Request, site: Site) -> None:
        self.give(response, "", 0, request, site)

    def _named(self, request: Request, site: Site) -> str:
        return self.prefix + self.name if site.is_secure(request) else self.name


VISITOR = SiteCookie(COOKIE, "__Host-", "/", "lax")
ADMIN = SiteCookie("warmdesk_admin", "__Secure-", "/admin", "strict")
"""The cookie is sent to /admin only, which the prefix `__Host-` does not allow."""

log = logging.getLogger(__name__)

GRADIO = "/gradio_api/"  # part of the paths of the pages' events, whose script reads JSON
_OPEN_ADMIN = frozenset({"/admin/login", "/admin/logout"})
_SCRIPT = re.compile(rb"<script\b", re.IGNORECASE)
_LANGUAGE = re.compile(rb'(<html\s[^>]*?lang=)"en"')
_PREVIEW = re.compile(rb"<meta\s[^>]*(?:og:|twitter:)[^>]*>", re.IGNORECASE)
_CSP = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "manifest-src 'self'; form-action 'self'; base-uri 'self'; frame-ancestors 'none'"
)
_WIDGET_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'self'; frame-ancestors "
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


class Guard:
    """Checks each request before the application handles it."""

    def __init__(self, app: ASGIApp, *, site: Site, identity: Identity, widget_origins: Sequence[str] = ()) -> None:
        """widget_origins: origins of sites that may show the widget; none: the widget is off."""
        self._app, self._site, self._identity = app, site, identity
        self._widget_origins, self._pacing = tuple(widget_origins), Pacing()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no page uses websockets
        nonce = secrets.token_urlsafe(16)
        headers = _HEADERS | {"content-security-policy": _CSP.format(nonce=nonce)}
        request = Request(scope, receive)
        self._drop_foreign_names(request)
        # On loopback, HSTS would affect other programs of the machine.
        if self._site.is_secure(request) and host_name(request.headers.get("host", "")) not in LOOPBACK:
            headers["strict-transport-security"] = f"max-age={visitors.LIFETIME_S}"
        if self._widget_origins and scope["path"] == SCRIPT:
            headers["cross-origin-resource-policy"] = "cross-origin"
        if self._widget_origins and scope["path"] == PAGE:
            del headers["x-frame-options"]  # it cannot list origins, and would forbid those of the policy
            headers["content-security-policy"] = _WIDGET_CSP + " ".join(self._widget_origins)
        send = at_start(send, lambda sent, _: _secure(sent, headers))
        try:
            refusal = self._refused_unread(request)
            is_look = scope["path"] in (ALIVE, READY) and request.method in ("GET", "HEAD")
            if refusal is None and is_look:  # health checks: no limits for any caller
                await self._app(scope, receive, send)
                return
            refusal = refusal or await self._refused_by_rule(request)
        except DeskError as error:  # from the database of the sessions
            refusal = unavailable(request, error)
        async with self._pacing.turn(request) as wait_s:
            if wait_s:
                await too_often(request, wait_s)(scope, receive, send)
                return
            send = at_start(send, lambda _, status: self._pacing.answered(request, status))
            if refusal is not None:
                await refusal(scope, receive, send)
                return
            await self._passed(request, send, nonce)

    async def _passed(self, request: Request, send: Send, nonce: str) -> None:
        scope, receive = request.scope, request.receive
        if scope["method"] == "GET" and scope["path"] == "/":
            del MutableHeaders(scope=scope)["accept-encoding"]  # compressed pages could not get their nonce
            send = _rewritten(send, nonce, LANGUAGES[page_language(request.headers)])
            if visitors.PARAMETER in request.query_params:
                await self._handed_over(request)(scope, receive, send)
                return
            if not caller_of(request).owner:
                given = Response()
                VISITOR.give(given, visitors.new_token(), visitors.LIFETIME_S, request, self._site)
                send = at_start(send, lambda sent, _: sent.append("set-cookie", given.headers["set-cookie"]))
        await self._app(scope, receive, send)

    def _drop_foreign_names(self, request: Request) -> None:
        """Remove headers with a foreign host name. Gradio trusts such headers, and puts the name into its page."""
        headers = MutableHeaders(scope=request.scope)
        del headers["x-gradio-server"]
        if not self._site.is_called(headers.get("x-forwarded-host", "")):
            del headers["x-forwarded-host"]

    def _refused_unread(self, request: Request) -> Response | None:
        """Refuse a request before its body is read: wrong host, wrong length, another site's page."""
        if not self._site.answers_to(request):
            words = translatable("This server does not accept that host name (wrong Host header).")
            return _refused(request, 421, words)
        # A page of another site may send requests to 127.0.0.1; the browser then names that site here.
        if request.method not in ("GET", "HEAD") and not self._site.takes_from(request):
            return _refused(request, 403, translatable("Requests from other sites are not accepted."))
        return None

    async def _refused_by_rule(self, request: Request) -> Response | None:
        """Refuse a caller without permission. Store a permitted caller in the request."""
        path, method = request.scope["path"], request.method
        wants_page = method == "GET" and "text/html" in request.headers.get("accept", "")
        is_admin_area = (path == "/admin" or path.startswith("/admin/")) and path not in _OPEN_ADMIN
        caller = await self._caller(request, is_admin_area)
        request.state.caller = caller
        if is_admin_area and not caller.role:
            if wants_page:
                return RedirectResponse("/admin/login", 303)
            return _refused(request, 401, translatable("Not signed in."))
        if path == "/admin":
            return RedirectResponse("/admin/", 307)
        rule = find_rule(path, method)
        if rule is None or (not self._widget_origins and (path == SCRIPT or f"{path}/".startswith(f"{PAGE}/"))):
            return refused(request, 404, translatable("Not found."), "not_found")
        if rule.allows(caller):
            return None
        if path == "/admin/" and wants_page:  # the dashboard is for admins: agents begin on their own page
            return RedirectResponse(home_of(caller), 303)
        if path.startswith("/v1/"):  # programs get English
            if caller == NOBODY:
                words = "A key is needed: send it as `Authorization: Bearer KEY`."
                return refused(request, 401, words, "invalid_api_key")
            return refused(request, 403, "This key lacks the scope for this request.", "forbidden")
        if caller == NOBODY:
            words = translatable("This page needs its cookie: allow cookies for it, and load it again.")
            return _refused(request, 401, words)
        return _refused(request, 403, translatable("Your account does not have this permission."))

    async def _caller(self, request: Request, is_admin_area: bool) -> Caller:
        if is_admin_area:
            return await run_in_threadpool(self._identity.signed_in, ADMIN.read(request, self._site))
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return await run_in_threadpool(self._identity.bearer, token.strip())
        return self._identity.visitor(VISITOR.read(request, self._site))

    def _handed_over(self, request: Request) -> Response:
        """Sign in a visitor whom a company's site sends: set the session's cookie, remove the token from the URL."""
        try:
            linked = self._identity.linked(request.query_params[visitors.PARAMETER])
        except DeskError as error:
            return _refused(request, 401, str(error))
        here = caller_of(request).owner
        if here.startswith(KNOWN) and here != linked.owner and not linked.is_fresh:
            words = translatable(
                'Another customer is signed in to this chat. Sign out under "Your data" first, or go back to the page '
                "with this link and open it again."
            )
            return _refused(request, 409, words)
        response = RedirectResponse("/", 303)
        session = self._identity.session(linked.owner, linked.user)
        VISITOR.give(response, session, visitors.SESSION_S, request, self._site)
        return response


def _refused(request: Request, status: int, words: str) -> Response:
    with speaking(translations(page_language(request.headers))):
        words = gettext(words)
    if GRADIO in request.scope["path"]:
        return JSONResponse({"detail": words}, status)
    return PlainTextResponse(words + "\n", status)


def refused(request: Request, status: int, words: str, code: str) -> Response:
    """Return the response that refuses a program (path below /v1) or a browser, in the browser's language."""
    if request.scope["path"].startswith("/v1/"):
        return ApiError(status, words, code).response
    return _refused(request, status, words)


def too_often(request: Request, wait_s: float) -> Response:
    words = translatable("Too many requests in a short time: wait a moment, then try again.")
    answer = refused(request, 429, words, "too_many_requests")
    answer.headers["retry-after"] = str(ceil(wait_s))
    return answer


def unavailable(request: Request, error: DeskError) -> Response:
    if not error.is_away:
        log.warning("%s", error)
    return come_again(request)


def come_again(request: Request) -> Response:
    """Return the response to a request that may be repeated soon."""
    answer = refused(request, 503, UNAVAILABLE, "unavailable")
    answer.headers.update({"retry-after": str(BUSY_S), "cache-control": "no-store"})
    return answer


def _secure(headers: MutableHeaders, more: Mapping[str, str]) -> None:
    # Gradio lets other local ports read answers with cookies; our pages need no cross-origin access.
    for name in {name for name in headers if name == "server" or name.startswith("access-control-")}:
        del headers[name]
    headers.update(more)


def _rewritten(send: Send, nonce: str, language: str) -> Send:
    """Collect an HTML page of Gradio, add the nonce to its scripts, set its language, and drop link-preview tags."""
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
            page = _LANGUAGE.sub(f'\\1"{language}"'.encode(), page, count=1)
        headers.update({"content-length": str(len(page)), "cache-control": "no-store"})
        await send(start)
        await send({"type": "http.response.body", "body": page})

    return rewriting
