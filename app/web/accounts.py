"""Sign-in and sign-out of the admin area, and the admins' pages of accounts, API keys and the audit log. A new password
or key is shown once, in the response; only its hash is stored.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias, cast

from fastapi import FastAPI, Form, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from app.access.identity import PER_MINUTE, SCOPES, Administration, caller_of, verified
from app.access.limits import LoginRateLimiter, address_of
from app.domain.callers import ADMIN, COMMAND_LINE, SCHEDULE, Caller, Line, Role
from app.domain.errors import DeskError
from app.domain.words import translatable
from app.storage.people import LIFETIME_S, Accounts, Audit, Sessions
from app.storage.tables import LARGEST_NUMBER
from app.web.admin_pages import NO_STORE, admin_page, describe, done, home_of, operations
from app.web.guard import ADMIN as ADMIN_COOKIE
from app.web.guard import Site, come_again
from app.web.rendering import admin_words, page_language, render

_PAGE = re.compile(r"/admin(?:/[a-z0-9-]{1,40}){1,4}")  # pages to return to after a sign-in


def add_login_routes(app: FastAPI, accounts: Accounts, sessions: Sessions, site: Site, audit: Audit) -> None:
    limiter = LoginRateLimiter()

    def login_html(request: Request, problem: str = "", name: str = "", **values: object) -> str:
        language, back = page_language(request.headers), request.query_params.get("next", "")
        values["next"] = back if _PAGE.fullmatch(back) else ""
        values["is_first"] = is_first = [one.name for one in accounts.all()] == [ADMIN]
        name = name or (ADMIN if is_first else "")
        return render("login.html", language=language, problem=problem, name=name, **values)

    @app.get("/admin/login")
    def login_page(request: Request) -> HTMLResponse:
        return HTMLResponse(login_html(request), headers={"cache-control": "no-store"})

    @app.post("/admin/login")
    def login(
        request: Request, password: Annotated[Line, Form()] = "", name: Annotated[Line, Form()] = ADMIN
    ) -> Response:
        address = address_of(request)
        # Counted before the slow check: many concurrent tries must not all pass.
        if wait_s := limiter.attempt(address):
            page = login_html(request, "wait", name, minutes=(wait_s + 59) // 60)
            return HTMLResponse(page, status_code=429, headers={"retry-after": str(wait_s)})
        try:
            account = verified(accounts, name.strip(), password)
        except DeskError as error:
            if error.code != "sign-in-busy":
                raise
            return come_again(request)
        if account is None:
            # An unknown name may be a password in the wrong field, or a text invented for readers of the log.
            audit.record(name.strip() if accounts.named(name.strip()) else "", "sign-in-failed")
            return HTMLResponse(login_html(request, "wrong", name), status_code=401)
        limiter.succeeded(address)
        audit.record(account.name, "sign-in")
        home, back = home_of(Caller(name=account.name, role=account.role)), request.query_params.get("next", "")
        response = RedirectResponse(back if _PAGE.fullmatch(back) else home, status_code=303)
        ADMIN_COOKIE.give(response, sessions.start(account), LIFETIME_S, request, site)
        return response

    @app.post("/admin/logout")
    def logout(request: Request) -> Response:
        sessions.end(ADMIN_COOKIE.read(request, site))
        response = RedirectResponse("/admin/login", status_code=303)
        ADMIN_COOKIE.drop(response, request, site)
        return response


ACCOUNTS, API = "/admin/accounts", "/admin/api"
Text = Annotated[Line, Form()]
By: TypeAlias = Callable[[Request], Administration]  # records changes under the name of a request's sender
Change: TypeAlias = Callable[[Administration], object]  # returns a secret that is shown once, if it makes one


def _tried(change: Change, administration: Administration) -> tuple[object, str]:
    """Make a change. Return its result, and the reason if it was refused."""
    try:
        return change(administration), ""
    except DeskError as error:
        return None, admin_words(error)


def add_account_routes(app: FastAPI, by: By) -> None:
    """Add the accounts page and its forms. Admins cannot delete themselves or change their own role (no lock-out)."""

    def page(request: Request, change: Change = lambda _: None, name: str = "", did: str = "") -> Response:
        """Return the page after a change. did: key of the message on the reloaded page, if no secret is shown."""
        made, problem = _tried(change, by(request))
        if did and not problem:
            return done(ACCOUNTS, did)
        shown = {"problem": problem, "name": name, "password": made, "accounts": by(request).accounts.all()}
        return admin_page(request, "accounts.html", status=409 if problem else 200, **shown)

    def other(request: Request, name: str) -> str:
        if name == caller_of(request).name:
            raise DeskError("another admin can change your account", code="own-account")
        return name

    @app.get(ACCOUNTS)
    def shown(request: Request) -> Response:
        return page(request)

    @app.post(ACCOUNTS)
    def add(request: Request, name: Text = "", role: Text = "agent") -> Response:
        return page(request, lambda by: by.add_account(name.strip(), cast("Role", role)), name.strip())

    @app.post(ACCOUNTS + "/password")
    def password(request: Request, name: Text) -> Response:
        return page(request, lambda by: by.reset_password(name), name)

    @app.post(ACCOUNTS + "/role")
    def role(request: Request, name: Text, role: Text) -> Response:
        return page(request, lambda by: by.set_role(other(request, name), cast("Role", role)), did="role")

    @app.post(ACCOUNTS + "/remove")
    def remove(request: Request, name: Text) -> Response:
        return page(request, lambda by: by.remove_account(other(request, name)), did="account-removed")


def add_api_page(app: FastAPI, by: By, public_url: str | None) -> None:
    """Add the page of the API and its keys. public_url: the server's URL, if not the request's."""

    def page(request: Request, change: Change = lambda _: None, name: str = "", did: str = "") -> Response:
        made, problem = _tried(change, by(request))
        if did and not problem:
            return done(API, did)
        shown = {"problem": problem, "name": name, "key": made, "keys": by(request).keys.all()}
        shown |= {"scopes": SCOPES, "per_minute": PER_MINUTE, "operations": list(operations(describe(app)))}
        shown["base"] = (public_url or str(request.base_url)).rstrip("/")
        return admin_page(request, "api.html", status=409 if problem else 200, **shown)

    @app.get(API)
    def shown(request: Request) -> Response:
        return page(request)

    @app.post(API + "/keys")
    def create(
        request: Request,
        name: Text = "",
        scope: Annotated[list[Line] | None, Form()] = None,
        per_minute: Annotated[int, Form()] = PER_MINUTE,
    ) -> Response:
        return page(request, lambda by: by.create_key(name, scope or (), per_minute), name)

    @app.post(API + "/keys/revoke")
    def revoke(request: Request, name: Text) -> Response:
        return page(request, lambda by: by.revoke_key(name), did="key-revoked")

    @app.get("/admin/openapi.json")
    def document() -> Response:
        return JSONResponse(describe(app), headers=NO_STORE)


ACTIONS: Mapping[str, str] = {
    "sign-in": translatable("signed in"),
    "lookup-try": translatable("tried the look-up"),
    "sign-in-failed": translatable("could not sign in: wrong name or password"),
    "account-add": translatable("added the account"),
    "account-role": translatable("changed the role of"),
    "account-password": translatable("made a new password for"),
    "account-remove": translatable("deleted the account"),
    "key-create": translatable("made the key"),
    "key-revoke": translatable("revoked the key"),
    "document-add": translatable("added the document"),
    "document-ingest": translatable("added documents from"),
    "document-forget": translatable("deleted the document"),
    "collection-forget": translatable("deleted the collection"),
    "sync-save": translatable("set up the synchronised folder"),
    "sync-remove": translatable("stopped synchronising the folder"),
    "sync-stop": translatable("stopped a run of the synchronised folder"),
    "sync": translatable("synchronised the folder"),
    "visitor-erase": translatable("deleted all data of a customer"),
    "backup": translatable("made the backup"),
    "faq-add": translatable("added the FAQ number"),
    "faq-change": translatable("changed the FAQ number"),
    "faq-delete": translatable("deleted the FAQ number"),
    "settings": translatable("changed the settings"),
    "handoff-take": translatable("took over the conversation number"),
    "handoff-answer": translatable("answered in the conversation number"),
    "handoff-close": translatable("gave back the conversation number"),
    "module-warm": translatable("loaded the passage"),
    "module-evict": translatable("unloaded the passage"),
    "module-keep": translatable("pinned the passage"),
    "module-release": translatable("unpinned the passage"),
    "module-verify": translatable("verified the passage"),
}
"""Actions in words; an unknown action is shown as it is."""
WHO: Mapping[str, str] = {
    COMMAND_LINE: translatable("command line"),
    SCHEDULE: translatable("the schedule"),
    "": translatable("an unknown user"),
}
"""Authors that are not names. "": a failed sign-in under an unknown name."""
SHOWN = 100


def add_audit_page(app: FastAPI, audit: Audit) -> None:
    @app.get("/admin/audit")
    def page(request: Request, before: Annotated[int | None, Query(le=LARGEST_NUMBER)] = None) -> HTMLResponse:
        entries = audit.latest(SHOWN + 1, before)
        values: dict[str, Any] = {
            "entries": entries[:SHOWN],
            "has_more": len(entries) > SHOWN,
            "actions": ACTIONS,
            "who": WHO,
        }
        return admin_page(request, "audit.html", **values)
