"""Admins' pages of those who can sign in, and of the keys of programs. Plain forms; what is shown once is the answer to
the form and is kept nowhere.

Not covered: signing in (`login_routes`).
"""

from collections.abc import Callable
from typing import Annotated, TypeAlias, cast

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, Response

from app.access.administration import Administration
from app.access.identity import caller_of
from app.access.keys import PER_MINUTE, SCOPES
from app.domain.callers import Role
from app.domain.errors import DeskError
from app.domain.lengths import Line
from app.web.admin_frame import admin_page, done
from app.web.error_words import admin_words

ACCOUNTS, KEYS = "/admin/accounts", "/admin/keys"
Text = Annotated[Line, Form()]
By: TypeAlias = Callable[[Request], Administration]
"""Changes in the name of who sends a request."""


def add_account_routes(app: FastAPI, by: By) -> None:
    """The page of accounts, and what its forms send. Nobody can lock himself out: the own account is for others."""

    def page(request: Request, error: DeskError | None = None, **shown: object) -> HTMLResponse:
        values = {"problem": admin_words(error) if error else "", "name": "", "password": "", **shown}
        values["accounts"] = by(request).accounts.all()
        return admin_page(request, "accounts.html", status=409 if error else 200, **values)

    def for_others(request: Request, name: str) -> None:
        if name == caller_of(request).name:
            raise DeskError("another admin can change your account", code="own-account")

    @app.get(ACCOUNTS)
    def shown(request: Request) -> HTMLResponse:
        return page(request)

    @app.post(ACCOUNTS)
    def add(request: Request, name: Text = "", role: Text = "agent") -> HTMLResponse:
        name = name.strip()
        try:
            password = by(request).add_account(name, cast("Role", role))
        except DeskError as error:
            return page(request, error)
        return page(request, name=name, password=password)

    @app.post(ACCOUNTS + "/password")
    def password(request: Request, name: Text) -> HTMLResponse:
        try:
            made = by(request).reset_password(name)
        except DeskError as error:
            return page(request, error)
        return page(request, name=name, password=made)

    @app.post(ACCOUNTS + "/role")
    def role(request: Request, name: Text, role: Text) -> Response:
        try:
            for_others(request, name)
            by(request).set_role(name, cast("Role", role))
        except DeskError as error:
            return page(request, error)
        return done(ACCOUNTS, "role")

    @app.post(ACCOUNTS + "/remove")
    def remove(request: Request, name: Text) -> Response:
        try:
            for_others(request, name)
            by(request).remove_account(name)
        except DeskError as error:
            return page(request, error)
        return done(ACCOUNTS, "account-removed")


def add_key_routes(app: FastAPI, by: By) -> None:
    """The page of API keys, and what its forms send."""

    def page(request: Request, error: DeskError | None = None, **shown: object) -> HTMLResponse:
        values = {"problem": admin_words(error) if error else "", "name": "", "key": "", **shown}
        values |= {"keys": by(request).keys.all(), "scopes": SCOPES, "per_minute": PER_MINUTE}
        return admin_page(request, "keys.html", status=409 if error else 200, **values)

    @app.get(KEYS)
    def shown(request: Request) -> HTMLResponse:
        return page(request)

    @app.post(KEYS)
    def create(
        request: Request,
        name: Text = "",
        scope: Annotated[list[Line] | None, Form()] = None,
        per_minute: Annotated[int, Form()] = PER_MINUTE,
    ) -> HTMLResponse:
        try:
            key = by(request).create_key(name, scope or (), per_minute)
        except DeskError as error:
            return page(request, error)
        return page(request, name=name, key=key)

    @app.post(KEYS + "/revoke")
    def revoke(request: Request, name: Text) -> Response:
        try:
            by(request).revoke_key(name)
        except DeskError as error:
            return page(request, error)
        return done(KEYS, "key-revoked")
