"""The admin's page of documents and what it can change; the guard shows it to admins only.

Uploaded files are kept in the data folder under their own name; a second one of the same name and collection replaces
it.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from app.access.identity import caller_of
from app.desk.changes import Changes
from app.desk.interface import Desk
from app.desk.json_output import ingest_json
from app.domain.callers import Record
from app.web.admin_frame import admin_page
from app.web.event_stream import events
from retrieval.loaders.load import FORMATS, SUPPORTED


def add_document_routes(app: FastAPI, desk: Desk, record: Record) -> None:
    """The page, and the routes its script calls. record: into the audit log."""

    def by(request: Request) -> Changes:
        return Changes(desk, record, caller_of(request).who)

    @app.post("/admin/documents/forget")
    def forget(request: Request, document: Annotated[str, Body(embed=True)]) -> Response:
        changes = by(request)
        return events(lambda progress: asdict(changes.forget(document)))

    @app.get("/admin/documents")
    def page(request: Request) -> HTMLResponse:
        shown: dict[str, Any] = {
            "documents": desk.documents(),
            "suffixes": SUPPORTED,
            "formats": FORMATS,
            "now": datetime.now(UTC),
        }
        return admin_page(request, "documents.html", reading=desk.passages_read(), **shown)

    @app.post("/admin/documents/upload")
    async def upload(request: Request, name: str, collection: str = "") -> Response:
        data = await request.body()
        changes = by(request)
        return events(lambda progress: ingest_json(changes.upload(name, data, progress, collection=collection)))
