"""Admins' pages of those who can sign in, and of the keys of programs. Plain forms; what is shown once is the answer to
the form and is kept nowhere.

Not covered: signing in (`login_routes`).
"""

from typing import Annotated, cast

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, Response

from app.access.identity import caller_of
from app.access.keys import PER_MINUTE, SCOPES, Keys
from app.access.passwords import new_account, reset_password
from app.domain.callers import Role
from app.domain.errors import DeskError
from app.storage.accounts import Accounts
from app.storage.audit import Audit
from app.web.admin_frame import admin_page, done
from app.web.error_words import admin_words

ACCOUNTS, KEYS = "/admin/accounts", "/admin/keys"
Text = Annotated[str, Form()]


def add_account_routes(app: FastAPI, accounts: Accounts, audit: Audit) -> None:
    """The page of accounts, and what its forms send. Nobody can lock himself out: the own account is for others."""

    def page(request: Request, error: DeskError | None = None, **shown: object) -> HTMLResponse:
        values = {"problem": admin_words(error) if error else "", "name": "", "password": "", **shown}
        return admin_page(request, "accounts.html", status=409 if error else 200, accounts=accounts.all(), **values)

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
            password = new_account(accounts, name, cast("Role", role))
        except DeskError as error:
            return page(request, error)
        audit.record(caller_of(request).name, "account-add", f"{name} ({role})")
        return page(request, name=name, password=password)

    @app.post(ACCOUNTS + "/password")
    def password(request: Request, name: Text) -> HTMLResponse:
        try:
            made = reset_password(accounts, name)
        except DeskError as error:
            return page(request, error)
        audit.record(caller_of(request).name, "account-password", name)
        return page(request, name=name, password=made)

    @app.post(ACCOUNTS + "/role")
    def role(request: Request, name: Text, role: Text) -> Response:
        try:
            for_others(request, name)
            accounts.set_role(name, cast("Role", role))
        except DeskError as error:
            return page(request, error)
        audit.record(caller_of(request).name, "account-role", f"{name} ({role})")
        return done(ACCOUNTS, "role")

    @app.post(ACCOUNTS + "/remove")
    def remove(request: Request, name: Text) -> Response:
        try:
            for_others(request, name)
            accounts.remove(name)
        except DeskError as error:
            return page(request, error)
        audit.record(caller_of(request).name, "account-remove", name)
        return done(ACCOUNTS, "account-removed")


def add_key_routes(app: FastAPI, keys: Keys, audit: Audit) -> None:
    """The page of API keys, and what its forms send."""

    def page(request: Request, error: DeskError | None = None, **shown: object) -> HTMLResponse:
        values = {"problem": admin_words(error) if error else "", "name": "", "key": "", **shown}
        values |= {"keys": keys.all(), "scopes": SCOPES, "per_minute": PER_MINUTE}
        return admin_page(request, "keys.html", status=409 if error else 200, **values)

    @app.get(KEYS)
    def shown(request: Request) -> HTMLResponse:
        return page(request)

    @app.post(KEYS)
    def create(
        request: Request,
        name: Text = "",
        scope: Annotated[list[str] | None, Form()] = None,
        per_minute: Annotated[int, Form()] = PER_MINUTE,
    ) -> HTMLResponse:
        try:
            key = keys.create(name, scope or (), per_minute)
        except DeskError as error:
            return page(request, error)
        audit.record(caller_of(request).name, "key-create", f"{name} ({', '.join(scope or ())})")
        return page(request, name=name, key=key)

    @app.post(KEYS + "/revoke")
    def revoke(request: Request, name: Text) -> Response:
        try:
            keys.revoke(name)
        except DeskError as error:
            return page(request, error)
        audit.record(caller_of(request).name, "key-revoke", name)
        return done(KEYS, "key-revoked")
