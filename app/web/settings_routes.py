"""The admins' page of settings (`setting_rows`), with a form for each that needs no hand on the machine. A change goes
to `warmdesk.toml` and counts from the next start on.
"""

import os
from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, Response

from app.access.identity import caller_of
from app.desk.interface import Desk
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage.audit import Audit
from app.storage.settings_file import SettingsFile
from app.web.admin_frame import admin_page, done
from app.web.error_words import admin_words
from app.web.setting_rows import ORIGINS, SettingRow, effect_of, setting_rows

PAGE = "/admin/settings"


def add_settings_routes(app: FastAPI, desk: Desk, settings: Settings, audit: Audit) -> None:
    """The page, and what its forms send."""
    file = SettingsFile(settings.settings_file)
    at_start = file.settings()

    def rows() -> list[SettingRow]:
        return setting_rows(settings, at_start, file, os.environ)

    def from_next_start(in_file: Settings) -> Settings:
        """With what wins over the file, if the desk is started as it was this time."""
        others = [row.key for row in rows() if row.origin in ("environment", "flag")]
        return in_file.model_copy(update={key: getattr(settings, key) for key in others})

    def page(request: Request, problem: str = "", **asked: object) -> HTMLResponse:
        values = {"asks": None, "refused": None, "origins": ORIGINS, "rows": rows(), **asked}
        return admin_page(request, "settings.html", status=409 if problem else 200, problem=problem, **values)

    @app.get(PAGE)
    def shown(request: Request) -> HTMLResponse:
        return page(request)

    @app.post(PAGE)
    def change(
        request: Request,
        key: Annotated[str, Form()],
        value: Annotated[str, Form()] = "",
        confirmed: Annotated[str, Form()] = "",
    ) -> Response:
        value = value.replace("\r\n", "\n").strip()
        try:
            row = next((row for row in rows() if row.key == key), None)
            if row is None or not row.is_open:
                raise DeskError(f"{key[:80]} is changed in the file or on the command line", code="setting-closed")
            new = from_next_start(file.check(key, value))
            effect = effect_of(key, new)
            if effect is not None and getattr(new, key) != getattr(settings, key) and not confirmed:
                cost = desk.reading_cost(new.neighbours)
                return page(request, asks={"key": key, "value": value, "effect": effect, "cost": cost})
            file.change(key, value)
        except DeskError as error:
            return page(request, admin_words(error), refused={"key": key, "value": value})
        audit.record(caller_of(request).name, "settings", key)
        return done(PAGE, "settings")
