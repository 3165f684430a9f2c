"""Routes that change documents: for commands beside a running desk, which need a secret, and for the admin's page of
documents, which the guard shows to admins only.

Long work is answered as a stream of events, one JSON object a line: {stage, done, total} while it runs, then {result}
or {error}. Uploaded files are kept in the data folder under their own name; a second one of the same name replaces it.
"""

import hmac
import json
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from pydantic import BaseModel

from app.desk.interface import Desk
from app.desk.json_output import ingest_json
from app.domain.errors import DeskError
from app.domain.progress import Progress
from app.web.rendering import render
from retrieval.loaders.load import FORMATS, SUPPORTED
from retrieval.text.printing import printable

log = logging.getLogger(__name__)

FAILED = "something went wrong on our side; the log of the desk says more"


class IngestOrder(BaseModel):
    """What to ingest, as `Desk.ingest` takes it."""

    paths: list[Path]
    collection: str = ""
    sync: bool = False
    warm: bool = True


class ForgetOrder(BaseModel):
    """What to forget."""

    document: str


def add_document_routes(app: FastAPI, desk: Desk, secret: str) -> None:
    """secret: opens the routes for commands; empty: they stay closed."""

    def only_allowed(authorization: Annotated[str, Header()] = "") -> None:
        if not secret or not hmac.compare_digest(authorization.encode(), f"Bearer {secret}".encode()):
            raise HTTPException(401, "not allowed")

    @app.get("/desk/check", dependencies=[Depends(only_allowed)])
    def check() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/desk/ingest", dependencies=[Depends(only_allowed)])
    def ingest(order: IngestOrder) -> Response:
        options = order.model_dump(exclude={"paths"})
        return events(lambda progress: ingest_json(desk.ingest(order.paths, progress, **options)))

    @app.post("/admin/documents/forget")
    @app.post("/desk/forget", dependencies=[Depends(only_allowed)])
    def forget(order: ForgetOrder) -> Response:
        return events(lambda progress: asdict(desk.forget(order.document)))

    @app.get("/admin/documents")
    def page() -> HTMLResponse:
        documents, now = desk.documents(), datetime.now(UTC)
        html = render("documents.html", documents=documents, suffixes=SUPPORTED, formats=FORMATS, now=now)
        return HTMLResponse(html, headers={"cache-control": "no-store"})

    @app.post("/admin/documents/upload")
    async def upload(request: Request, name: str, collection: str = "") -> Response:
        data = await request.body()
        return events(lambda progress: _take_upload(desk, name, data, collection, progress))


def _take_upload(desk: Desk, name: str, data: bytes, collection: str, progress: Progress) -> dict[str, Any]:
    file = desk.keep_upload(name, data)
    report = ingest_json(desk.ingest([file], progress, collection=collection))
    if report["failed"]:
        raise DeskError(f"{printable(file.name)}: {report['failed'][0]['reason']}", code="unreadable")
    return report


def events(work: Callable[[Progress], dict[str, Any]]) -> StreamingResponse:
    """Run work in a thread of its own; it goes on if nobody listens any more."""
    waiting: queue.Queue[dict[str, Any]] = queue.Queue()

    def run() -> None:
        try:
            result = work(lambda stage, done, total: waiting.put({"stage": stage, "done": done, "total": total}))
            waiting.put({"result": result})
        except DeskError as error:
            waiting.put({"error": {"code": error.code, "message": str(error)}})
        except OSError as error:
            message = f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
            waiting.put({"error": {"code": "system", "message": message}})
        except Exception:
            log.exception("a change of the documents failed")
            waiting.put({"error": {"code": "internal", "message": FAILED}})

    def lines() -> Iterator[str]:
        while True:
            event = waiting.get()
            yield json.dumps(event) + "\n"
            if "stage" not in event:
                return

    threading.Thread(target=run, name="documents", daemon=True).start()
    return StreamingResponse(lines(), media_type="application/x-ndjson")
