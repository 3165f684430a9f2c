"""The admin's page of one document: its passages as search and model have them, and its file."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from app.desk.interface import Desk
from app.domain.documents import StoredDocument
from app.web.admin_frame import admin_page
from app.web.source_routes import saved_file

SHOWN = 25
"""Passages on a page."""


def add_passage_routes(app: FastAPI, desk: Desk) -> None:
    """The page, and the file that it links to. A document is known by its number."""

    def stored(number: int) -> StoredDocument | None:
        return next((one for one in desk.documents() if one.id == number), None)

    @app.get("/admin/documents/{number}")
    def passages(request: Request, number: int, page: int = 1) -> HTMLResponse:
        document = stored(number)
        if document is None:
            return admin_page(request, "passages.html", status=404, document=None)
        last = max(1, -(-document.num_passages // SHOWN))
        page = min(max(page, 1), last)
        shown: dict[str, Any] = {
            "document": document,
            "has_file": Path(document.path).is_file(),
            "passages": desk.passages(document.path, (page - 1) * SHOWN, SHOWN),
            **{"page": page, "last": last, "now": datetime.now(UTC)},
        }
        return admin_page(request, "passages.html", **shown)

    @app.get("/admin/documents/{number}/file")
    def file(number: int) -> Response:
        document = stored(number)
        if document is None:
            return PlainTextResponse("This file is no longer here.\n", 404)
        return saved_file(Path(document.path))
