"""Documents: the admins' pages and routes, synchronised folders, and downloads of an answer's source files for its
visitor. The guard lets only admins use the admin routes.

An uploaded file is stored in the data folder under its own name. A later file with the same name and collection
replaces it. Long work is reported as a stream of JSON objects, one per line: {stage, done, total} while it runs, then
{result} or {error}.
"""

import json
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

from fastapi import Body, FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from app.access.identity import caller_of
from app.desk.output import ingest_json
from app.desk.service import Changes, Service
from app.domain.callers import Id, Line, LongText, Record
from app.domain.documents import PAGE_REASONS, WHOLE_SITE, SiteOptions, StoredDocument
from app.domain.errors import DeskError
from app.domain.logs import in_request
from app.domain.progress import Progress
from app.domain.quality import FAQ
from app.domain.words import gettext, speaking
from app.storage.files import open_without_links
from app.web.admin_pages import admin_page
from app.web.rendering import page_language, problem_words, translations
from retrieval.documents import MAX_BYTES

log = logging.getLogger(__name__)

FAILED = "something went wrong on our side; the server's log has more"


class ClientLeft(Exception):
    """Ends the work for a client that has disconnected."""


class Events(StreamingResponse):
    """Lines of JSON. has_left: set when the client has received all of them, or has disconnected."""

    def __init__(self, lines: Iterator[str], has_left: threading.Event) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._has_left = has_left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # if the client disconnects, only a garbage collection closes the lines
            self._has_left.set()


MOST_WAITING = 1000  # maximum progress reports that a client has not read; more are dropped


def events(
    work: Callable[[Any], Any],
    words: Callable[[str, str], str] = lambda code, message: message,
    *,
    until_left: bool = False,
) -> StreamingResponse:
    """Run work in a separate thread and send its progress and result as lines of JSON. work: gets a `Progress`, which
    also takes other values by name. words: returns the text of an error for its code and Warmdesk's own line. The work
    continues if the client disconnects; until_left: its next report then ends it.
    """
    waiting: queue.Queue[dict[str, Any]] = queue.Queue()
    has_left = threading.Event()

    def report(stage: str, done: int, total: int, **more: Any) -> None:
        if until_left and has_left.is_set():
            raise ClientLeft
        if not has_left.is_set() and (more or waiting.qsize() < MOST_WAITING):
            waiting.put({"stage": stage, "done": done, "total": total, **more})

    def run() -> None:
        try:
            waiting.put({"result": work(report)})
        except ClientLeft:
            pass
        except DeskError as error:
            waiting.put({"error": {"code": error.code, "message": words(error.code, str(error))}})
        except OSError as error:
            message = f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
            waiting.put({"error": {"code": "system", "message": message}})
        except Exception:
            log.exception("a change of the documents failed")
            waiting.put({"error": {"code": "internal", "message": words("internal", FAILED)}})

    def lines() -> Iterator[str]:
        event: dict[str, Any] = {"stage": ""}
        while "stage" in event:
            event = waiting.get()
            yield json.dumps(event) + "\n"

    threading.Thread(target=in_request(run), name="documents", daemon=True).start()
    return Events(lines(), has_left)


_PIECE = 1 << 16


def add_source_routes(app: FastAPI, desk: Service) -> None:
    @app.get("/sources/{message_id}/{rank}")
    def source(request: Request, message_id: Id, rank: int) -> Response:
        file = desk.source_file(message_id, rank, caller_of(request).owner)
        if file is None:
            return PlainTextResponse("This page is no longer here.\n", 404)
        return saved_file(file)


def saved_file(file: Path) -> Response:
    """Send a document's file as a download, so that its HTML cannot run as one of our pages. 404 if the file is
    missing, or a link has replaced it.
    """
    opened = open_without_links(file)
    if opened is None:
        return PlainTextResponse("This file is no longer here.\n", 404)
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(file.name)}"}
    return StreamingResponse(_pieces(opened), media_type="application/octet-stream", headers=headers)


def _pieces(opened: BinaryIO) -> Iterator[bytes]:
    with opened:
        yield from iter(partial(opened.read, _PIECE), b"")


PASSAGES_SHOWN = 25  # passages on a page


def add_passage_routes(app: FastAPI, desk: Service) -> None:
    def stored(number: int) -> StoredDocument | None:
        return next((one for one in desk.documents() if one.id == number), None)

    @app.get("/admin/documents/{number}")
    def passages(request: Request, number: int, page: int = 1) -> HTMLResponse:
        document = stored(number)
        if document is None:
            return admin_page(request, "passages.html", status=404, document=None)
        last = max(1, -(-document.num_passages // PASSAGES_SHOWN))
        page = min(max(page, 1), last)
        shown: dict[str, Any] = {
            "document": document,
            "has_file": Path(document.path).is_file(),
            "passages": desk.passages(document.path, (page - 1) * PASSAGES_SHOWN, PASSAGES_SHOWN),
            **{"page": page, "last": last, "now": datetime.now(UTC)},
        }
        return admin_page(request, "passages.html", **shown)

    @app.get("/admin/documents/{number}/file")
    def file(number: int) -> Response:
        document = stored(number)
        if document is None:
            return PlainTextResponse("This file is no longer here.\n", 404)
        return saved_file(Path(document.path))


SHOWN = 100  # documents on a page of the list


def add_document_routes(app: FastAPI, desk: Service, record: Record) -> None:
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
        # This imports the libraries of all formats (30 MB), which only this page needs.
        from retrieval.loaders.load import FORMATS, SUPPORTED

        documents = desk.documents()
        listed = found(documents, collection, q)
        last = max(1, -(-len(listed) // SHOWN))
        page = min(max(page, 1), last)
        shown: dict[str, Any] = {
            **{"documents": documents, "collections": desk.collections(), "folders": desk.synced.all(), "faq": FAQ},
            **{"running": desk.synced.running(), "reason_words": PAGE_REASONS, "whole_site": WHOLE_SITE},
            **{"chosen": collection, "query": q, "page": page, "last": last, "number": len(listed)},
            **{"suffixes": SUPPORTED, "formats": FORMATS, "most_bytes": MAX_BYTES, "now": datetime.now(UTC)},
            **{"reading": desk.passages_read(), "documents_read": desk.documents_read()},
            "listed": listed[(page - 1) * SHOWN : page * SHOWN],
        }
        return admin_page(request, "documents.html", **shown)

    @app.post("/admin/documents/upload")
    async def upload(request: Request, name: Line, collection: Line = "") -> Response:
        data, changes = await request.body(), by(request)

        def work(progress: Progress) -> dict[str, object]:
            return ingest_json(changes.upload(name, data, progress, collection=collection))

        return events(work, words_for(request))


def found(documents: Sequence[StoredDocument], collection: str | None, query: str) -> list[StoredDocument]:
    words = query.casefold().split()
    return [
        one
        for one in documents
        if collection in (None, one.collection) and all(word in f"{one.title} {one.path}".casefold() for word in words)
    ]


def words_for(request: Request) -> Callable[[str, str], str]:
    spoken = translations(page_language(request.headers))

    def words(code: str, message: str) -> str:
        with speaking(spoken):
            return problem_words(code, message)

    return words


FOLDERS = "/admin/documents/folders"


class SyncForm(BaseModel):
    """A folder or website, and how it is read. include, exclude: one pattern on each line."""

    folder: Line
    every_minutes: int
    collection: Line = ""
    pages: int = WHOLE_SITE.pages
    include: LongText = ""
    exclude: LongText = ""

    def site(self) -> SiteOptions:
        return SiteOptions(pages=self.pages, include=tuple(self.include.split()), exclude=tuple(self.exclude.split()))


def add_sync_routes(app: FastAPI, desk: Service) -> None:
    def read(request: Request, folder: str, progress: Progress, *, accepts_losses: bool = False) -> dict[str, Any]:
        result = desk.synced.run(folder, progress, who=caller_of(request).who, accepts_losses=accepts_losses)
        return {**asdict(result), "problem": words_for(request)(result.code, result.problem)}

    @app.post(FOLDERS)
    def save(request: Request, source: Annotated[SyncForm, Body()]) -> Response:
        who = caller_of(request).who

        def work(progress: Progress) -> dict[str, Any]:
            saved = desk.synced.save(
                source.folder.strip(), source.collection, source.every_minutes, source.site(), who=who
            )
            return read(request, saved.folder, progress)

        return events(work, words_for(request))

    @app.post(FOLDERS + "/try")
    def try_out(request: Request, source: Annotated[SyncForm, Body()]) -> Response:
        spoken = translations(page_language(request.headers))

        def work(progress: Progress) -> list[dict[str, Any]]:
            reasons = desk.synced.try_out(source.folder.strip(), source.site(), progress)
            with speaking(spoken):
                return [{**asdict(one), "words": gettext(PAGE_REASONS[one.reason])} for one in reasons]

        return events(work, words_for(request), until_left=True)

    @app.post(FOLDERS + "/run")
    def run(
        request: Request, folder: Annotated[Line, Body()], accepts_losses: Annotated[bool, Body()] = False
    ) -> Response:
        return events(
            lambda progress: read(request, folder, progress, accepts_losses=accepts_losses), words_for(request)
        )

    def accept(path: str, end: Callable[..., None]) -> None:
        @app.post(FOLDERS + path)
        def ended(request: Request, folder: Annotated[Line, Body(embed=True)]) -> Response:
            def work(progress: Progress) -> dict[str, Any]:
                end(folder, who=caller_of(request).who)
                return {"folder": folder}

            return events(work, words_for(request))

    accept("/stop", desk.synced.stop)
    accept("/remove", desk.synced.remove)
