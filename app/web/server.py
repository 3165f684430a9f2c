"""The web application: own routes first, then the admin page behind its login, then the chat at "/"."""

import os
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response

from app.desk.interface import Desk
from app.domain.errors import DeskError
from app.storage.database import Database
from app.storage.sessions import LIFETIME_S, Sessions
from app.web.document_routes import add_document_routes
from app.web.guard import COOKIE, Guard
from app.web.login_rate import LoginRateLimiter
from app.web.passwords import password_hash, verify
from app.web.rendering import render

_STATIC = Path(__file__).parent / "static"
STATIC = {
    "/desk.css": ("style.css", "text/css"),
    "/admin.css": ("admin.css", "text/css"),
    "/documents.css": ("documents.css", "text/css"),
    "/documents.js": ("documents.js", "text/javascript"),
    "/favicon.ico": ("favicon.svg", "image/svg+xml"),
}
"""Own files, by path: name in the package and media type."""
API_PATHS = ("/healthz", *STATIC)
_FONTS = (
    *("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans"),
    *("PingFang SC", "Microsoft YaHei", "sans-serif"),
)
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")


def create_app(desk: Desk, folder: Path, database: Database, *, host: str = "127.0.0.1") -> FastAPI:
    """folder: where admin.json is; a password must have been set. database: keeps who is signed in; the caller closes
    it. host: the address the server will listen on. Raises DeskError.
    """
    if os.environ.get("GRADIO_VIBE_MODE"):
        raise DeskError(
            "GRADIO_VIBE_MODE lets visitors run code on this machine: unset it and start again", code="vibe-mode"
        )
    password_hash(folder)  # fails now rather than at the first login
    sessions = Sessions(database, lambda: password_hash(folder))
    app = FastAPI(title="Warmdesk", docs_url=None, redoc_url=None, openapi_url=None)
    _add_api(app)
    add_document_routes(app, desk)
    _add_login(app, folder, sessions)
    _mount_pages(app, desk, sessions)
    app.add_middleware(Guard, bound_to=host, is_admin=sessions.is_valid, api_paths=API_PATHS)
    return app


def _add_api(app: FastAPI) -> None:
    @app.get("/healthz")
    def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    def give_out(path: str, name: str, media_type: str) -> None:
        @app.get(path)
        def file() -> FileResponse:
            return FileResponse(_STATIC / name, media_type=media_type)

    for path, (name, media_type) in STATIC.items():
        give_out(path, name, media_type)


def _add_login(app: FastAPI, folder: Path, sessions: Sessions) -> None:
    limiter = LoginRateLimiter()

    def login_html(problem: str = "") -> str:
        return render("login.html", problem=problem)

    @app.get("/admin/login")
    def login_page() -> HTMLResponse:
        return HTMLResponse(login_html(), headers={"cache-control": "no-store"})

    @app.post("/admin/login")
    def login(request: Request, password: Annotated[str, Form()] = "") -> Response:
        address = request.client.host if request.client else ""
        # Counted before the slow check: many tries sent at once must not all pass.
        if wait_s := limiter.attempt(address):
            page = login_html(f"Too many failed attempts. Please try again in {(wait_s + 59) // 60} min.")
            return HTMLResponse(page, status_code=429, headers={"retry-after": str(wait_s)})
        if not verify(folder, password):
            return HTMLResponse(login_html("That password is not right."), status_code=401)
        limiter.succeeded(address)
        response = RedirectResponse("/admin/", status_code=303)
        response.set_cookie(
            COOKIE,
            sessions.start(),
            max_age=LIFETIME_S,
            path="/admin",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    @app.post("/admin/logout")
    def logout(request: Request) -> Response:
        sessions.end(request.cookies.get(COOKIE, ""))
        response = RedirectResponse("/admin/login", status_code=303)
        response.delete_cookie(COOKIE, path="/admin", httponly=True, samesite="strict")
        return response


def _mount_pages(app: FastAPI, desk: Desk, sessions: Sessions) -> None:
    # Gradio reads this when it is imported, and importing takes seconds: hence here and not above.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio as gr

    from app.web.admin_page import build_admin
    from app.web.chat_page import build_chat

    def admin_user(request: Request) -> str | None:
        return "admin" if sessions.is_valid(request.cookies.get(COOKIE, "")) else None

    theme = gr.themes.Base(font=_FONTS, font_mono=_MONO)
    css, admin_css = ((_STATIC / name).read_text(encoding="utf-8") for name in ("style.css", "admin.css"))

    def mount(blocks: gr.Blocks, path: str, css: str, auth: object = None) -> None:
        gr.mount_gradio_app(
            app,
            blocks,
            path,
            auth_dependency=auth,
            theme=theme,
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

    mount(build_admin(desk), "/admin", css + admin_css, admin_user)
    mount(build_chat(desk), "/", css)
