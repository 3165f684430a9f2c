"""/v1/conversations and /v1/feedback: what the desk stored of the caller's own questions."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from app.access.identity import caller_of
from app.api.callers import owner_of
from app.api.errors import ApiRoute
from app.api.replies import listed, not_found, summary_reply, turn_reply
from app.api.wire import FeedbackRequest
from app.desk.export import export_conversation
from app.desk.interface import Desk
from app.domain.lengths import Id

User = Annotated[str | None, Query(max_length=512, description="One of your own users, as named when asking.")]


def conversations_router(desk: Desk) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["conversations"])

    @router.get("/conversations")
    def list_conversations(
        request: Request, user: User = None, limit: Annotated[int, Query(ge=1, le=1000)] = 50
    ) -> JSONResponse:
        """The latest conversations, most recently used first."""
        return JSONResponse(
            listed([summary_reply(one) for one in desk.conversations(owner_of(caller_of(request), user), limit)])
        )

    @router.get("/conversations/{conversation_id}")
    def get_conversation(request: Request, conversation_id: Id, user: User = None) -> JSONResponse:
        """All messages, oldest first."""
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
        """The conversation as a file."""
        file = export_conversation(desk, conversation_id, owner_of(caller_of(request), user), format)
        if file is None:
            raise not_found("conversation")
        name = f'attachment; filename="{file.name}"'
        return Response(file.data, media_type=file.media_type, headers={"content-disposition": name})

    @router.delete("/conversations/{conversation_id}")
    def delete_conversation(request: Request, conversation_id: Id, user: User = None) -> JSONResponse:
        """Deletes it with all its messages."""
        owner = owner_of(caller_of(request), user)
        if not desk.turns(conversation_id, owner):
            raise not_found("conversation")
        desk.delete_conversation(conversation_id, owner)
        return JSONResponse({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    @router.post("/feedback")
    def give_feedback(request: Request, body: FeedbackRequest) -> JSONResponse:
        """Sets, replaces or (null) takes back the verdict on an answer."""
        desk.feedback(body.message_id, body.value, body.reason, owner=owner_of(caller_of(request), body.user))
        return JSONResponse({"message_id": body.message_id, "value": body.value})

    return router
