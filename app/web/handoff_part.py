"""The line above the box as a part of the chat page: its components and their wiring. It looks for news every two
seconds, but only while a person answers.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from app.domain.errors import DeskError
from app.web.chat_flow import ChatFlow, ChatView, Reader
from app.web.handoff_view import HandoffLine, HandoffView
from app.web.toasts import shown_as_toast

PERIOD_S = 2.0


class HandoffPart:
    """Made where the line stands on the page; `connect` wires it once the other parts are there."""

    def __init__(self, flow: ChatFlow, view: HandoffView) -> None:
        self._flow, self._view = flow, view
        script = (Path(__file__).parent / "static" / "handoff.js").read_text(encoding="utf-8")
        self._html = gr.HTML("", elem_id="wd-handoff", js_on_load=script, apply_default_css=False)
        self._timer = gr.Timer(PERIOD_S, active=False)
        # A field of the page: with `gr.State` each page would keep a connection open, and the server what it shows.
        self._mark = gr.Textbox(visible="hidden", elem_id="wd-handoff-mark", label="What the line shows")

    def connect(
        self,
        open_id: Any,
        transcript: Any,
        shown: list[Any],
        verdict: Any,
        updates: Callable[[ChatView], tuple[Any, ...]],
        reader_of: Callable[[gr.Request], Reader],
    ) -> None:
        """shown: the page's parts, which `updates` draws. verdict: what happens when an answer is judged."""
        parts = [self._html, self._timer, self._mark]

        def drawn(line: HandoffLine) -> tuple[Any, ...]:
            return line.html, gr.Timer(active=line.live), line.mark

        def news(conversation_id: str, mark: str, reader: Reader) -> HandoffLine | None:
            """The line, if it is another one. Without the database there are no news; the next look may bring some."""
            with suppress(DeskError):
                line = self._view.line(conversation_id, reader)
                return line if line.mark != mark else None
            return None

        def refreshed(conversation_id: str, mark: str, request: gr.Request) -> tuple[Any, ...]:
            line = news(conversation_id, mark, reader_of(request))
            return (gr.skip(),) * len(parts) if line is None else drawn(line)

        def judged(conversation_id: str, mark: str, request: gr.Request) -> tuple[Any, ...]:
            with suppress(DeskError):  # the verdict itself, a moment before, says what is wrong
                self._view.judged(conversation_id, reader_of(request))
            return refreshed(conversation_id, mark, request)

        def acted(conversation_id: str, event: gr.EventData, request: gr.Request) -> tuple[Any, ...]:
            reader = reader_of(request)
            with shown_as_toast(reader.language):
                line = self._view.act(str(event.act), conversation_id, str(event.email), reader)
            return (*updates(self._flow.open(line.conversation_id, reader)), *drawn(line))

        def ticked(conversation_id: str, mark: str, request: gr.Request) -> tuple[Any, ...]:
            reader = reader_of(request)
            line = news(conversation_id, mark, reader)
            if line is None:
                return (gr.skip(),) * (len(shown) + len(parts))
            view = replace(self._flow.open(conversation_id, reader), answering=None)  # the box stays as it is
            return (*updates(view), *drawn(line))

        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
        self._html.person(acted, [open_id], [*shown, *parts], **quiet)
        self._timer.tick(ticked, [open_id, self._mark], [*shown, *parts], trigger_mode="once", **quiet)
        verdict.then(judged, [open_id, self._mark], parts, **quiet)
        transcript.change(refreshed, [open_id, self._mark], parts, **quiet)
