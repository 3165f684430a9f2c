"""The admins' page of settings: each with its meaning, its value and where that comes from, and a form for those that
can be changed without a hand on the machine. A change goes to `warmdesk.toml` and counts from the next start on.

Never shown: secrets. Not changed here: where the desk listens and keeps its data, and its models, because a mistake
would keep it from starting.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args, get_origin

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, Response
from pydantic.fields import FieldInfo

from app.access.identity import caller_of
from app.desk.interface import Desk
from app.domain.errors import DeskError
from app.domain.formatting import size
from app.domain.settings import PREFIX, Settings
from app.domain.translation import translatable
from app.storage.audit import Audit
from app.storage.settings_file import SettingsFile
from app.web.admin_frame import admin_page, done
from app.web.error_words import admin_words

PAGE = "/admin/settings"
NOT_HERE = frozenset(
    {"data_dir", "database_url", "host", "port", "public_url", "trusted_proxies", "visitor_secret"}
    | {"model", "adapter", "device", "embedder", "reranker", "threads", "desk_logo"}
)
"""Changed in the file or on the command line only."""
INVALIDATES = frozenset({"system_text", "passage_tokens", "neighbours"})
"""Settings whose change makes the model read all passages again."""
SIZES = frozenset({"memory", "disk"})
LONG = frozenset({"system_text", "refusal_text"})
ORIGINS = {
    "default": translatable("default"),
    "file": translatable("settings file"),
    "environment": translatable("environment variable"),
    "flag": translatable("flag of the command"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting as the page shows it. value: in use now; written: in the file, and in use from the next start on, if
    that is another one. choices: what it can be, if that is a list. is_open: it can be changed here.
    """

    key: str
    meaning: str
    value: str
    written: str | None
    origin: str
    choices: tuple[str, ...]
    is_open: bool

    @property
    def is_long(self) -> bool:
        """Whether it needs several lines."""
        return self.key in LONG


def add_settings_routes(app: FastAPI, desk: Desk, settings: Settings, audit: Audit) -> None:
    """The page, and what its forms send."""
    file = SettingsFile(settings.settings_file)

    def page(request: Request, problem: str = "", **asked: object) -> HTMLResponse:
        values = {"problem": problem, "asks": None, "origins": ORIGINS, "rows": rows(settings, file, os.environ)}
        return admin_page(request, "settings.html", status=409 if problem else 200, **{**values, **asked})

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
            row = next((row for row in rows(settings, file, os.environ) if row.key == key), None)
            if row is None or not row.is_open:
                raise DeskError("this setting cannot be changed here", code="setting-closed")
            new = file.check(key, value)
            if key in INVALIDATES and getattr(new, key) != getattr(settings, key) and not confirmed:
                return page(request, asks={"key": key, "value": value, "cost": desk.reading_cost(new.neighbours)})
            file.change(key, value)
        except DeskError as error:
            return page(request, admin_words(error))
        audit.record(caller_of(request).name, "settings", key)
        return done(PAGE, "settings")


def rows(settings: Settings, file: SettingsFile, environ: Mapping[str, str]) -> list[SettingRow]:
    """Every setting that is no secret, in the order of the documentation. Raises DeskError."""
    in_file, written = file.values(), file.settings()
    found = []
    for key, field in Settings.model_fields.items():
        if not field.repr:  # secrets
            continue
        value, new = getattr(settings, key), getattr(written, key)
        if environ.get(f"{PREFIX}{key.upper()}", "").strip():
            origin = "environment"
        elif value == field.get_default(call_default_factory=True, validated_data={}) if key != "data_dir" else False:
            origin = "default"
        else:
            origin = "file"
        if origin != "environment" and value != new and key not in in_file:
            origin = "flag"
        found.append(
            SettingRow(
                key=key,
                meaning=" ".join((field.description or "").split()),
                value=words_of(key, value),
                written=words_of(key, new) if key in in_file and new != value else None,
                origin=origin,
                choices=choices_of(field),
                is_open=key not in NOT_HERE and origin in ("default", "file") and is_plain(value, field),
            )
        )
    return found


def words_of(key: str, value: object) -> str:
    """A value as a person writes it; empty if it is not set."""
    if value is None:
        return ""
    if key in SIZES and isinstance(value, int):
        return size(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "\n".join(map(str, value))
    if isinstance(value, Mapping):
        return "\n".join(f'"{name}" = "{address}"' for name, address in value.items())
    return str(value)


def is_plain(value: object, field: FieldInfo) -> bool:
    """Whether a value is one line or text, not a list or table."""
    return not isinstance(value, tuple | Mapping)


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """What a setting can be, if that is a short list."""
    annotation = field.annotation
    if annotation is bool:
        return ("true", "false")
    parts = get_args(annotation) if get_origin(annotation) not in (None, Literal) else (annotation,)
    literals = [part for part in parts if get_origin(part) is Literal]
    return tuple(str(one) for part in literals for one in get_args(part))
