"""The routes for programs, except chat and metrics: conversations and feedback, documents, hand-offs, models and
embeddings. Permissions are in `app.web.access_rules`.
"""

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Form, Query, Request, UploadFile
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from app.access.identity import Keys, caller_of
from app.api.chat import chat_router, count, owner_of
from app.api.metrics import metrics_router
from app.api.wire import (
    ApiError,
    ApiRoute,
    EmbeddingRequest,
    FeedbackRequest,
    HandoffMessage,
    HandoffRequest,
    document_reply,
    embeddings_reply,
    file_name,
    listed,
    models_reply,
    not_found,
    summary_reply,
    turn_reply,
)
from app.desk.output import export_conversation
from app.desk.service import Changes, Service
from app.domain.answers import Handoff
from app.domain.callers import Id, Line, Record
from app.domain.documents import StoredDocument

User = Annotated[str | None, Query(max_length=512, description="One of your users: `user` of the request body.")]


def conversations_router(desk: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["conversations"])

    @router.get("/conversations")
    def list_conversations(
        request: Request, user: User = None, limit: Annotated[int, Query(ge=1, le=1000)] = 50
    ) -> JSONResponse:
        """Lists the latest conversations, most recently used first."""
        return JSONResponse(
            listed([summary_reply(one) for one in desk.conversations(owner_of(caller_of(request), user), limit)])
        )

    @router.get("/conversations/{conversation_id}")
    def get_conversation(request: Request, conversation_id: Id, user: User = None) -> JSONResponse:
        """Lists all messages of a conversation, oldest first."""
        caller = caller_of(request)
        turns = desk.turns(conversation_id, owner_of(caller, user))
        if not turns:
            raise not_found("conversation")
        messages = [turn_reply(turn, caller) for turn in turns]
        return JSONResponse({"id": conversation_id, "object": "conversation", "messages": messages})

    @router.get("/conversations/{conversation_id}/export")
    def get_conversation_file(
        request: Request, conversation_id: Id, user: User = None, format: Literal["json", "csv", "md"] = "json"
    ) -> Response:
        """Returns the conversation as a file."""
        file = export_conversation(desk, conversation_id, owner_of(caller_of(request), user), format)
        if file is None:
            raise not_found("conversation")
        name = f'attachment; filename="{file.name}"'
        return Response(file.data, media_type=file.media_type, headers={"content-disposition": name})

    @router.delete("/conversations/{conversation_id}")
    def delete_conversation(request: Request, conversation_id: Id, user: User = None) -> JSONResponse:
        """Deletes the conversation with all its messages."""
        owner = owner_of(caller_of(request), user)
        if not desk.turns(conversation_id, owner):
            raise not_found("conversation")
        desk.delete_conversation(conversation_id, owner)
        return JSONResponse({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    @router.post("/feedback")
    def give_feedback(request: Request, body: FeedbackRequest) -> JSONResponse:
        """Stores the rating of an answer; null removes it."""
        desk.feedback(body.message_id, body.value, body.reason, owner=owner_of(caller_of(request), body.user))
        return JSONResponse({"message_id": body.message_id, "value": body.value})

    return router


def documents_router(desk: Service, keys: Keys, record: Record) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["documents"])

    def stored(document_id: str) -> StoredDocument:
        for document in desk.documents():
            if str(document.id) == document_id:
                return document
        raise not_found("document")

    @router.get("/documents")
    def list_documents(collection: Line | None = None) -> JSONResponse:
        """Lists all documents, or the documents of a collection."""
        rows = [one for one in desk.documents() if collection in (None, one.collection)]
        return JSONResponse(listed([document_reply(one) for one in rows]))

    @router.get("/documents/{document_id}")
    def get_document(document_id: Id) -> JSONResponse:
        """Returns one document."""
        return JSONResponse(document_reply(stored(document_id)))

    @router.post("/documents", status_code=201)
    async def add_document(
        request: Request, file: UploadFile, collection: Annotated[str, Form(max_length=80)] = ""
    ) -> JSONResponse:
        """Adds a file, which replaces one of the same name and collection. The response is sent when the document is
        searchable.
        """
        caller = caller_of(request)
        count(caller, keys)
        data = await file.read()
        return JSONResponse(await run_in_threadpool(take_in, caller.who, file.filename or "", data, collection), 201)

    def take_in(who: str, name: str, data: bytes, collection: str) -> dict[str, object]:
        Changes(desk, record, who).upload(name, data, collection=collection)
        there = (one for one in desk.documents() if one.collection == collection)
        kept = [one for one in there if file_name(one.path) == file_name(name)]
        return document_reply(max(kept, key=lambda one: one.loaded_at)) if kept else {}

    @router.delete("/documents/{document_id}")
    def delete_document(request: Request, document_id: Id) -> JSONResponse:
        """Deletes the document with everything derived from it."""
        Changes(desk, record, caller_of(request).who).forget(stored(document_id).path)
        return JSONResponse({"id": document_id, "object": "document.deleted", "deleted": True})

    return router


def handoffs_router(desk: Service, keys: Keys) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["handoffs"])

    def its(conversation_id: str, owner: str) -> Handoff:
        found = desk.handoff(conversation_id, owner)
        if found is None:
            raise not_found("handoff")
        return found

    @router.post("/handoffs")
    def request_handoff(request: Request, body: HandoffRequest) -> JSONResponse:
        """Requests an agent, in one of the caller's conversations or in a new one that begins with the message. Outside
        of office hours an e-mail address is needed, and the assistant continues to answer.
        """
        caller = caller_of(request)
        count(caller, keys)
        if not body.conversation_id and not body.message:
            raise ApiError(400, "send conversation_id, or a message to start", "invalid_value", "message")
        owner = owner_of(caller, body.user)
        handed = desk.hand_off(
            "api", owner=owner, conversation_id=body.conversation_id, text=body.message, email=body.email
        )
        return JSONResponse(_reply(handed))

    @router.get("/handoffs/{conversation_id}")
    def get_handoff(request: Request, conversation_id: Id, user: User = None) -> JSONResponse:
        """Returns the latest hand-off of a conversation. The conversation also contains the agents' messages."""
        return JSONResponse(_reply(its(conversation_id, owner_of(caller_of(request), user))))

    @router.post("/handoffs/{conversation_id}/messages")
    def write_to_person(request: Request, conversation_id: Id, body: HandoffMessage) -> JSONResponse:
        """Sends the customer's message to the agent."""
        caller = caller_of(request)
        count(caller, keys)
        owner = owner_of(caller, body.user)
        current = its(conversation_id, owner)
        handed = desk.to_person(body.message, conversation_id, owner) if current.is_with_person else None
        if handed is None:
            raise ApiError(409, "no agent answers this conversation", "not-with-person")
        return JSONResponse(_reply(handed))

    @router.delete("/handoffs/{conversation_id}")
    def end_handoff(request: Request, conversation_id: Id, user: User = None) -> JSONResponse:
        """Gives the conversation back to the assistant."""
        owner = owner_of(caller_of(request), user)
        its(conversation_id, owner)
        desk.end_handoff(conversation_id, owner)
        return JSONResponse(_reply(its(conversation_id, owner)))

    return router


def _reply(handoff: Handoff) -> dict[str, Any]:
    return {
        "object": "handoff",
        "conversation_id": handoff.conversation_id,
        **{name: getattr(handoff, name) for name in ("state", "reason", "agent", "email", "place")},
        "requested": handoff.requested.isoformat(),
        "taken": handoff.taken and handoff.taken.isoformat(),
        "closed": handoff.closed and handoff.closed.isoformat(),
    }


def models_router(desk: Service, keys: Keys) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["models"])
    started = int(time.time())

    @router.get("/models")
    def list_models() -> JSONResponse:
        """Lists Warmdesk, its language model and its embedder."""
        return JSONResponse(listed(models_reply(desk.models(), started)))

    @router.get("/models/{model:path}")
    def get_model(model: Line) -> JSONResponse:
        """Returns one model by name."""
        for row in models_reply(desk.models(), started):
            if row["id"] == model:
                return JSONResponse(row)
        raise not_found("model")

    @router.post("/embeddings")
    async def create_embeddings(request: Request, body: EmbeddingRequest) -> JSONResponse:
        """Returns a vector for each text, normalised to length 1."""
        count(caller_of(request), keys)
        names = desk.models()
        if body.model != names.embedder:
            raise ApiError(404, f"there is no embedder {body.model!r}: see /v1/models", "model_not_found", "model")
        if body.dimensions not in (None, names.dimension):
            raise ApiError(400, f"the embedder has {names.dimension} dimensions", "invalid_value", "dimensions")
        embedded = await run_in_threadpool(desk.embed, body.texts, as_questions=body.input_type == "query")
        in_base64 = body.encoding_format == "base64"
        return JSONResponse(embeddings_reply(embedded, body.model, in_base64=in_base64))

    return router


def add_api_routes(app: FastAPI, desk: Service, keys: Keys, record: Record) -> None:
    for router in (
        chat_router(desk, keys),
        models_router(desk, keys),
        conversations_router(desk),
        handoffs_router(desk, keys),
        documents_router(desk, keys, record),
        metrics_router(desk),
    ):
        app.include_router(router)
