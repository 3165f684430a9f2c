"""The frame of all admin pages: their list, which of them somebody sees, and the answer to a request for one.

A page is one line of PAGES. Whether there is such a page, and who may open it, is in `access_rules` alone.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse

from app.access.identity import caller_of
from app.domain.callers import Caller
from app.domain.translation import translatable
from app.web.access_rules import find_rule
from app.web.languages import page_language
from app.web.rendering import render

PAGES = (
    ("/admin/", translatable("Dashboard")),
    ("/admin/queue", translatable("Queue")),
    ("/admin/quality", translatable("Quality")),
    ("/admin/faq", translatable("FAQ")),
    ("/admin/conversations", translatable("Conversations")),
    ("/admin/search", translatable("Test search")),
    ("/admin/documents", translatable("Documents")),
    ("/admin/modules", translatable("Passages read")),
    ("/admin/settings", translatable("Settings")),
    ("/admin/accounts", translatable("Accounts")),
    ("/admin/keys", translatable("Keys")),
    ("/admin/audit", translatable("Audit log")),
    ("/admin/api", translatable("API")),
)
"""Path and name of every page, in the order of the navigation."""
DONE = {
    "warm": translatable("The passage is ready in memory."),
    "evict": translatable("The passage was taken out of memory."),
    "keep": translatable("The passage is kept: it is dropped only when nothing else can be."),
    "release": translatable("The passage is dropped like any other when room is needed."),
    "sound": translatable("Verified: computed anew, the stored numbers are the same but for rounding."),
    "differs": translatable(
        "The stored numbers are not those that the model computes: forget the document and add it again."
    ),
    "unreadable": translatable(
        "The stored copy could not be read and was removed: the passage is read again when needed."
    ),
    "account-removed": translatable("The account was removed, and its sign-ins ended."),
    "role": translatable("The role was changed, and the account's sign-ins ended."),
    "key-revoked": translatable("The key no longer works."),
    "settings": translatable("Saved. It counts from the next start of the desk on."),
}
"""What a page says after something was done, by the `did` of its address."""
NO_STORE = {"cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class AdminLink:
    """A page that somebody may open. words: English, translated where it is shown."""

    path: str
    words: str


def links_for(caller: Caller) -> list[AdminLink]:
    """The pages that somebody may open."""
    rules = ((path, words, find_rule(path, "GET")) for path, words in PAGES)
    return [AdminLink(path, words) for path, words, rule in rules if rule is not None and rule.allows(caller)]


def home_of(caller: Caller) -> str:
    """Where somebody begins who signed in."""
    links = links_for(caller)
    return links[0].path if links else "/admin/"


def admin_page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page in the frame: a template that extends `admin_page.html`, in the reader's language."""
    caller = caller_of(request)
    did = DONE.get(request.query_params.get("did", "")) if request.method == "GET" else None
    path = request.url.path
    here = next((page for page, _ in PAGES if path == page or path.startswith(f"{page}/")), path)
    frame = {"links": links_for(caller), "here": here, "caller": caller, "did": did}
    html = render(template, language=page_language(request.headers), **frame, **values)
    return HTMLResponse(html, status, headers=NO_STORE)


def done(path: str, did: str, **query: str) -> RedirectResponse:
    """Back to a page, which then says what was done: a key of DONE."""
    return RedirectResponse(f"{path}?{urlencode({**query, 'did': did})}", 303)
