"""The admin's page of documents and what it can change; the guard shows it to admins only.

Uploaded files are kept in the data folder under their own name; a second one of the same name and collection replaces
it.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Body, FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from app.desk.interface import Desk
from app.desk.json_output import ingest_json
from app.web.event_stream import events
from app.web.languages import page_language
from app.web.rendering import render
from retrieval.loaders.load import FORMATS, SUPPORTED


def add_document_routes(app: FastAPI, desk: Desk) -> None:
    """The page, and the routes its script calls."""

    @app.post("/admin/documents/forget")
    def forget(document: Annotated[str, Body(embed=True)]) -> Response:
        return events(lambda progress: asdict(desk.forget(document)))

    @app.get("/admin/documents")
    def page(request: Request) -> HTMLResponse:
        language = page_language(request.headers)
        shown = {"documents": desk.documents(), "suffixes": SUPPORTED, "formats": FORMATS, "now": datetime.now(UTC)}
        html = render("documents.html", language=language, reading=desk.passages_read(), **shown)
        return HTMLResponse(html, headers={"cache-control": "no-store"})

    @app.post("/admin/documents/upload")
    async def upload(request: Request, name: str, collection: str = "") -> Response:
        data = await request.body()
        return events(lambda progress: ingest_json(desk.upload(name, data, progress, collection=collection)))
