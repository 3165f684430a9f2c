"""Who may call what: every route of the application against everybody who may call it.

The routes come from the application, Gradio's included; the guard decides on each. A new route needs a line in
`app.web.access_rules` and one in TABLE here; one without a line is served to nobody, which the last test shows.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from desk_site import Site
from quick_account import quick_account
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Message, Receive, Scope, Send

from app.access.identity import COOKIE, Identity, new_token
from app.domain.callers import Caller
from app.storage.people import Accounts, Sessions
from app.web.access_rules import RULES, find_rule
from app.web.guard import ADMIN as ADMIN_COOKIE
from app.web.guard import Guard
from app.web.guard import Site as Address

ANN, BOB = new_token(), new_token()
KEYS = {
    f"key-{scope}": Caller(owner="k-1", name="shop", scopes=frozenset({scope}))
    for scope in ("none", "chat", "documents", "admin")
}
CALLERS = ("nobody", "ann", "bob", "agent", "admin", *KEYS)

EVERYBODY, VISITORS, STAFF, ADMIN = set(CALLERS), {"ann", "bob"}, {"agent", "admin"}, {"admin"}
CHAT, DOCUMENTS = {"key-chat"}, {"key-documents"}


TABLE: dict[str, set[str]] = {
    f"{method} {path}": who
    for method, who, paths in (
        ("GET", EVERYBODY, "/healthz /readyz /metrics /favicon.ico /logo /widget /widget.js /widget/page.css"),
        ("GET", EVERYBODY, "/widget/page.js /admin/login /desk.css /admin.css"),
        ("GET", EVERYBODY, "/admin.js /documents.js /api.js /queue.js /events.js /quality.js"),
        ("POST", EVERYBODY, "/widget/visitor /admin/login /admin/logout"),
        ("GET", ADMIN, "/admin/ /admin/engine /admin/api /admin/openapi.json /admin/quality"),
        ("GET", ADMIN, "/admin/conversations /admin/conversations/1"),
        ("GET", ADMIN, "/admin/documents /admin/documents/1 /admin/documents/1/file /admin/modules"),
        ("GET", ADMIN, "/admin/modules/memory /admin/accounts /admin/audit /admin/settings /admin/lookups"),
        ("POST", ADMIN, "/admin/documents/upload /admin/documents/forget /admin/documents/collections/forget"),
        ("POST", ADMIN, "/admin/documents/folders /admin/documents/folders/run /admin/documents/folders/remove"),
        ("POST", ADMIN, "/admin/documents/folders/stop /admin/documents/folders/try"),
        ("POST", ADMIN, "/admin/modules/warm /admin/modules/evict /admin/modules/keep /admin/modules/release"),
        ("POST", ADMIN, "/admin/modules/verify /admin/accounts /admin/accounts/role /admin/accounts/password"),
        ("POST", ADMIN, "/admin/accounts/remove /admin/api/keys /admin/api/keys/revoke /admin/settings"),
        ("POST", ADMIN, "/admin/lookups/try"),
        ("POST", CHAT, "/v1/chat/completions /v1/embeddings /v1/feedback /v1/handoffs /v1/handoffs/1/messages"),
        ("GET", CHAT, "/v1/handoffs/1 /v1/conversations /v1/conversations/1 /v1/conversations/1/export"),
        ("DELETE", CHAT, "/v1/handoffs/1 /v1/conversations/1"),
        ("GET", CHAT | DOCUMENTS | {"key-admin"}, "/v1/models /v1/models/1"),
        ("GET", DOCUMENTS, "/v1/documents /v1/documents/1"),
        ("POST", DOCUMENTS, "/v1/documents"),
        ("DELETE", DOCUMENTS, "/v1/documents/1"),
        ("GET", VISITORS, "/sources/1/1 /conversations/1/export.1 /my-data"),
        ("POST", VISITORS, "/my-data/delete /sign-out /typing /widget/open /widget/ask /widget/stop /widget/feedback"),
        ("POST", VISITORS, "/widget/person /widget/typing"),
        ("POST", ADMIN, "/admin/conversations/1/step-in"),
        ("POST", STAFF, "/admin/queue/1/suggest /admin/queue/1/reopen"),
        ("GET", STAFF, "/admin/queue/faq /admin/queue/waiting"),
        ("GET", STAFF, "/admin/faq /admin/search /admin/queue /admin/queue/rows /admin/queue/1 /admin/queue/1/now"),
        ("POST", STAFF, "/admin/faq /admin/faq/delete /admin/queue/1/take /admin/queue/1/answer /admin/queue/1/close"),
    )
    for path in paths.split()
}
"""Who may call each route of ours. The guard knows a role at /admin only, and a visitor or key elsewhere."""
OPEN_GRADIO = re.compile(r"/(config/?|theme\.css|manifest\.json|robots\.txt|pwa_icon.*|(assets|static|svelte)/.*)?")


def fill(path: str) -> str:
    """A path of a route with something in place of its parameters."""
    return re.sub(r"\{[^}]+\}", "1", path).replace("//", "/")


@cache
def routes(site: Site) -> dict[str, str]:
    """Every route by "METHOD /path", and the prefix of the page whose Gradio brought it; "own" for ours."""
    found: dict[str, str] = {}

    def walk(routes: Iterable[BaseRoute], prefix: str, kind: str) -> None:
        for route in routes:
            if isinstance(route, Mount):
                walk(route.routes, prefix + route.path, route.path)
            elif (router := getattr(route, "original_router", None)) is not None:  # FastAPI keeps included ones whole
                inner = getattr(route, "include_context").prefix  # noqa: B009  # of a class that is not public
                walk(router.routes, prefix + inner, kind)
            else:
                assert isinstance(route, Route), route
                for method in (route.methods or {"GET"}) - {"HEAD", "OPTIONS"}:
                    found.setdefault(f"{method} {fill(prefix + route.path)}", kind)

    walk(site.app.routes, "", "own")
    return found


class Doors:
    """The guard before an application that answers 200 to everything. headers: of each caller. It is called without a
    client, which would take longer for the thousands of requests than all the rest.
    """

    def __init__(self, guard: Guard, headers: dict[str, dict[str, str]], portal: BlockingPortal) -> None:
        self._guard, self._headers, self._portal = guard, headers, portal

    def passes(self, route: str, callers: Iterable[str] = CALLERS) -> set[str]:
        method, path = route.split(" ", 1)
        replies = self._portal.call(self._replies, method, path, callers)
        assert {first["status"] for first, *_ in replies.values()} <= {200, 401, 403, 404}, route
        return {name for name, (_, *rest) in replies.items() if b"let through" in [one.get("body") for one in rest]}

    async def _replies(self, method: str, path: str, callers: Iterable[str]) -> dict[str, list[Message]]:
        replies: dict[str, list[Message]] = {}

        async def receive() -> Message:
            return {"type": "http.request"}

        for name in callers:
            sent = replies[name] = []

            async def send(message: Message, sent: list[Message] = sent) -> None:
                sent.append(message)

            headers = {"host": "127.0.0.1:7860", **self._headers[name]}
            scope = {
                **{"type": "http", "scheme": "http", "method": method, "path": unquote(path), "query_string": b""},
                **{"client": ("10.0.0.1", 1), "server": ("127.0.0.1", 7860)},
                "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
            }
            await self._guard(scope, receive, send)
        return replies


@pytest.fixture(scope="module")
def doors(site):
    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"let through"})

    sessions, accounts = Sessions(site.database), Accounts(site.database)
    identity = Identity(sessions, None, KEYS.get)
    app = Guard(inside, site=Address("127.0.0.1", None), identity=identity, widget_origins=["https://shop.example"])
    headers = {"nobody": {}, "ann": {"cookie": f"{COOKIE}={ANN}"}, "bob": {"cookie": f"{COOKIE}={BOB}"}}
    headers |= {key: {"authorization": f"Bearer {key}"} for key in KEYS}
    quick_account(accounts, "agent", "agent")
    for name in ("agent", "admin"):
        account = accounts.named(name)
        assert account is not None
        headers[name] = {"cookie": f"{ADMIN_COOKIE.name}={sessions.start(account)}"}
    with start_blocking_portal() as portal:
        yield Doors(app, headers, portal)


def test_every_route_of_ours_has_a_row_and_every_row_a_route(site):
    assert {route for route, kind in routes(site).items() if kind == "own"} == set(TABLE)


def test_who_is_let_through(doors):
    assert {route: doors.passes(route) for route in TABLE} == TABLE


def test_an_agent_reads_all_conversations_only_if_the_setting_says_so():
    for reads_all in (False, True):
        agent = Caller(owner="operator", name="ann", role="agent", reads_all=reads_all)
        for method, path in (("GET", "/admin/conversations/1"), ("GET", "/admin/quality")):
            rule = find_rule(path, method)
            assert rule is not None
            assert rule.allows(agent) == reads_all


def test_of_gradio_only_what_the_pages_need_is_served(site, doors):
    served = 0
    for route, prefix in routes(site).items():
        if prefix == "own" or route in TABLE:
            continue
        path = route.split(" ", 1)[1].removeprefix(prefix)
        if not doors.passes(route, ("ann", "admin", "key-admin")):
            continue
        allowed = doors.passes(route)
        served += 1
        assert allowed == (EVERYBODY if OPEN_GRADIO.fullmatch(path) else VISITORS), route
    assert served >= 10
    assert len([route for route, kind in routes(site).items() if kind != "own"]) > 60, "Gradio's own were looked at"


def test_every_route_of_gradio_was_looked_at(site):
    """A version of Gradio that has other routes fails here: what does a new one do, and does a page need it?"""
    there = {route for route, prefix in routes(site).items() if prefix == ""}
    decided = {f"{'served' if find_rule(path, method) else 'closed'} {method} {path}" for method, path in split(there)}
    assert decided == set((Path(__file__).parent / "gradio_routes.txt").read_text().splitlines())


def split(routes: Iterable[str]) -> Iterator[list[str]]:
    return (route.split(" ", 1) for route in routes)


def test_a_route_without_a_row_is_served_to_nobody(site, doors):
    assert find_rule("/new", "GET") is None
    for route in ("GET /new", "POST /healthz", "GET /admin/new", "DELETE /admin/documents", "GET /static/%2e%2e/x"):
        assert doors.passes(route) == set()


def test_the_page_on_security_says_what_each_way_in_takes():
    """docs/security.md has a row for each rule: who, how large, and a file of tests that holds it."""
    tests = Path(__file__).parent
    page = (tests.parent / "docs" / "security.md").read_text()
    rows = [re.split(r"(?<!\\)\|", line) for line in page.splitlines() if line.startswith("| `/")]
    assert all(len(row) == 9 for row in rows)
    said = [[cell.strip().replace("\\|", "|") for cell in row[1:-1]] for row in rows]
    assert [(path, methods, who) for path, methods, who, *_ in said] == [
        (f"`{rule.path.pattern}`", " ".join(sorted(rule.methods)), ", ".join(sorted(rule.who))) for rule in RULES
    ]
    for path, methods, who, takes, size, rate, held_by in said:
        assert takes, path
        assert bool(size) == ("POST" in methods) or held_by == "test_app_server", path
        assert bool(rate) == (who not in ("agent", "reader", "admin")) or path.startswith("`/admin/documents/("), path
        assert (tests / f"{held_by}.py").is_file(), path
