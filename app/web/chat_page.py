"""The chat page: Gradio components and their wiring, with the status line of a hand-off and errors as toasts. Behaviour
is in `chat_flow`, appearance in templates/chat and desk.css.

The list shows the visitor's own conversations. The id of the open one is in the address bar and in a hidden field of
the page, never on the server. The page polls for an agent's messages every two seconds, only while an agent answers. A
toast shows errors that have no other place on the page; otherwise Gradio would log a traceback and show nothing.
"""

import logging
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import gradio as gr

from app.access.identity import caller_of
from app.access.limits import QuestionLimits, address_of
from app.desk.service import Service
from app.domain.callers import KNOWN, LONGEST_ID
from app.domain.errors import DeskError
from app.domain.logs import enter_request, steps_of_request
from app.domain.settings import Settings
from app.domain.words import gettext, speaking
from app.web.chat_flow import ChatFlow, ChatView, Reader
from app.web.chat_routes import HandoffLine, HandoffView
from app.web.rendering import error_words, page_language, render, static, translations

log = logging.getLogger(__name__)


@contextmanager
def shown_as_toast(language: str) -> Iterator[None]:
    """Show a DeskError as a Gradio toast."""
    try:
        yield
    except DeskError as error:
        if not error.is_away:
            log.warning("the chat page shows an error (%s): %s", error.code, error)
        with speaking(translations(language)):
            raise gr.Error(gettext(error_words(error)), title="", print_exception=False) from None


FRAME = ("side", "header", "foot", "data")
"""Static templates in templates/chat. Their texts are translated when the page is opened."""
ANSWERS_AT_ONCE = 24
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
DIRECT: dict[str, Any] = {**QUIET, "concurrency_limit": None}
"""Options of all events, and of those that need no language model."""
_READ_ADDRESS = "() => location.hash.slice(1).replace(/[^0-9a-zA-Z_-]/g, '').slice(0, 64)"
_WRITE_ADDRESS = "(id) => { history.replaceState(null, '', id ? '#' + id : location.pathname + location.search); }"


def _updates(view: ChatView, **box: object) -> tuple[Any, ...]:
    """Return the page's outputs in order; unchanged parts are not sent. box: properties of the text box."""
    editing = None if view.editing is None else "yes" if view.editing else ""
    parts = (view.conversation_id, view.transcript, view.live, view.conversations, editing)
    if view.box is not None:
        box["value"] = view.box
    if view.answering is not None:
        box["submit_btn"], box["stop_btn"] = not view.answering, view.answering
    return (*(gr.skip() if part is None else part for part in parts), gr.update(**box) if box else gr.skip())


def _id_of(request: gr.Request) -> str:
    return str(getattr(request.request.state, "request_id", ""))


def _reader(request: gr.Request) -> Reader:
    browser = request.request
    enter_request(_id_of(request))  # Gradio calls us in its own context, not in the request's
    caller = caller_of(browser)
    return Reader(
        owner=caller.owner,
        user=caller.user,
        session=str(request.session_hash),
        address=address_of(browser),
        language=page_language(browser.headers),
    )


def _text(sent: object) -> str:
    return sent if isinstance(sent, str) else ""


def _word(sent: object) -> str:
    """Return an id or a word, cut at the maximum length of an id; "" if it is not text."""
    return _text(sent)[:LONGEST_ID]


PERIOD_S = 2.0


class HandoffPart:
    """The status line of a hand-off. Create it at its place on the page; call `connect` once the other parts exist.
    html: the part that shows it.
    """

    def __init__(self, flow: ChatFlow, view: HandoffView, html: gr.HTML) -> None:
        self._flow, self._view, self._html = flow, view, html
        self._timer = gr.Timer(PERIOD_S, active=False)
        # A field of the page: with `gr.State`, each page would hold a connection, and the server its values.
        self._mark = gr.Textbox(visible="hidden", elem_id="wd-handoff-mark", label="What the line shows")

    def connect(self, open_id: Any, transcript: Any, shown: list[Any], verdict: Any, foot: Any) -> None:
        """Wire the events. shown: the page's parts, which `_updates` draws. verdict: the event of a rating. foot: the
        part whose script sometimes triggers an update.
        """
        parts = [self._html, self._timer, self._mark]

        def drawn(line: HandoffLine) -> tuple[Any, ...]:
            return line.html, gr.Timer(active=line.live), line.mark

        def news(conversation_id: str, mark: str, reader: Reader) -> HandoffLine | None:
            """Return the line if it has changed."""
            with suppress(DeskError):  # the database is away: the next poll may succeed
                line = self._view.line(conversation_id, reader)
                return line if line.mark != mark else None
            return None

        def refreshed(conversation_id: str, mark: str, request: gr.Request) -> tuple[Any, ...]:
            line = news(conversation_id, mark, _reader(request))
            return (gr.skip(),) * len(parts) if line is None else drawn(line)

        def judged(conversation_id: str, mark: str, request: gr.Request) -> tuple[Any, ...]:
            with suppress(DeskError):  # the event that stored the rating has shown the error
                self._view.judged(conversation_id, _reader(request))
            return refreshed(conversation_id, mark, request)

        def acted(conversation_id: str, event: gr.EventData, request: gr.Request) -> tuple[Any, ...]:
            reader = _reader(request)
            with shown_as_toast(reader.language):
                line = self._view.act(str(event.act), conversation_id, str(event.email), reader)
            return (*_updates(self._flow.open(line.conversation_id, reader)), *drawn(line))

        def ticked(conversation_id: str, mark: str, request: gr.Request) -> tuple[Any, ...]:
            reader = _reader(request)
            line = news(conversation_id, mark, reader)
            if line is None:
                return (gr.skip(),) * (len(shown) + len(parts))
            view = replace(self._flow.open(conversation_id, reader), answering=None)  # the box stays as it is
            return (*_updates(view), *drawn(line))

        self._html.person(acted, [open_id], [*shown, *parts], **DIRECT)
        for looks in (self._timer.tick, foot.look):
            looks(ticked, [open_id, self._mark], [*shown, *parts], trigger_mode="once", **DIRECT)
        verdict.then(judged, [open_id, self._mark], parts, **DIRECT)
        transcript.change(refreshed, [open_id, self._mark], parts, **DIRECT)


def build_chat(desk: Service, limits: QuestionLimits, settings: Settings) -> gr.Blocks:
    """Return the page, not yet mounted; mounting adds CSS and theme."""
    flow = ChatFlow(desk, limits, settings)
    acts = static("answers.js") + static("chat.js")

    def part(name: str, script: str | None = acts) -> gr.HTML:
        return gr.HTML("", elem_id=name, js_on_load=script, apply_default_css=False)

    def read(reader: Reader) -> tuple[Any, ...]:
        """Return the line about documents being read. The page polls only while the line has a text."""
        line = flow.reading(reader)
        return line, gr.Timer(active=bool(line))

    def looked(open_id: str, request: gr.Request) -> tuple[Any, ...]:
        reader = _reader(request)
        return (*_updates(flow.look(open_id, reader)), *read(reader))

    def opened(conversation_id: str, request: gr.Request) -> tuple[Any, ...]:
        reader = _reader(request)
        with speaking(translations(reader.language)):
            box = {"label": gettext("Your question"), "placeholder": gettext("Ask a question")}
        shown = {"name": settings.desk_name, "prefetch": settings.foresees}
        shown["is_known"] = reader.owner.startswith(KNOWN)
        frame = (render(f"chat/{part}.html", language=reader.language, **shown) for part in FRAME)
        return (*_updates(flow.arrive(conversation_id, reader), **box), *frame, *read(reader))

    def shows(work: Callable[[str, gr.EventData, Reader], ChatView]) -> Callable[..., tuple[Any, ...]]:
        def handler(open_id: str, event: gr.EventData, request: gr.Request) -> tuple[Any, ...]:
            return _updates(work(open_id, event, _reader(request)))

        return handler

    clicked = shows(lambda _, event, reader: flow.open(_word(event.id), reader))
    removed = shows(lambda open_id, event, reader: flow.delete(_word(event.id), open_id, reader))
    restored = shows(lambda _, event, reader: flow.restore(_word(event.id), reader))
    renamed = shows(lambda at, event, reader: flow.rename(_word(event.id), _text(event.title), at, reader))
    searched = shows(lambda open_id, event, reader: flow.find(_text(event.text), open_id, reader))

    def drawn(views: Generator[ChatView], request: gr.Request) -> Iterator[tuple[Any, ...]]:
        try:
            for view in steps_of_request(_id_of(request), views):
                yield _updates(view)
        except GeneratorExit:  # the browser left: end the answer
            # Ending it waits for the engine, and we are closed by Gradio's event loop, which must not block.
            threading.Thread(target=views.close, name="left", daemon=True).start()
            raise

    def asked(question: str, open_id: str, editing: str, request: gr.Request) -> Iterator[tuple[Any, ...]]:
        yield from drawn(flow.ask(question, open_id, _reader(request), replaces_last=bool(editing)), request)

    def chosen(open_id: str, event: gr.EventData, request: gr.Request) -> Iterator[tuple[Any, ...]]:
        yield from drawn(flow.ask(_text(event.text), open_id, _reader(request)), request)

    def retried(open_id: str, request: gr.Request) -> Iterator[tuple[Any, ...]]:
        yield from drawn(flow.retry(open_id, _reader(request)), request)

    def edited(open_id: str, request: gr.Request) -> tuple[Any, ...]:
        return _updates(flow.edit(open_id, _reader(request)))

    def judged(event: gr.EventData, request: gr.Request) -> None:
        reader = _reader(request)
        with shown_as_toast(reader.language):
            flow.feedback(_word(event.message), _word(event.value), _text(event.reason), reader)

    def stopped(request: gr.Request) -> None:
        flow.stop(_reader(request))

    with gr.Blocks(title=settings.desk_name, analytics_enabled=False, fill_width=True, fill_height=True) as blocks:
        with gr.Row(elem_id="wd-app"):
            with gr.Column(elem_id="wd-side", min_width=0):
                side = part("wd-side-head")
                listed = part("wd-list")
                data = part("wd-data")
            with gr.Column(elem_id="wd-main", min_width=0):
                top = part("wd-top")
                with gr.Column(elem_id="wd-scroll"):
                    transcript = part("wd-transcript")
                    live = part("wd-live")
                with gr.Column(elem_id="wd-foot"):
                    reading, timer = part("wd-reading", None), gr.Timer(PERIOD_S, active=False)
                    handoff = HandoffPart(flow, HandoffView(desk, settings, limits), part("wd-handoff"))
                    plain: dict[str, Any] = {"label": "", "show_label": False, "container": False}
                    box = gr.Textbox(elem_id="wd-box", lines=1, max_lines=8, autofocus=True, submit_btn=True, **plain)
                    foot = part("wd-hint", static("typing.js") + static("page.js"))
        open_id = gr.Textbox(visible="hidden", elem_id="wd-open-id", label="Open conversation")
        editing = gr.Textbox(visible="hidden", elem_id="wd-editing", label="Changing the last question")

        shown = [open_id, transcript, live, listed, editing, box]
        answers: dict[str, Any] = {**QUIET, "concurrency_limit": ANSWERS_AT_ONCE, "concurrency_id": "answers"}
        blocks.load(opened, [open_id], [*shown, side, top, foot, data, reading, timer], js=_READ_ADDRESS, **DIRECT)
        open_id.change(None, [open_id], None, js=_WRITE_ADDRESS, **QUIET)
        box.submit(asked, [box, open_id, editing], shown, **answers)
        box.stop(stopped, None, None, **DIRECT)
        for place in (transcript, live):  # live: after an error
            place.example(chosen, [open_id], shown, **answers)
        transcript.retry(retried, [open_id], shown, **answers)
        transcript.edit(edited, [open_id], shown, **DIRECT)
        verdict = transcript.verdict(judged, None, None, trigger_mode="multiple", **DIRECT)  # a reason follows at once
        handoff.connect(open_id, transcript, shown, verdict, foot)
        timer.tick(looked, [open_id], [*shown, reading, timer], trigger_mode="once", **DIRECT)
        side.open(clicked, [open_id], shown, **DIRECT)
        side.find(searched, [open_id], shown, **DIRECT)
        listed.open(clicked, [open_id], shown, **DIRECT)
        listed.remove(removed, [open_id], shown, **DIRECT)
        listed.restore(restored, [open_id], shown, **DIRECT)
        listed.rename(renamed, [open_id], shown, **DIRECT)
    blocks.queue(max_size=4 * ANSWERS_AT_ONCE)
    return blocks
