"""A filter for a page's Gradio application. It accepts only the page's own events, and limits unread results.

Gradio takes any JSON as input and opens the files and addresses in it. It stores the result of an event until it is
read, and the state of a page until 1,000 newer pages exist. Here every input is a short text, a page belongs to the
sender of its first event, and nothing is stored for a page without a reader. Our pages need no state on the server.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.identity import caller_of
from app.access.limits import VISITORS_AT_AN_ADDRESS, Rate, address_of
from app.domain.words import translatable
from app.web.connections import held
from app.web.guard import refused, too_often
from app.web.pacing import REFUSED_S

JOIN, DATA = "/gradio_api/queue/join", "/gradio_api/queue/data"
"""Path endings: an event is sent to the first; its result is read from the second."""
NOTHING_TO_READ: Final = b'data: {"msg":"close_stream"}\n\n'
"""The event after which the page's script stops reading."""
EVENTS_A_SECOND: Final = 4
EVENTS_IN_A_ROW: Final = 60
"""Maximum burst of events of one visitor. During a hand-off, a page polls every two seconds."""
MOST_UNREAD: Final = 20  # maximum events of a visitor that are running, or whose results are unread
MOST_UNHEARD: Final = 8  # maximum such events of pages without an open stream
MOST_PAGES: Final = 10  # maximum pages of a visitor with such events
UNHEARD_S: Final = 10.0  # seconds after which a page that reads no results is dropped
FRAME_BYTES: Final = 16 << 10  # bytes of an event's body in addition to its longest text
BYTES_A_CHAR: Final = 6  # maximum, in JSON

SAID: Final = dict.fromkeys(("id", "title", "text", "message", "value", "reason", "act", "email"), "")
"""The data that our scripts send with events, and their defaults."""

_Name = Annotated[str, Field(pattern=r"^[\w-]{1,64}$")]
_Said = str | int | float | bool | None


class PageEvent(BaseModel, strict=True):
    """An event of a page. session_hash: id of the page. fn_index: index of Gradio's handler. data: its inputs.
    event_data: the script's data. trigger_id: id of the component.
    """

    session_hash: _Name
    fn_index: Annotated[int, Field(ge=0, lt=1000)]
    data: Annotated[list[str | None], Field(max_length=16)]
    event_data: Annotated[dict[_Name, _Said], Field(max_length=8)] | None = None
    trigger_id: int | None = None


def largest_event(most_chars: int) -> int:
    return FRAME_BYTES + BYTES_A_CHAR * most_chars


@dataclass(slots=True, eq=False)
class _Page:
    """A page with unread events. streams: connections that read them."""

    owner: str
    address: str
    streams: int = 0
    ending: asyncio.TimerHandle | None = None


class EventGate:
    """Filters requests to the application that Gradio mounted. Use it in one event loop."""

    def __init__(self, app: ASGIApp, blocks: Any) -> None:
        self._app, self._kept = app, _Kept(app, blocks)
        self._pages: dict[str, _Page] = {}
        self._visitors = Rate(EVENTS_A_SECOND, EVENTS_IN_A_ROW)
        at_an_address = VISITORS_AT_AN_ADDRESS
        self._addresses = Rate(EVENTS_A_SECOND * at_an_address, EVENTS_IN_A_ROW * at_an_address)
        self._tasks = set[asyncio.Task[None]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/") if scope["type"] == "http" else ""
        if path.endswith(JOIN):
            await self._join(Request(scope, receive), send)
        elif path.endswith(DATA):
            await self._read(Request(scope, receive), send)
        else:
            await self._app(scope, receive, send)

    async def _join(self, request: Request, send: Send) -> None:
        try:
            event = PageEvent.model_validate(json.loads(await request.body()))
        except ClientDisconnect:
            return
        except (ValueError, RecursionError):
            await _answer(request, send, 422, translatable("This is not an event of this page."))
            return
        if not self._kept.has(event):
            words = translatable("This page is from an earlier version of the server: reload it.")
            await _answer(request, send, 404, words)
            return
        owner, address = _owner(request), address_of(request)
        page = self._pages.get(event.session_hash)
        if page is not None and page.owner != owner:
            await _answer(request, send, 404, translatable("Not found."))
            return
        wait_s = self._visitors.wait_s(owner) or self._addresses.wait_s(address)
        if wait_s := wait_s or self._full_s(owner, address, event.session_hash):
            with held(request.scope):  # refusals are delayed: see `pacing`
                await asyncio.sleep(REFUSED_S)
            await too_often(request, wait_s)(request.scope, request.receive, send)
            return
        if page is None:
            page = self._pages[event.session_hash] = _Page(owner, address)
        body = json.dumps(self._kept.given(event).model_dump()).encode()  # half a pair of UTF-16 is not valid Unicode
        try:
            await self._app(request.scope, _once(body, request.receive), send)
        finally:
            self._forget_unheard(event.session_hash, page)

    async def _read(self, request: Request, send: Send) -> None:
        name = parse_qs(request.scope["query_string"].decode("latin-1")).get("session_hash", [""])[0]
        page = self._pages.get(name)
        if page is None or page.owner != _owner(request) or not self._kept.unread(name):
            await Response(NOTHING_TO_READ, media_type="text/event-stream")(request.scope, request.receive, send)
            return
        page.streams += 1
        if page.ending is not None:
            page.ending.cancel()
            page.ending = None
        try:
            await self._app(request.scope, request.receive, send)
        except Exception:
            if not self._kept.is_dropped(name):
                raise
            await send({"type": "http.response.body"})
        finally:
            page.streams -= 1
            if not self._kept.unread(name):
                self._kept.end_streams(name, page.streams)
                self._forget(name, page)
            self._forget_unheard(name, page)

    def _full_s(self, owner: str, address: str, name: str) -> float:
        """Return the seconds to wait before the next event of a page; 0 if it is accepted now."""
        own = {one for one, page in self._pages.items() if page.owner == owner}
        unheard = {one for one, page in self._pages.items() if page.address == address and not page.streams}
        unread = self._kept.unread
        is_full = (
            len(own | {name}) > MOST_PAGES
            or sum(map(unread, own)) >= MOST_UNREAD
            or sum(map(unread, own & unheard)) >= MOST_UNHEARD
            or sum(map(unread, unheard)) >= MOST_UNHEARD * VISITORS_AT_AN_ADDRESS
        )
        return UNHEARD_S if is_full else 0

    def _forget_unheard(self, name: str, page: _Page) -> None:
        """Remove a page after `UNHEARD_S` seconds if nothing reads its events."""
        if self._pages.get(name) is page and not page.streams and page.ending is None:
            page.ending = asyncio.get_running_loop().call_later(UNHEARD_S, self._forget, name, page)

    def _forget(self, name: str, page: _Page) -> None:
        if self._pages.get(name) is not page or page.streams:
            return
        del self._pages[name]
        if page.ending is not None:
            page.ending.cancel()
        if not self._kept.unread(name):
            self._kept.drop(name)
            return
        ending = asyncio.create_task(self._kept.end(name))
        self._tasks.add(ending)
        ending.add_done_callback(self._tasks.discard)


class _Kept:
    """The state that Gradio stores for its pages. These parts are not public: a test checks that they still exist."""

    def __init__(self, app: Any, blocks: Any) -> None:
        self._app, self._blocks = app, blocks

    def has(self, event: PageEvent) -> bool:
        handler = self._blocks.fns.get(event.fn_index)
        return handler is not None and handler.fn is not None and len(handler.inputs) == len(event.data)

    def given(self, event: PageEvent) -> PageEvent:
        """Return the event for handlers: missing texts are ""."""
        inputs = self._blocks.fns[event.fn_index].inputs
        boxes = (one.get_block_name() == "textbox" for one in inputs)
        data = ["" if text is None and is_box else text for text, is_box in zip(event.data, boxes, strict=True)]
        return event.model_copy(update={"data": data, "event_data": SAID | (event.event_data or {})})

    def unread(self, name: str) -> int:
        return len(self._blocks._queue.pending_event_ids_session.get(name, ()))

    def end_streams(self, name: str, streams: int) -> None:
        """End connections of a page without unread events, because Gradio would leave them open."""
        from gradio.server_messages import ProcessCompletedMessage

        for _ in range(0 if self.is_dropped(name) else streams):
            end = ProcessCompletedMessage(event_id="none", output={}, success=True)
            self._blocks._queue.pending_messages_per_session[name].put_nowait(end)

    def is_dropped(self, name: str) -> bool:
        """Return whether a reader left. Gradio then drops the events of the page, so its other readers fail."""
        return name not in self._blocks._queue.pending_messages_per_session

    def drop(self, name: str) -> None:
        queue, shown = self._blocks._queue, self._app.state_holder
        for kept in (
            queue.pending_messages_per_session,
            queue.pending_event_ids_session,
            shown.session_data,
            shown.time_last_used,
        ):
            kept.pop(name, None)

    async def end(self, name: str) -> None:
        await self._blocks._queue.clean_events(session_hash=name)
        self.drop(name)


def _owner(request: Request) -> str:
    caller = caller_of(request)
    return f"{caller.owner} {caller.name}"


def _once(body: bytes, receive: Receive) -> Receive:
    messages: Iterator[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def received() -> Message:
        return next(messages, None) or await receive()

    return received


async def _answer(request: Request, send: Send, status: int, words: str) -> None:
    await refused(request, status, words, "refused")(request.scope, request.receive, send)
