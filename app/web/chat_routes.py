"""Routes of the chat: export and deletion of a visitor's data, signing out, text being typed, and the line of a
hand-off.

`/typing` loads what a question will need. It does not count as a question and has a separate limit. Out of scope: the
search for typed text (`app.answering.prefetching`), Gradio (`chat_page`), the agents' pages (`quality_routes`).
"""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from pydantic import BaseModel

from app.access.addresses import address_of
from app.access.identity import caller_of
from app.access.limits import QuestionLimits
from app.desk.output import export_conversation, export_everything
from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.lengths import LONGEST_LINE, Id, LongText, check_length
from app.domain.setting_values import is_open
from app.domain.settings import Settings
from app.domain.words import gettext, speaking, translatable
from app.web.chat_flow import Reader
from app.web.guard import VISITOR, Site
from app.web.rendering import error_words, page_language, render, translations


def add_visitor_routes(app: FastAPI, desk: Service, site: Site) -> None:
    """Routes for a caller with the cookie; the guard lets no others through."""

    @app.get("/conversations/{conversation_id}/export.{kind}")
    def export(request: Request, conversation_id: Id, kind: Id) -> Response:
        with speaking(translations(page_language(request.headers))):
            file = export_conversation(desk, conversation_id, caller_of(request).owner, kind)
            if file is None:
                return PlainTextResponse(gettext("There is no such conversation.") + "\n", 404)
        return Response(file.data, media_type=file.media_type, headers=_saved_as(file.name))

    @app.get("/my-data")
    def everything(request: Request) -> Response:
        pieces = export_everything(desk, caller_of(request).owner)
        first = next(pieces)  # before the status is sent, so that an error here gets its own status
        return StreamingResponse(
            chain((first,), pieces), media_type="application/json", headers=_saved_as("my-data.json")
        )

    @app.post("/my-data/delete")
    def erase(request: Request) -> Response:
        response = JSONResponse(asdict(desk.erase(caller_of(request).owner)))
        VISITOR.drop(response, request, site)
        return response

    @app.post("/sign-out")
    def sign_out(request: Request) -> Response:
        response = RedirectResponse("/", 303)
        VISITOR.drop(response, request, site)
        return response


def _saved_as(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}


class TypedText(BaseModel):
    """The text in the box; "" withdraws the text sent before. conversation_id "" is a new conversation."""

    text: LongText
    conversation_id: Id = ""


def add_typing_routes(app: FastAPI, desk: Service, limits: QuestionLimits) -> None:
    """One route for the chat page and one for the widget; both always return the same response."""

    @app.post("/typing")
    @app.post("/widget/typing")
    def typing(request: Request, typed: TypedText) -> Response:
        owner, address = caller_of(request).owner, address_of(request)
        if not typed.text or limits.may_type(owner, address):
            desk.prefetch(typed.text, owner=owner, conversation_id=typed.conversation_id or None)
        return Response(status_code=204)


TALK = translatable("Talk to a person")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffLine:
    """The line. live: an agent answers, so the page must look for news. mark: changes with the line and with every
    message.
    """

    conversation_id: str
    html: str
    live: bool
    mark: str


class HandoffView:
    """The text and the buttons of the line. Safe to call from several threads."""

    def __init__(
        self,
        desk: Service,
        settings: Settings,
        limits: QuestionLimits,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._desk, self._settings, self._limits, self._now = desk, settings, limits, now

    def line(self, conversation_id: str, reader: Reader, problem: str = "") -> HandoffLine:
        """The line of a conversation; "" is a new one. problem: an error, in English. Raises DeskError."""
        handoff = self._desk.handoff(conversation_id, reader.owner) if conversation_id else None
        html = render(
            "chat/handoff.html",
            language=reader.language,
            handoff=handoff,
            offered=self._settings.handoff != "off",
            is_open=is_open(self._settings.office_hours, self._now()),
            contacts=self._contacts(),
            problem=problem,
        )
        live = handoff is not None and handoff.is_with_person
        shown = f"{conversation_id} {0 if handoff is None else handoff.messages} {html}"
        mark = hashlib.sha256(shown.encode()).hexdigest()[:16]
        return HandoffLine(conversation_id=conversation_id, html=html, live=live, mark=mark)

    def act(self, act: str, conversation_id: str, email: str, reader: Reader) -> HandoffLine:
        """Do the action of a button: "ask" for an agent, with an e-mail address outside of office hours, or
        "end" it.
        """
        try:
            with self._limits.asking(reader.owner, reader.address):
                if act == "end":
                    self._desk.end_handoff(conversation_id, reader.owner)
                elif act == "ask":
                    check_length(email, LONGEST_LINE, "e-mail address")
                    conversation_id = self._asked(conversation_id, email.strip(), reader)
        except DeskError as error:
            return self.line(conversation_id, reader, error_words(error))
        return self.line(conversation_id, reader)

    def judged(self, conversation_id: str, reader: Reader) -> None:
        """After a rating, apply the hand-off rules. Raises DeskError."""
        if conversation_id:
            self._desk.hand_off_by_rule(conversation_id, reader.owner)

    def _asked(self, conversation_id: str, email: str, reader: Reader) -> str:
        with speaking(translations(reader.language)):
            text = "" if conversation_id else gettext(TALK)  # a conversation begins with a text
        handed = self._desk.hand_off(
            "button", owner=reader.owner, conversation_id=conversation_id or None, text=text, email=email
        )
        return handed.conversation_id

    def _contacts(self) -> list[tuple[str, str]]:
        """The contacts as they are shown, and the address of a link or ""."""
        links = self._desk.contacts()
        hours = self._settings.contact_hours
        return [*links.items(), *([(hours, "")] if hours else [])]
