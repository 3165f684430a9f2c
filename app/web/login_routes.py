"""Signing in and out of the admin area."""

from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.access.addresses import address_of
from app.access.login_rate import LoginRateLimiter
from app.access.passwords import verified
from app.domain.callers import Caller
from app.domain.errors import DeskError
from app.domain.lengths import Line
from app.storage.accounts import ADMIN, Accounts
from app.storage.audit import Audit
from app.storage.sessions import LIFETIME_S, Sessions
from app.web.admin_frame import home_of
from app.web.cookies import ADMIN as ADMIN_COOKIE
from app.web.guard import come_again
from app.web.languages import page_language
from app.web.rendering import render
from app.web.site import Site


def add_login_routes(app: FastAPI, accounts: Accounts, sessions: Sessions, site: Site, audit: Audit) -> None:
    """The form, and what it and the button "Sign out" send."""
    limiter = LoginRateLimiter()

    def login_html(request: Request, problem: str = "", name: str = ADMIN, **values: object) -> str:
        language = page_language(request.headers)
        return render("login.html", language=language, problem=problem, name=name, **values)

    @app.get("/admin/login")
    def login_page(request: Request) -> HTMLResponse:
        return HTMLResponse(login_html(request), headers={"cache-control": "no-store"})

    @app.post("/admin/login")
    def login(
        request: Request, password: Annotated[Line, Form()] = "", name: Annotated[Line, Form()] = ADMIN
    ) -> Response:
        address = address_of(request)
        # Counted before the slow check: many tries sent at once must not all pass.
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
            # A name that no account has may be a password in the wrong field, or made up to be read in the log.
            audit.record(name.strip() if accounts.named(name.strip()) else "", "sign-in-failed")
            return HTMLResponse(login_html(request, "wrong", name), status_code=401)
        limiter.succeeded(address)
        audit.record(account.name, "sign-in")
        response = RedirectResponse(home_of(Caller(name=account.name, role=account.role)), status_code=303)
        ADMIN_COOKIE.give(response, sessions.start(account), LIFETIME_S, request, site)
        return response

    @app.post("/admin/logout")
    def logout(request: Request) -> Response:
        sessions.end(ADMIN_COOKIE.read(request, site))
        response = RedirectResponse("/admin/login", status_code=303)
        ADMIN_COOKIE.drop(response, request, site)
        return response
