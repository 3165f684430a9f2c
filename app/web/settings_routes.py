"""What the page of settings shows of each: its meaning, its value, where that comes from, how it is written, and what a
change costs. Of secrets it shows whether they are set.

The admins' page of settings (`setting_rows`), with a form for each that needs no hand on the machine. A change goes
to `warmdesk.toml` and counts from the next start on.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args, get_origin

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, Response
from pydantic.fields import FieldInfo

from app.access.identity import caller_of
from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.setting_values import text_of
from app.domain.settings import PREFIX, Settings, names_of
from app.domain.words import size, translatable
from app.storage.files import SettingsFile
from app.storage.people import Audit
from app.web.admin_pages import admin_page, done
from app.web.rendering import admin_words

SettingsForm = Literal["line", "text", "list", "table", "choice", "secret"]
"""How a setting is written. text: several lines. list: one entry a line. table: one `name = value` a line. secret: not
here, and never shown.
"""
Reader = Literal["model", "nobody"]
"""Who has to read all passages again."""

HIDDEN = "database_url"
"""Not on the page at all: it holds a password, and names where everything is kept."""
EDITABLE = frozenset(
    {
        *("context_tokens", "first_token_seconds", "send_cache_salt", "send_prompt_cache_key"),
        *("weights", "threads", "engine_process", "device_memory", "host_memory", "kv_storage", "disk", "disk_floor"),
        *("cluster_engines", "cluster_engines_most", "cluster_engine_load", "log_format", "log_level"),
        *("questions_per_minute", "answers_at_once", "conversations_kept", "keep_days", "redact", "show_technical"),
        *("questions_at_once", "questions_waiting", "answer_seconds", "max_question_chars"),
        *("desk_name", "desk_colour", "greeting", "example_questions", "page_urls"),
        *("passages", "passage_tokens", "prefetch", "neighbours", "placement", "slot_tokens", "answer_tokens"),
        *("policy", "answer_mode", "temperature", "repetition_penalty", "refuse_below", "answer_above"),
        *("savings_sample", "faq_answers", "faq_threshold", "system_text", "refusal_text"),
        *("contact_email", "contact_phone", "contact_hours", "contact_url"),
        *("handoff", "handoff_pause", "office_hours", "show_agent_names"),
    }
)
"""Changed on the page. All others are changed in the file or on the command line only, by whoever has the machine: they
hold secrets, send data or keys elsewhere, name what is loaded or who is trusted, or would keep admins out.
"""
SIZES = frozenset({"device_memory", "host_memory", "disk", "disk_floor"})
TEXTS = frozenset({"system_text", "refusal_text"})
ORIGINS = {
    "default": translatable("default"),
    "file": translatable("settings file"),
    "environment": translatable("environment variable"),
    "flag": translatable("flag of the command"),
}


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change of a setting costs. words: what else there is to know before it is saved."""

    reader: Reader
    words: str = ""


_NEXT_INGEST = translatable("This begins when the documents are taken in again.")
EFFECTS = {
    "system_text": Effect("model"),
    "passage_tokens": Effect("model", _NEXT_INGEST),
    "neighbours": Effect("model", _NEXT_INGEST),
    "weights": Effect("model"),
    "kv_storage": Effect("model"),
}
"""Settings that are not saved before somebody has read what that costs."""
_EFFECTS_ELSEWHERE = {"passage_tokens": Effect("nobody", _NEXT_INGEST)}
"""Of these for what a model has to read, where the model runs elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting as the page shows it. value: in use now; written: in the file, and in use from the next start on, if
    that is another one; both are empty for a secret. choices: what it can be, if its form is that. is_open: it can be
    changed here. is_set: it has a value.
    """

    key: str
    meaning: str
    value: str
    written: str | None
    origin: str
    form: SettingsForm
    choices: tuple[str, ...]
    is_open: bool
    is_set: bool


def setting_rows(
    settings: Settings, at_start: Settings, file: SettingsFile, environ: Mapping[str, str]
) -> list[SettingRow]:
    """Every setting but one, in the order of the documentation. at_start: what the file gave when the desk
    was started. Raises DeskError.
    """
    written, found = file.settings(), []
    for key, field in Settings.model_fields.items():
        if key == HIDDEN:
            continue
        value, new = getattr(settings, key), getattr(written, key)
        in_file, is_default = getattr(at_start, key), value == default_of(field, settings)
        origin = origin_of(key, value, in_file, is_default and in_file == default_of(field, at_start), environ)
        is_same = new == value or (is_default and new == default_of(field, written))
        is_open = key in EDITABLE and origin in ("default", "file")
        choices = choices_of(field)
        found.append(
            SettingRow(
                key=key,
                meaning=" ".join((field.description or "").split()),
                value=words_of(key, value) if field.repr else "",
                written=words_of(key, new) if is_open and not is_same and field.repr else None,
                origin=origin,
                form="choice" if choices else form_of(key, field),
                choices=choices,
                is_open=is_open,
                is_set=value is not None,
            )
        )
    return found


def effect_of(key: str, new: Settings) -> Effect | None:
    """What a change of a setting costs; None if it is saved without a question. new: the settings with it."""
    effect = EFFECTS.get(key)
    if effect is not None and effect.reader == "model" and new.model_server is not None:
        return _EFFECTS_ELSEWHERE.get(key)
    return effect


def default_of(field: FieldInfo, settings: Settings) -> object:
    """The default of a setting, which may depend on the device."""
    return field.get_default(call_default_factory=True, validated_data={"device": settings.device})


def origin_of(key: str, value: object, in_file: object, is_default: bool, environ: Mapping[str, str]) -> str:
    """Where a value comes from: a key of ORIGINS. in_file: what the file gave when the desk was started. is_default:
    whether both are the default.
    """
    if any(environ.get(f"{PREFIX}{name.upper()}", "").strip() for name in names_of(key)):
        return "environment"
    if is_default:
        return "default"
    return "file" if value == in_file else "flag"


def words_of(key: str, value: object) -> str:
    """A value as a person writes it; empty if it is not set."""
    return size(value) if key in SIZES and isinstance(value, int) else text_of(value)


def form_of(key: str, field: FieldInfo) -> SettingsForm:
    """How a setting without choices is written."""
    if not field.repr:
        return "secret"
    kind = get_origin(field.annotation)
    if kind in (tuple, dict):
        return "list" if kind is tuple else "table"
    return "text" if key in TEXTS else "line"


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """What a setting can be, if that is a short list."""
    annotation = field.annotation
    if annotation is bool:
        return ("true", "false")
    parts = get_args(annotation) if get_origin(annotation) not in (None, Literal) else (annotation,)
    if any(get_origin(part) is not Literal for part in parts):
        return ()
    return tuple(str(one) for part in parts for one in get_args(part))


PAGE = "/admin/settings"


def add_settings_routes(app: FastAPI, desk: Service, settings: Settings, audit: Audit) -> None:
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
