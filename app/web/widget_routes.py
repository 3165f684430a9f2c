"""The chat in pages of other sites: the script that such a page loads, the page in its frame, and its routes.

The behaviour is the chat page's (`chat_flow`), without the list of conversations. A frame of another site has no
cookies, so the page sends the visitor's token in a header. Out of scope: which sites may show it (`guard.WidgetFrame`).
"""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from app.access.identity import caller_of, new_token
from app.access.limits import QuestionLimits, address_of
from app.api.running import RunningAnswer
from app.desk.service import Service
from app.domain.callers import Id, Line, LongText
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.domain.words import gettext, speaking, translatable
from app.web.chat_flow import ChatFlow, ChatView, Reader
from app.web.chat_routes import HandoffView
from app.web.rendering import LANGUAGES, page_language, render, static, translations

_NO_STORE = {"cache-control": "no-store", "x-accel-buffering": "no"}
_FRESH = {"cache-control": "public, max-age=600"}
_COLOUR = "#a84a24"
_Word = Annotated[Id, Body(embed=True)]
_LABELS = {"open": translatable("Open the chat"), "close": translatable("Close the chat")}


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
    """A request for an agent. act: ask or end (`HandoffView.act`); "" only looks. email: required if no agent is
    present.
    """

    session: Id
    conversation_id: Id = ""
    act: Id = ""
    email: Line = ""


class _Views:
    """The views of an answer as lines of JSON, for `RunningAnswer`."""

    def __init__(self, flow: ChatFlow, asked: WidgetQuestion, reader: Reader) -> None:
        self._flow, self._asked, self._reader = flow, asked, reader

    def __iter__(self) -> Iterator[str]:
        asked = self._asked
        views = self._flow.ask(asked.question, asked.conversation_id, self._reader, replaces_last=asked.replaces_last)
        return (f"{json.dumps(_shown(view))}\n" for view in views)

    @property
    def answer(self) -> None:
        return None  # the last view has it

    def cancel(self) -> None:
        self._flow.stop(self._reader)


def add_widget_routes(app: FastAPI, desk: Service, limits: QuestionLimits, settings: Settings, *, css: str) -> None:
    """limits: shared with the chat page. css: the style of the chat, to which the widget adds its own."""
    flow, handoffs = ChatFlow(desk, limits, settings), HandoffView(desk, settings, limits)

    def give_out(path: str, text: str, media_type: str) -> None:
        @app.get(path)
        def file() -> Response:
            return Response(text, media_type=media_type, headers=_FRESH)

    give_out("/widget.js", button_script(settings), "text/javascript")
    give_out("/widget/page.js", static("typing.js") + static("widget_page.js"), "text/javascript")
    give_out("/widget/page.css", css + static("widget_page.css"), "text/css")

    @app.get("/widget")
    def page(request: Request, language: Id = "") -> HTMLResponse:
        wanted = {"accept-language": language} if language else request.headers
        shown = {"name": settings.desk_name, "origins": settings.widget_origins, "prefetch": settings.foresees}
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
    """The script that a page of another site loads, with the brand colour and the button's words in all languages."""
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
    """The parts to redraw, without the list of conversations."""
    return {name: part for name, part in asdict(view).items() if part is not None and name != "conversations"}


def _reader(request: Request, session: str) -> Reader:
    owner = caller_of(request).owner
    return Reader(
        owner=owner,
        session=f"{owner} {session}",  # no caller ends another one's answer
        address=address_of(request),
        language=page_language(request.headers),
    )
