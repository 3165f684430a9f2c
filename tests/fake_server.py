"""A server with OpenAI's API that answers as a test says, without a network."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

DONE = "data: [DONE]\n\n"


def event(**fields: Any) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n"


def words(text: str, ending: str | None = None) -> str:
    """An event with a piece of an answer."""
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": ending}])


def whole(text: str, **usage: Any) -> list[str]:
    """The events of a whole answer."""
    return [words(text), words("", "stop"), *([event(choices=[], usage=usage)] if usage else []), DONE]


class Events(httpx.AsyncByteStream):
    """A response that comes in pieces. After them it ends, breaks off, or waits for as long as anybody listens."""

    def __init__(self, pieces: list[str], then: str = "end") -> None:
        self._pieces, self._then = pieces, then
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece.encode()
        if self._then == "break":
            raise httpx.RemoteProtocolError("peer closed connection")
        if self._then == "wait":
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.is_closed = True


def stream(pieces: list[str], then: str = "end") -> httpx.Response:
    """A response with events."""
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Events(pieces, then))


Reply = httpx.Response | Exception | Callable[[], httpx.Response]


class FakeServer(httpx.MockTransport):
    """Gives its replies to chats, one after another, and the last one again and again. models: what it lists, or how it
    fails. chats: the bodies it got; requests: everything.
    """

    def __init__(self, *replies: Reply) -> None:
        super().__init__(self._handle)
        self.replies = list(replies)
        self.models: httpx.Response | Exception = httpx.Response(
            200, json={"data": [{"id": "m", "max_model_len": 900}]}
        )
        self.chats: list[dict[str, Any]] = []
        self.requests: list[httpx.Request] = []

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.path.endswith("/models"):
            return _given(self.models)
        if not request.url.path.endswith("/chat/completions"):
            return httpx.Response(404)
        self.chats.append(json.loads(await request.aread()))
        return _given(self.replies.pop(0) if len(self.replies) > 1 else self.replies[0])


def _given(reply: Reply) -> httpx.Response:
    if isinstance(reply, Exception):
        raise reply
    if isinstance(reply, httpx.Response):
        return httpx.Response(reply.status_code, headers=reply.headers, stream=reply.stream)
    return reply()
