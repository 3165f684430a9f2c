"""The Settings page: every setting in groups, with meaning, value, source and, if an admin may change it, a field.

Each group has one Save. It writes the changed fields to `warmdesk.toml`, which takes effect after a restart. Secrets
are never shown, only whether they are set.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_origin

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from pydantic.fields import FieldInfo

from app.access.identity import caller_of
from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.setting_types import choices_of, text_of
from app.domain.settings import GROUPS, PREFIX, Settings
from app.domain.words import size, translatable
from app.storage.files import SettingsFile
from app.storage.people import Audit
from app.web.admin_pages import admin_page, done
from app.web.rendering import admin_words

PAGE = "/admin/settings"
SettingsForm = Literal["line", "text", "list", "table", "choice", "secret"]
"""Field of a setting. text: several lines. list: one entry per line. table: one `name = value` per line. secret: no
field, and never shown.
"""
HIDDEN = "database_url"
"""The setting that is not on the page. It contains a password and names the place of all data."""
EDITABLE = frozenset(
    {
        *("context_tokens", "first_token_seconds", "send_cache_salt", "send_prompt_cache_key"),
        *("weights", "threads", "engine_process", "device_memory", "host_memory", "kv_storage", "disk", "disk_floor"),
        *("cluster_engines", "cluster_engines_most", "cluster_engine_load", "log_format", "log_level"),
        *("questions_per_minute", "answers_at_once", "conversations_kept", "keep_days", "redact", "show_technical"),
        *("questions_at_once", "questions_waiting", "answer_seconds", "max_question_chars"),
        *("desk_name", "desk_colour", "greeting", "example_questions", "page_urls"),
        *("passages", "passage_tokens", "prefetch", "neighbours", "placement", "answer_tokens"),
        *("policy", "answer_mode", "temperature", "repetition_penalty", "refuse_below", "answer_above"),
        *("savings_sample", "faq_answers", "faq_threshold", "system_text", "refusal_text"),
        *("contact_email", "contact_phone", "contact_hours", "contact_url"),
        *("handoff", "office_hours", "agents_read_all", "show_agent_names", "website_pause"),
    }
)
"""Settings that the page can change. The operator changes others in the file or on the command line: they are secrets,
send data or keys elsewhere, choose what is loaded or trusted, or could lock admins out.
"""
COSTLY = frozenset({"system_text", "passage_tokens", "neighbours", "weights", "kv_storage"})
"""Settings whose change re-encodes passages. The page shows the cost before it saves them."""
_AT_INGESTION = frozenset({"passage_tokens", "neighbours"})
"""Settings that apply to passages at the next ingestion."""
ORDER = sorted(GROUPS, key=lambda group: group.is_rare)
SIZES = frozenset({"device_memory", "host_memory", "disk", "disk_floor"})
TEXTS = frozenset({"system_text", "refusal_text"})
ORIGINS = {
    "default": translatable("default"),
    "file": translatable("settings file"),
    "environment": translatable("environment variable"),
    "flag": translatable("command-line flag"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting on the page. value: in use now. written: a different value in the file, which applies after a restart.
    default: empty if unset. All three are empty for a secret. origin: key of ORIGINS. choices: values of a short list.
    is_open: the page can change it. is_set: it has a value.
    """

    key: str
    meaning: str
    value: str
    written: str | None
    default: str
    origin: str
    form: SettingsForm
    choices: tuple[str, ...]
    is_open: bool
    is_set: bool


def setting_rows(
    settings: Settings, at_start: Settings, file: SettingsFile, environ: Mapping[str, str]
) -> list[SettingRow]:
    """Return all settings except HIDDEN. at_start: content of the file when the server started. Raises DeskError."""
    written, found = file.settings(), []
    for key, field in Settings.model_fields.items():
        if key == HIDDEN:
            continue
        value, in_file, new = (getattr(one, key) for one in (settings, at_start, written))
        default, at_first, by_now = (default_of(field, one) for one in (settings, at_start, written))
        if environ.get(f"{PREFIX}{key.upper()}", "").strip():
            origin = "environment"
        elif value == default and in_file == at_first:
            origin = "default"
        else:
            origin = "file" if value == in_file else "flag"
        is_same = new == value or (value == default and new == by_now)
        is_open, is_secret = key in EDITABLE and origin in ("default", "file"), not field.repr
        choices = choices_of(field)
        row = SettingRow(
            key=key,
            meaning=" ".join((field.description or "").split()),
            value="" if is_secret else words_of(key, value),
            written=None if is_secret or is_same or not is_open else words_of(key, new),
            default="" if is_secret else words_of(key, default),
            origin=origin,
            form="choice" if choices else form_of(key, field),
            choices=choices,
            is_open=is_open,
            is_set=value not in (None, {}),  # {}: an empty table
        )
        found.append(row)
    return found


def default_of(field: FieldInfo, settings: Settings) -> object:
    return field.get_default(call_default_factory=True, validated_data={"device": settings.device})


def words_of(key: str, value: object) -> str:
    return size(value) if key in SIZES and isinstance(value, int) else text_of(value)


def form_of(key: str, field: FieldInfo) -> SettingsForm:
    if not field.repr:
        return "secret"
    kind = get_origin(field.annotation)
    if kind in (tuple, dict):
        return "list" if kind is tuple else "table"
    return "text" if key in TEXTS else "line"


async def fields_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, with plain line ends. Files are ignored."""
    form = await request.form()
    return {name: text.replace("\r\n", "\n").strip() for name, text in form.items() if isinstance(text, str)}


def add_settings_routes(app: FastAPI, desk: Service, settings: Settings, audit: Audit) -> None:
    file = SettingsFile(settings.settings_file)
    at_start = file.settings()

    def rows() -> list[SettingRow]:
        return setting_rows(settings, at_start, file, os.environ)

    def after_restart(in_file: Settings) -> Settings:
        others = [row.key for row in rows() if row.origin in ("environment", "flag")]
        return in_file.model_copy(update={key: getattr(settings, key) for key in others})

    def page(request: Request, problem: str = "", **asked: object) -> HTMLResponse:
        by_key = {row.key: row for row in rows()}
        groups = [(group, [by_key[key] for key in group.model_fields if key in by_key]) for group in ORDER]
        values = {"asks": None, "changed": {}, "refused": "", "origins": ORIGINS, "groups": groups, **asked}
        return admin_page(request, "settings.html", status=409 if problem else 200, problem=problem, **values)

    @app.get(PAGE)
    def shown(request: Request) -> HTMLResponse:
        return page(request)

    @app.post(PAGE)
    def change(request: Request, sent: Annotated[dict[str, str], Depends(fields_of)]) -> Response:
        """Save the fields that differ from `was-KEY`, the value that the page showed."""
        confirmed = sent.pop("confirmed", "")
        before = {name: sent.pop(name) for name in list(sent) if name.startswith("was-")}
        changed = {key: value for key, value in sent.items() if value != before.get(f"was-{key}")}
        can_change, refused = {row.key for row in rows() if row.is_open}, ""
        try:
            for key, value in changed.items():
                refused = key
                if key not in can_change:
                    raise DeskError(f"{key[:80]} is changed in the file or on the command line", code="setting-closed")
                file.check({key: value})
            new = after_restart(file.check(changed))
            costly = COSTLY if new.model_server is None else {"passage_tokens"}  # a remote model encodes no passages
            costly = {key for key in costly & changed.keys() if getattr(new, key) != getattr(settings, key)}
            if costly and not confirmed:
                cost = desk.reading_cost(new.neighbours) if new.model_server is None else None
                asks = {"keys": sorted(costly), "cost": cost, "at_ingestion": bool(costly & _AT_INGESTION)}
                return page(request, asks=asks, changed=changed)
            if changed:
                file.change(changed)
        except DeskError as error:
            return page(request, admin_words(error), changed=changed, refused=refused)
        for key in changed:
            audit.record(caller_of(request).name, "settings", key)
        return done(PAGE, "settings", f"name-{next(iter(changed))}" if changed else "")
