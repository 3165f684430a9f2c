"""The frame of all admin pages, the pages of encoded passages and look-ups, and the description of the API.

`access_rules` alone defines the pages and their readers. The page of the API sends requests with a key that the reader
types, never with the reader's session. The session cookie is sent to /admin only, so no other page can make a browser
call /v1 in an admin's name.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlencode

from fastapi import FastAPI, Form, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.access.identity import caller_of
from app.desk.service import Service
from app.domain.answers import ModuleRow
from app.domain.callers import Caller, Id, Line
from app.domain.errors import DeskError
from app.domain.words import one_line, translatable
from app.storage.people import Audit
from app.web.access_rules import find_rule
from app.web.rendering import admin_words, page_language, render

PAGES = (
    ("/admin/", translatable("Dashboard")),
    ("/admin/queue", translatable("Queue")),
    ("/admin/conversations", translatable("Conversations")),
    ("/admin/quality", translatable("Quality")),
    ("/admin/faq", translatable("FAQ")),
    ("/admin/search", translatable("Try a question")),
    ("/admin/documents", translatable("Documents")),
    ("/admin/lookups", translatable("Look-ups")),
    ("/admin/modules", translatable("Model memory")),
    ("/admin/engine", translatable("Engine")),
    ("/admin/settings", translatable("Settings")),
    ("/admin/accounts", translatable("Accounts")),
    ("/admin/audit", translatable("Audit log")),
    ("/admin/api", translatable("API and keys")),
)
"""Path and name of every page, in the order of the navigation."""
GROUPS = {
    "/admin/": translatable("Support"),
    "/admin/documents": translatable("Knowledge"),
    "/admin/settings": translatable("Desk"),
}
"""Groups of the navigation, by the path of their first page."""
DONE = {
    "warm": translatable("The passage is loaded."),
    "evict": translatable("The passage was unloaded."),
    "keep": translatable("The passage is pinned: it is evicted only as a last resort."),
    "release": translatable("The passage is no longer pinned."),
    "sound": translatable("Verified: the recomputed numbers are the same, except for rounding."),
    "differs": translatable(
        "The stored numbers differ from those that the model computes: delete the document and add it again."
    ),
    "unreadable": translatable(
        "The stored copy could not be read and was deleted: the passage is encoded again when needed."
    ),
    "account-removed": translatable("The account was deleted and signed out everywhere."),
    "role": translatable("The role was changed, and the account was signed out everywhere."),
    "key-revoked": translatable("The key no longer works."),
    "settings": translatable("Saved. Restart Warmdesk to use the changes."),
}
"""Messages after an action, by the parameter `did`."""
NO_STORE = {"cache-control": "no-store"}


Links: TypeAlias = dict[str, list[tuple[str, str]]]  # the entries of PAGES, by group


def links_for(caller: Caller) -> Links:
    """Return the entries of PAGES that the caller may open."""
    links: Links = {}
    group = ""
    for path, words in PAGES:
        group = GROUPS.get(path, group)
        if (rule := find_rule(path, "GET")) and rule.allows(caller):
            links.setdefault(group, []).append((path, words))
    return links


def home_of(caller: Caller) -> str:
    return next((path for pages in links_for(caller).values() for path, _ in pages), "/admin/")


def admin_page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a template that extends `admin_page.html`, in the reader's language."""
    caller = caller_of(request)
    did = DONE.get(request.query_params.get("did", "")) if request.method == "GET" else None
    path = request.url.path
    here = next((page for page, _ in PAGES if path == page or path.startswith(f"{page}/")), path)
    frame = {"links": links_for(caller), "here": here, "request_path": path, "caller": caller, "did": did}
    frame["now"] = datetime.now(UTC)
    html = render(template, language=page_language(request.headers), **(frame | values))
    return HTMLResponse(html, status, headers=NO_STORE)


def done(path: str, did: str, at: str = "", **query: str) -> RedirectResponse:
    """Return a redirect to a page. did: a key of DONE. at: id of the element to scroll to."""
    return RedirectResponse(f"{path}?{urlencode({**query, 'did': did})}{at and f'#{at}'}", 303)


PAGE = "/admin/modules"
SHOWN = 50
CLOSE = 1e-3  # maximum difference due to rounding, as a share of the largest number of the module
_NEVER = datetime.min.replace(tzinfo=UTC)
COLUMNS: Mapping[str, tuple[str, Callable[[ModuleRow], Any]]] = {
    "document": (translatable("Document"), lambda row: row.document),
    "tokens": (translatable("Tokens"), lambda row: -row.tokens),
    "size": (translatable("Size"), lambda row: -row.num_bytes),
    "tier": (translatable("Where"), lambda row: row.tier),
    "uses": (translatable("Uses"), lambda row: -row.hits),
    "missed": (translatable("Missed"), lambda row: -row.misses),
    "saved": (translatable("Tokens saved"), lambda row: -row.saved),
    "used": (translatable("Last use"), lambda row: -(row.last_used or _NEVER).timestamp()),
}
"""Sortable columns of the table: heading, and sort key."""
ACTIONS: Mapping[str, Callable[[Service, str], str | None]] = {
    "warm": lambda desk, key: desk.module_care.warm(key),
    "evict": lambda desk, key: desk.module_care.evict(key),
    "keep": lambda desk, key: desk.module_care.keep(key, is_kept=True),
    "release": lambda desk, key: desk.module_care.keep(key, is_kept=False),
    "verify": lambda desk, key: _outcome(desk.module_care.verify(key).largest_difference),
}
"""Actions on a module. Each returns the key of its message in `DONE`, or None for the action's own name."""


def add_module_routes(app: FastAPI, desk: Service, audit: Audit) -> None:
    def shown(request: Request, query: str, sort: str, page: int, error: DeskError | None = None) -> HTMLResponse:
        order = sort if sort in COLUMNS else "saved"
        overview = desk.overview()
        rows = found(() if overview.is_elsewhere else overview.modules, query, order)
        last = max(1, -(-len(rows) // SHOWN))
        page = min(max(page, 1), last)
        values = {"query": query, "sort": order, "page": page, "last": last, "columns": COLUMNS, "number": len(rows)}
        values["problem"] = admin_words(error) if error else ""
        values["is_elsewhere"] = overview.is_elsewhere
        some = rows[(page - 1) * SHOWN : page * SHOWN]
        status = 200 if error is None else 409
        return admin_page(request, "modules.html", status=status, modules=some, **values)

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


def _outcome(difference: float | None) -> str:
    return "unreadable" if difference is None else "sound" if difference <= CLOSE else "differs"


def found(modules: tuple[ModuleRow, ...], query: str, order: str) -> list[ModuleRow]:
    words = query.casefold().split()
    rows = [row for row in modules if all(word in f"{row.document} {row.passage}".casefold() for word in words)]
    return sorted(rows, key=lambda row: (COLUMNS[order][1](row), row.document, row.passage))


FOR_PROGRAMS = ("/v1/", "/metrics", "/healthz", "/readyz")  # prefixes of the paths that are described


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the routes for programs."""
    found = get_openapi(title=app.title, version="1", routes=app.routes)
    found["paths"] = {path: one for path, one in found["paths"].items() if path.startswith(FOR_PROGRAMS)}
    schemes = {"key": {"type": "http", "scheme": "bearer", "description": "An API key: warmdesk keys create NAME"}}
    found.setdefault("components", {})["securitySchemes"] = schemes
    found["security"] = [{"key": []}]
    return found


def operations(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return each method of each path, with its parameters and the fields of its body (`_fields`). is_json: the body is
    JSON, not a form with a file. draft: an example body with the required fields.
    """
    paths = sorted(document["paths"].items(), key=lambda item: not item[0].startswith("/v1/"))
    for path, methods in paths:
        for method, one in methods.items():
            contents = one.get("requestBody", {}).get("content", {})
            body = [row for content in contents.values() for row in _fields(content["schema"], document)]
            draft = {row["name"]: [] if row["kind"].startswith("list") else "" for row in body if row["required"]}
            yield {
                "method": method.upper(),
                "path": path,
                "words": one_line(one.get("description", "")),
                "parameters": [_field(row, row["schema"]) for row in one.get("parameters", ())],
                "body": body,
                "is_json": "application/json" in contents,
                "draft": json.dumps(draft),
            }


def _fields(reference: Mapping[str, str], document: Mapping[str, Any]) -> list[dict[str, Any]]:
    schema = document["components"]["schemas"][reference["$ref"].rpartition("/")[2]]
    required = schema.get("required", ())
    return [
        _field({**row, "name": name, "required": name in required}, row) for name, row in schema["properties"].items()
    ]


def _field(row: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    words = row.get("description", "")
    return {"name": row["name"], "kind": kind_of(schema), "required": row.get("required", False), "words": words}


def kind_of(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = dict.fromkeys(kind_of(one) for one in schema["anyOf"] if one.get("type") != "null")
        return " or ".join(kinds)
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema or "const" in schema:
        return ", ".join(map(repr, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return f"list of {kind_of(schema['items'])}"
    is_file = "contentMediaType" in schema or schema.get("format") == "binary"
    return "file" if is_file else str(schema.get("type", "any"))


def add_lookup_routes(app: FastAPI, desk: Service, audit: Audit) -> None:
    """Add the page of look-ups: their outcomes, and test calls with an operator's values, written to the audit log."""

    def page(request: Request, status: int = 200, **tried: Any) -> HTMLResponse:
        rows = [(one, desk.lookups.figures(one.name)) for one in desk.lookups.all()]
        shown = {"name": "", "given": [], "tried": None, "problem": "", **tried}
        return admin_page(request, "lookups.html", status=status, rows=rows, **shown)

    @app.get("/admin/lookups")
    def lookups(request: Request) -> HTMLResponse:
        return page(request)

    @app.post("/admin/lookups/try")
    def try_out(
        request: Request, name: Annotated[Id, Form()], given: Annotated[list[Line], Form(max_length=10)]
    ) -> HTMLResponse:
        audit.record(caller_of(request).who, "lookup-try", name)
        try:
            return page(request, name=name, given=given, tried=desk.lookups.try_out(name, given))
        except DeskError as error:
            return page(request, 400, name=name, given=given, problem=str(error))
