"""Routes of the chat: export and deletion of a visitor's data, signing out, text being typed, the status line of a
hand-off, and the widget for other sites.

The widget is a script that another site's page loads, the page in its frame, and their routes. It behaves like the chat
page (`chat_flow`), without the list of conversations. A frame of another site has no cookies, so the page sends the
visitor's token in a header. Out of scope: which sites may show the widget (`guard`).
"""

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import chain
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from pydantic import BaseModel

from app.access.identity import caller_of, new_token
from app.access.limits import QuestionLimits, address_of
from app.api.chat import RunningAnswer
from app.desk.output import export_conversation, export_everything
from app.desk.service import Service
from app.domain.callers import LONGEST_LINE, Id, Line, LongText, check_length
from app.domain.errors import DeskError
from app.domain.setting_types import is_open
from app.domain.settings import Settings
from app.domain.words import gettext, speaking, translatable, utc_now
from app.web.chat_flow import ChatFlow, ChatView, Reader
from app.web.guard import VISITOR, Site
from app.web.rendering import LANGUAGES, error_words, page_language, render, static, translations


def add_visitor_routes(app: FastAPI, desk: Service, site: Site) -> None:
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
    """The text in the box; "" cancels the text sent before. conversation_id "" is a new conversation."""

    text: LongText
    conversation_id: Id = ""


def add_typing_routes(app: FastAPI, desk: Service, limits: QuestionLimits) -> None:
    """Add the routes that receive unfinished questions, to search early. Their response is always the same."""

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
    """The status line of a hand-off. live: an agent answers; the page polls. mark: changes with line and messages."""

    conversation_id: str
    html: str
    live: bool
    mark: str


class HandoffView:
    """Makes the status line of a hand-off, with its buttons. Safe to call from several threads."""

    def __init__(
        self, desk: Service, settings: Settings, limits: QuestionLimits, *, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._desk, self._settings, self._limits, self._now = desk, settings, limits, now

    def line(self, conversation_id: str, reader: Reader, problem: str = "") -> HandoffLine:
        handoff = self._desk.handoff(conversation_id, reader.owner) if conversation_id else None
        hours = self._settings.contact_hours
        html = render(
            "chat/handoff.html",
            language=reader.language,
            handoff=handoff,
            offered=self._settings.handoff != "off",
            is_open=is_open(self._settings.office_hours, self._now()),
            contacts=[*self._desk.contacts().items(), *([(hours, "")] if hours else [])],
            problem=problem,
        )
        live = handoff is not None and handoff.is_with_person
        shown = f"{conversation_id} {0 if handoff is None else handoff.messages} {html}"
        mark = hashlib.sha256(shown.encode()).hexdigest()[:16]
        return HandoffLine(conversation_id=conversation_id, html=html, live=live, mark=mark)

    def act(self, act: str, conversation_id: str, email: str, reader: Reader) -> HandoffLine:
        """Run a button's action. "ask": request an agent, outside of office hours with an e-mail address. "end": end
        the hand-off.
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


_NO_STORE = {"cache-control": "no-store", "x-accel-buffering": "no"}
_FRESH = {"cache-control": "public, max-age=600"}
_COLOUR = "#a84a24"
_Word = Annotated[Id, Body(embed=True)]
_LABELS = {
    "open": translatable("Open the chat"),
    "close": translatable("Close the chat"),
    "news": translatable("Open the chat, new message"),
}


class WidgetQuestion(BaseModel):
    """A question. session: one opened page. conversation_id "" is a new conversation. replaces_last: replace the last
    question and its answer.
    """

    session: Id
    question: LongText
    conversation_id: Id = ""
    replaces_last: bool = False


class WidgetVerdict(BaseModel):
    """A rating of an answer. value: up, down, or anything else to remove it."""

    conversation_id: Id
    message_id: Id
    value: Id
    reason: Line = ""


class WidgetRequest(BaseModel):
    """A request for an agent. act: ask or end (`HandoffView.act`); "" changes nothing. email: required outside
    of office hours.
    """

    session: Id
    conversation_id: Id = ""
    act: Id = ""
    email: Line = ""


class _Views:
    """Yields the views of an answer as lines of JSON, for `RunningAnswer`."""

    def __init__(self, flow: ChatFlow, asked: WidgetQuestion, reader: Reader) -> None:
        self._flow, self._asked, self._reader = flow, asked, reader

    def __iter__(self) -> Iterator[str]:
        asked = self._asked
        views = self._flow.ask(asked.question, asked.conversation_id, self._reader, replaces_last=asked.replaces_last)
        return (f"{json.dumps(_shown(view))}\n" for view in views)

    @property
    def answer(self) -> None:
        return None  # the last view contains the answer

    def cancel(self) -> None:
        self._flow.stop(self._reader)


def add_widget_routes(app: FastAPI, desk: Service, limits: QuestionLimits, settings: Settings, *, css: str) -> None:
    """Add the widget's routes. limits: shared with the chat page. css: the chat's style, without the widget's own."""
    flow, handoffs = ChatFlow(desk, limits, settings), HandoffView(desk, settings, limits)

    def give_out(path: str, text: str, media_type: str) -> None:
        @app.get(path)
        def file() -> Response:
            return Response(text, media_type=media_type, headers=_FRESH)

    give_out("/widget.js", button_script(settings), "text/javascript")
    give_out("/widget/page.js", "".join(map(static, ("typing.js", "answers.js", "widget_page.js"))), "text/javascript")
    give_out("/widget/page.css", css + static("widget_page.css"), "text/css")

    @app.get("/widget")
    def page(request: Request, language: Id = "", theme: Id = "") -> HTMLResponse:
        wanted = {"accept-language": language} if language else request.headers
        shown = {"name": settings.desk_name, "origins": settings.widget_origins, "prefetch": settings.foresees}
        shown["scheme"] = theme if theme in ("light", "dark") else "light dark"
        return HTMLResponse(render("widget.html", language=page_language(wanted), **shown), headers=_NO_STORE)

    @app.post("/widget/visitor")
    def visitor() -> JSONResponse:
        return JSONResponse({"token": new_token()}, headers=_NO_STORE)

    @app.post("/widget/open")
    def opened(request: Request, session: _Word, conversation_id: _Word) -> JSONResponse:
        return JSONResponse(_shown(flow.open(conversation_id, _reader(request, session))), headers=_NO_STORE)

    @app.post("/widget/ask")
    async def ask(request: Request, asked: WidgetQuestion) -> StreamingResponse:
        reader = _reader(request, asked.session)
        running = RunningAnswer(lambda: _Views(flow, asked, reader))
        return StreamingResponse(_lines(running), media_type="application/x-ndjson", headers=_NO_STORE)

    @app.post("/widget/stop")
    def stop(request: Request, session: _Word) -> Response:
        flow.stop(_reader(request, session))
        return Response(status_code=204)

    @app.post("/widget/feedback")
    def feedback(request: Request, verdict: WidgetVerdict) -> Response:
        reader = _reader(request, "")
        try:
            flow.feedback(verdict.message_id, verdict.value, verdict.reason, reader)
            handoffs.judged(verdict.conversation_id, reader)
        except DeskError as error:
            if error.is_of_database:
                raise
            return Response(status_code=404)
        return Response(status_code=204)

    @app.post("/widget/person")
    def person(request: Request, wanted: WidgetRequest) -> JSONResponse:
        reader = _reader(request, wanted.session)
        if wanted.act:
            line = handoffs.act(wanted.act, wanted.conversation_id, wanted.email, reader)
        else:
            line = handoffs.line(wanted.conversation_id, reader)
        return JSONResponse(asdict(line), headers=_NO_STORE)


def button_script(settings: Settings) -> str:
    """Return the script for another site's page, with the brand colour and the button's texts in all languages."""
    labels = {}
    for language in LANGUAGES:
        with speaking(translations(language)):
            labels[language] = {name: gettext(words) for name, words in _LABELS.items()}
    desk = {"name": settings.desk_name, "colour": settings.desk_colour or _COLOUR, "labels": labels}
    return f"({static('widget_button.js')})({json.dumps(desk)});\n"


async def _lines(running: RunningAnswer[None]) -> AsyncIterator[str]:
    try:
        async for line in running:
            yield line
    finally:  # closing the page ends the answer
        running.cancel()


def _shown(view: ChatView) -> dict[str, Any]:
    """Return the parts to redraw, without the list of conversations."""
    return {name: part for name, part in asdict(view).items() if part is not None and name != "conversations"}


def _reader(request: Request, session: str) -> Reader:
    caller = caller_of(request)
    return Reader(
        owner=caller.owner,
        user=caller.user,
        session=f"{caller.owner} {session}",  # no caller can end another caller's answer
        address=address_of(request),
        language=page_language(request.headers),
    )
