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
from app.desk.interface import Desk
from app.desk.json_output import ingest_json
from app.domain.progress import Progress
from app.storage.audit import Audit
from app.web.admin_frame import admin_page
from app.web.event_stream import events
from retrieval.loaders.load import FORMATS, SUPPORTED


def add_document_routes(app: FastAPI, desk: Desk, audit: Audit) -> None:
    """The page, and the routes its script calls."""

    @app.post("/admin/documents/forget")
    def forget(request: Request, document: Annotated[str, Body(embed=True)]) -> Response:
        def work(progress: Progress) -> dict[str, object]:
            forgotten = asdict(desk.forget(document))
            audit.record(caller_of(request).name, "document-forget", document)
            return forgotten

        return events(work)

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

        def work(progress: Progress) -> dict[str, object]:
            report = ingest_json(desk.upload(name, data, progress, collection=collection))
            audit.record(caller_of(request).name, "document-add", f"{collection}/{name}" if collection else name)
            return report

        return events(work)
