"""What pages send while a visitor types, so that the desk has ready what the question will need.

It takes nothing from the visitor's questions, and has a limit of its own. Not covered: what is done with it
(`app.answering.prefetching`).
"""

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel

from app.access.addresses import address_of
from app.access.identity import caller_of
from app.access.limits import QuestionLimits
from app.desk.interface import Desk
from app.domain.lengths import Id, LongText


class TypedText(BaseModel):
    """What stands in the box; "" takes back what was sent before. conversation_id "" is a new conversation."""

    text: LongText
    conversation_id: Id = ""


def add_typing_routes(app: FastAPI, desk: Desk, limits: QuestionLimits) -> None:
    """One for the chat page and one for the widget; both always give the same answer."""

    @app.post("/typing")
    @app.post("/widget/typing")
    def typing(request: Request, typed: TypedText) -> Response:
        owner, address = caller_of(request).owner, address_of(request)
        if not typed.text or limits.may_type(owner, address):
            desk.prefetch(typed.text, owner=owner, conversation_id=typed.conversation_id or None)
        return Response(status_code=204)
