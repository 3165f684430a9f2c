"""/v1/handoffs: a conversation goes to a person of the company, for programs with a chat of their own."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from app.access.identity import caller_of
from app.access.keys import Keys
from app.api.callers import count, owner_of
from app.api.conversations import User
from app.api.errors import ApiError, ApiRoute
from app.api.replies import not_found
from app.api.wire import HandoffMessage, HandoffRequest
from app.desk.interface import Desk
from app.domain.handoffs import Handoff
from app.domain.lengths import Id


def handoffs_router(desk: Desk, keys: Keys) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["handoffs"])

    def its(conversation_id: str, owner: str) -> Handoff:
        found = desk.handoff(conversation_id, owner)
        if found is None:
            raise not_found("handoff")
        return found

    @router.post("/handoffs")
    def request_handoff(request: Request, body: HandoffRequest) -> JSONResponse:
        """Asks for a person, in a conversation of the caller's or a new one that begins with the message. Outside of
        office hours an e-mail address is needed, and the machine goes on answering.
        """
        caller = caller_of(request)
        count(caller, keys)
        if not body.conversation_id and not body.message:
            raise ApiError(400, "a new conversation begins with a message", "invalid_value", "message")
        owner = owner_of(caller, body.user)
        handed = desk.hand_off(
            "api", owner=owner, conversation_id=body.conversation_id, text=body.message, email=body.email
        )
        return JSONResponse(_reply(handed))

    @router.get("/handoffs/{conversation_id}")
    def get_handoff(request: Request, conversation_id: Id, user: User = None) -> JSONResponse:
        """Who answers now. What agents write is among the messages of the conversation."""
        return JSONResponse(_reply(its(conversation_id, owner_of(caller_of(request), user))))

    @router.post("/handoffs/{conversation_id}/messages")
    def write_to_person(request: Request, conversation_id: Id, body: HandoffMessage) -> JSONResponse:
        """What the customer says to the person."""
        caller = caller_of(request)
        count(caller, keys)
        owner = owner_of(caller, body.user)
        current = its(conversation_id, owner)
        handed = desk.to_person(body.message, conversation_id, owner) if current.is_with_person else None
        if handed is None:
            raise ApiError(409, "no person answers this conversation", "not-with-person")
        return JSONResponse(_reply(handed))

    @router.delete("/handoffs/{conversation_id}")
    def end_handoff(request: Request, conversation_id: Id, user: User = None) -> JSONResponse:
        """Gives the conversation back to the machine."""
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
