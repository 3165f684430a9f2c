"""The admin's page of encoded passages: search, sort, and what can be done with one of them. Works without script."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, Response

from app.access.identity import caller_of
from app.desk.interface import Desk
from app.domain.answers import ModuleRow
from app.domain.errors import DeskError
from app.domain.lengths import Id, Line
from app.domain.translation import translatable
from app.domain.verified import Verified
from app.storage.audit import Audit
from app.web.admin_frame import admin_page, done
from app.web.error_words import admin_words

PAGE = "/admin/modules"
SHOWN = 50
_NEVER = datetime.min.replace(tzinfo=UTC)
_ORDER: Mapping[str, Callable[[ModuleRow], tuple[object, ...]]] = {
    "document": lambda row: (row.document, row.passage),
    "tokens": lambda row: (-row.tokens,),
    "size": lambda row: (-row.num_bytes,),
    "tier": lambda row: (row.tier,),
    "uses": lambda row: (-row.hits,),
    "missed": lambda row: (-row.misses,),
    "saved": lambda row: (-row.saved,),
    "used": lambda row: (-(row.last_used or _NEVER).timestamp(),),
}
COLUMNS = (
    *(("document", translatable("Document")), ("tokens", translatable("Tokens")), ("size", translatable("Size"))),
    *(("tier", translatable("Kept in")), ("uses", translatable("Uses")), ("missed", translatable("Missed"))),
    *(("saved", translatable("Tokens saved")), ("used", translatable("Last use"))),
)
"""What the table can be sorted by, and the heading."""
ACTIONS: Mapping[str, Callable[[Desk, str], str | None]] = {
    "warm": lambda desk, key: desk.warm_module(key),
    "evict": lambda desk, key: desk.evict_module(key),
    "keep": lambda desk, key: desk.keep_module(key, is_kept=True),
    "release": lambda desk, key: desk.keep_module(key, is_kept=False),
    "verify": lambda desk, key: _outcome(desk.verify_module(key)),
}
"""What can be done with a module. Each gives what the page then says (`admin_frame.DONE`), if not the action's own."""


def add_module_routes(app: FastAPI, desk: Desk, audit: Audit) -> None:
    """The page, and what its buttons send."""

    def shown(request: Request, query: str, sort: str, page: int, error: DeskError | None = None) -> HTMLResponse:
        order = sort if sort in _ORDER else "saved"
        overview = desk.overview()
        rows = found(() if overview.is_elsewhere else overview.modules, query, order)
        last = max(1, -(-len(rows) // SHOWN))
        page = min(max(page, 1), last)
        values = {"query": query, "sort": order, "page": page, "last": last, "columns": COLUMNS, "number": len(rows)}
        values["problem"] = admin_words(error) if error else ""
        values["is_elsewhere"] = overview.is_elsewhere
        some = rows[(page - 1) * SHOWN : page * SHOWN]
        status = 200 if error is None else 409
        return admin_page(request, "modules.html", status=status, modules=some, now=datetime.now(UTC), **values)

    @app.get(PAGE)
    def modules(request: Request, q: Line = "", sort: Id = "saved", page: int = 1) -> HTMLResponse:
        return shown(request, q, sort, page)

    @app.get(f"{PAGE}/memory")
    def memory(request: Request) -> HTMLResponse:
        return admin_page(request, "memory.html", plan=desk.memory_plan(), is_elsewhere=desk.overview().is_elsewhere)

    def accept(action: str) -> None:
        @app.post(f"{PAGE}/{action}")
        def act(
            request: Request,
            key: Annotated[Line, Form()],
            q: Annotated[Line, Form()] = "",
            sort: Annotated[Id, Form()] = "saved",
            page: Annotated[int, Form()] = 1,
        ) -> Response:
            try:
                did = ACTIONS[action](desk, key) or action
            except DeskError as error:
                return shown(request, q, sort, page, error)
            row = next((row for row in desk.overview().modules if row.id == key), None)
            audit.record(caller_of(request).name, f"module-{action}", f"{row.document} {row.passage}" if row else key)
            return done(PAGE, did, q=q, sort=sort, page=str(page))

    for action in ACTIONS:
        accept(action)


def _outcome(verified: Verified) -> str:
    return "unreadable" if verified.largest_difference is None else "sound" if verified.is_sound else "differs"


def found(modules: tuple[ModuleRow, ...], query: str, order: str) -> list[ModuleRow]:
    """The modules whose document or passage has each word of a query, in an order of `_ORDER`."""
    words = query.casefold().split()
    rows = [row for row in modules if all(word in f"{row.document} {row.passage}".casefold() for word in words)]
    return sorted(rows, key=lambda row: (*_ORDER[order](row), row.document, row.passage))
