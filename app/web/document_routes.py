"""The admin's page of documents and what it can change; the guard shows it to admins only.

Uploaded files are kept in the data folder under their own name; a second one of the same name and collection replaces
it. Not covered: synchronised folders (`sync_routes`), one document's passages (`passage_routes`).
"""

from collections.abc import Callable, Sequence
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
from app.domain.documents import StoredDocument
from app.domain.lengths import Line
from app.domain.progress import Progress
from app.domain.quality import FAQ
from app.domain.translation import speaking
from app.web.admin_frame import admin_page
from app.web.error_words import problem_words
from app.web.event_stream import events
from app.web.languages import page_language, translations
from retrieval.loaders.load import FORMATS, MAX_BYTES, SUPPORTED

SHOWN = 100
"""Documents on a page of the list."""


def add_document_routes(app: FastAPI, desk: Desk, record: Record) -> None:
    """The page, and the routes its script calls. record: into the audit log."""

    def by(request: Request) -> Changes:
        return Changes(desk, record, caller_of(request).who)

    @app.post("/admin/documents/forget")
    def forget(request: Request, document: Annotated[Line, Body(embed=True)]) -> Response:
        changes = by(request)
        return events(lambda progress: asdict(changes.forget(document)), words_for(request))

    @app.post("/admin/documents/collections/forget")
    def forget_collection(request: Request, collection: Annotated[Line, Body(embed=True)]) -> Response:
        changes = by(request)
        return events(lambda progress: asdict(changes.forget_collection(collection)), words_for(request))

    @app.get("/admin/documents")
    def page(request: Request, collection: Line | None = None, q: Line = "", page: int = 1) -> HTMLResponse:
        documents = desk.documents()
        listed = found(documents, collection, q)
        last = max(1, -(-len(listed) // SHOWN))
        page = min(max(page, 1), last)
        shown: dict[str, Any] = {
            "documents": documents,
            "collections": desk.collections(),
            "faq": FAQ,
            "folders": desk.synced.all(),
            **{"chosen": collection, "query": q, "page": page, "last": last, "number": len(listed)},
            "listed": listed[(page - 1) * SHOWN : page * SHOWN],
            **{"suffixes": SUPPORTED, "formats": FORMATS, "most_bytes": MAX_BYTES},
            "now": datetime.now(UTC),
        }
        return admin_page(request, "documents.html", reading=desk.passages_read(), **shown)

    @app.post("/admin/documents/upload")
    async def upload(request: Request, name: Line, collection: Line = "") -> Response:
        data = await request.body()
        changes = by(request)

        def work(progress: Progress) -> dict[str, object]:
            return ingest_json(changes.upload(name, data, progress, collection=collection))

        return events(work, words_for(request))


def found(documents: Sequence[StoredDocument], collection: str | None, query: str) -> list[StoredDocument]:
    """The documents of a collection, or of all (None), whose title or path has each word of a query."""
    words = query.casefold().split()
    return [
        one
        for one in documents
        if collection in (None, one.collection) and all(word in f"{one.title} {one.path}".casefold() for word in words)
    ]


def words_for(request: Request) -> Callable[[str, str], str]:
    """Says an error in the language of whoever sent a request."""
    spoken = translations(page_language(request.headers))

    def words(code: str, message: str) -> str:
        with speaking(spoken):
            return problem_words(code, message)

    return words
