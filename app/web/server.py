"""The web application: own routes first, then the chat at "/"."""

import inspect
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app.access.identity import Administration, Identity, Keys, caller_of
from app.access.limits import QuestionLimits
from app.api.routes import add_api_routes
from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.domain.words import translatable
from app.storage.conversation_care import Transcripts
from app.storage.database import Database
from app.storage.people import Accounts, Audit, Sessions
from app.support.handoff import AgentQueue
from app.web.accounts import add_account_routes, add_api_page, add_audit_page, add_login_routes
from app.web.admin_pages import add_lookup_routes, add_module_routes
from app.web.chat_routes import add_typing_routes, add_visitor_routes, add_widget_routes
from app.web.dashboard import add_dashboard_routes
from app.web.document_routes import add_document_routes, add_passage_routes, add_source_routes, add_sync_routes
from app.web.event_gate import EventGate, largest_event
from app.web.guard import Guard, Site, refused, unavailable
from app.web.middleware import ALIVE, READY, BodyLimit, ReadyAnswer
from app.web.quality_routes import add_quality_routes, add_queue_routes
from app.web.rendering import STATIC_FOLDER, static
from app.web.settings_routes import add_settings_routes

STATIC = ("desk.css", "admin.css", "admin.js", "documents.js", "queue.js", "api.js", "events.js", "quality.js")
"""Static files, each served under its name."""
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript"}  # the operating system's own table may differ
MAX_BODY, MAX_UPLOAD = 1 << 20, 21 << 20
UPLOADS = ("/admin/documents/upload", "/v1/documents")  # paths whose body may be as large as a document


def create_app(desk: Service, database: Database, settings: Settings) -> FastAPI:
    """Return the web application. database: holds accounts and sessions; the caller closes it. Raises DeskError."""
    if os.environ.get("GRADIO_VIBE_MODE"):
        raise DeskError(
            "GRADIO_VIBE_MODE lets visitors run code on this machine: unset it and start again", code="vibe-mode"
        )
    if settings.desk_logo is not None and not Path(settings.desk_logo).is_file():
        raise DeskError(f"desk_logo: there is no file {settings.desk_logo!r}", code="settings")
    sessions, keys, site = Sessions(database), Keys(database), Site(settings.host, settings.public_url)
    accounts, audit, transcripts = Accounts(database), Audit(database), Transcripts(database)

    def administration(request: Request) -> Administration:
        return Administration(accounts, keys, audit.record, caller_of(request).who)

    app = FastAPI(title="Warmdesk", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(DeskError, _without_database)
    app.add_exception_handler(RequestValidationError, not_understood)
    _add_api(app, desk, settings)
    add_api_routes(app, desk, keys, audit.record)
    add_document_routes(app, desk, audit.record)
    add_sync_routes(app, desk)
    add_passage_routes(app, desk)
    add_module_routes(app, desk, audit)
    add_account_routes(app, administration)
    add_api_page(app, administration, settings.public_url)
    add_settings_routes(app, desk, settings, audit)
    add_audit_page(app, audit)
    add_lookup_routes(app, desk, audit)
    add_dashboard_routes(app, desk, transcripts)
    add_quality_routes(app, desk, transcripts, audit.record)
    add_source_routes(app, desk)
    add_visitor_routes(app, desk, site)
    add_queue_routes(app, desk, transcripts, AgentQueue(database, settings), audit)
    add_login_routes(app, accounts, sessions, site, audit)
    limits = QuestionLimits(settings)
    chat_css = static("desk.css") + brand_css(settings)
    add_typing_routes(app, desk, limits)
    add_widget_routes(app, desk, limits, settings, css=chat_css)
    _mount_chat(app, desk, limits, settings, chat_css)
    app.add_middleware(BodyLimit, most=partial(largest_body, settings), refused=too_large)
    reads = settings.agents_read_all
    identity = Identity(sessions, settings.visitor_secret, keys.find_key, agents_read_all=reads)
    app.add_middleware(Guard, site=site, identity=identity, widget_origins=settings.widget_origins)
    if settings.trusted_proxies:  # outermost: everything inside sees the customer's address and scheme
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies))
    return app


def largest_body(settings: Settings, path: str) -> int:
    if path in UPLOADS:
        return MAX_UPLOAD
    return MAX_BODY if path.startswith(("/v1/", "/admin/")) else largest_event(settings.max_question_chars)


def too_large(request: Request) -> Response:
    return refused(request, 413, translatable("The request is too large."), "request_too_large")


async def not_understood(request: Request, error: Exception) -> Response:
    """Return the response to an invalid value, without the value."""
    words = translatable("This request cannot be understood: something in it is missing, wrong or too long.")
    return refused(request, 422, words, "invalid_value")


def _without_database(request: Request, error: Exception) -> Response:
    """Return the response of a page while the database is unreachable. Any other error is a programming error."""
    if not isinstance(error, DeskError) or not error.is_of_database:
        raise error
    return unavailable(request, error)


def _add_api(app: FastAPI, desk: Service, settings: Settings) -> None:
    @app.get("/favicon.ico")
    def icon() -> FileResponse:
        return FileResponse(STATIC_FOLDER / "favicon.svg", media_type="image/svg+xml")

    @app.get("/logo")
    def logo() -> FileResponse:
        return FileResponse(settings.desk_logo or STATIC_FOLDER / "favicon.svg")

    @app.get(ALIVE)
    async def healthz() -> JSONResponse:  # async: needs no thread, as all may be busy
        return JSONResponse({"status": "ok"})

    readiness = ReadyAnswer(desk.missing)

    @app.get(READY)
    async def readyz() -> Response:
        return await readiness.answer()

    def give_out(name: str) -> None:
        @app.get(f"/{name}")
        def file() -> FileResponse:
            return FileResponse(STATIC_FOLDER / name, media_type=_MEDIA_TYPES[Path(name).suffix])

    for name in STATIC:
        give_out(name)


def brand_css(settings: Settings) -> str:
    """Return the CSS of the setting `desk_colour`. In dark mode it is mixed with white, to be readable on black."""
    if settings.desk_colour is None:
        return ""
    bright = f"color-mix(in srgb, {settings.desk_colour} 60%, white)"
    tint = f"color-mix(in srgb, {settings.desk_colour} 14%, var(--wd-card))"
    return f"\n:root {{ --wd-accent: light-dark({settings.desk_colour}, {bright}); --wd-tint: {tint}; }}"


def _mount_chat(app: FastAPI, desk: Service, limits: QuestionLimits, settings: Settings, css: str) -> None:
    # Gradio reads these variables at import. It is imported here, because importing takes seconds.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "1"
    os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(10**9)  # else each event makes a table of all events
    os.environ["GRADIO_TEMP_DIR"] = str(settings.pages_folder)
    shutil.rmtree(settings.pages_folder, ignore_errors=True)
    with without_stubs():
        import gradio as gr

    from app.web.chat_page import build_chat

    with _not_served_yet():
        chat = build_chat(desk, limits, settings)
    gr.mount_gradio_app(
        app,
        chat,
        "/",
        theme=gr.themes.Base(font=("system-ui", "sans-serif"), font_mono=("ui-monospace", "monospace")),
        css=css,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        pwa=False,
        show_error=False,
        max_file_size="1kb",
        app_kwargs={"docs_url": None, "redoc_url": None, "openapi_url": None},
    )
    mounted: Any = app.routes[-1]
    chat.app = mounted.app
    mounted.app = EventGate(mounted.app, chat)
    chat.has_launched = True  # else Gradio opens any file that is named in an event (`_check_allowed`)


@contextmanager
def without_stubs() -> Iterator[None]:
    """Keep Gradio from rewriting its .pyi files at import, which takes two fifths of the import time. It writes no
    .pyi file for a class without a source file.
    """
    file_of = inspect.getfile

    def no_file(object: Any) -> str:
        if sys._getframe(1).f_globals.get("__name__") == "gradio.component_meta":
            raise OSError
        return file_of(object)

    inspect.getfile = no_file
    try:
        yield
    finally:
        inspect.getfile = file_of


@contextmanager
def _not_served_yet() -> Iterator[None]:
    """Keep Gradio from making applications while the page is built. It would make two or three, of a hundred routes
    each, which takes half of the page's start-up time. Mounting the page makes the one that is used.
    """
    from gradio.routes import App

    make = App.create_app
    App.create_app = staticmethod(lambda *_, **__: None)
    try:
        yield
    finally:
        App.create_app = staticmethod(make)
