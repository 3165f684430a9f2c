"""/v1/documents: list, add and remove what the desk answers from."""

from typing import Annotated

from fastapi import APIRouter, Form, Request, UploadFile
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from app.access.identity import caller_of
from app.access.keys import Keys
from app.api.callers import count
from app.api.errors import ApiRoute
from app.api.replies import document_reply, file_name, listed, not_found
from app.desk.changes import Changes
from app.desk.interface import Desk
from app.domain.callers import Record
from app.domain.documents import StoredDocument
from app.domain.lengths import Id, Line


def documents_router(desk: Desk, keys: Keys, record: Record) -> APIRouter:
    """The routes. record: into the audit log."""
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["documents"])

    def stored(document_id: str) -> StoredDocument:
        for document in desk.documents():
            if str(document.id) == document_id:
                return document
        raise not_found("document")

    @router.get("/documents")
    def list_documents(collection: Line | None = None) -> JSONResponse:
        """All documents, or those of a collection."""
        rows = [one for one in desk.documents() if collection in (None, one.collection)]
        return JSONResponse(listed([document_reply(one) for one in rows]))

    @router.get("/documents/{document_id}")
    def get_document(document_id: Id) -> JSONResponse:
        """One document."""
        return JSONResponse(document_reply(stored(document_id)))

    @router.post("/documents", status_code=201)
    async def add_document(
        request: Request, file: UploadFile, collection: Annotated[str, Form(max_length=80)] = ""
    ) -> JSONResponse:
        """Takes a file in, in place of one of the same name and collection; answers when questions find it."""
        caller = caller_of(request)
        count(caller, keys)
        data = await file.read()
        return JSONResponse(await run_in_threadpool(take_in, caller.who, file.filename or "", data, collection), 201)

    def take_in(who: str, name: str, data: bytes, collection: str) -> dict[str, object]:
        Changes(desk, record, who).upload(name, data, collection=collection)
        kept = [
            one for one in desk.documents() if one.collection == collection and file_name(one.path) == file_name(name)
        ]
        return document_reply(max(kept, key=lambda one: one.loaded_at)) if kept else {}

    @router.delete("/documents/{document_id}")
    def delete_document(request: Request, document_id: Id) -> JSONResponse:
        """Removes it and everything that was made of it."""
        Changes(desk, record, caller_of(request).who).forget(stored(document_id).path)
        return JSONResponse({"id": document_id, "object": "document.deleted", "deleted": True})

    return router
