"""A server with OpenAI's API that answers as a test says, without a network."""

import asyncio
import json
from collections.abc import Callable

import httpx

DONE = "data: [DONE]\n\n"


def event(**fields):
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n"


def words(text, ending=None):
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": ending}])


def whole(text, **usage):
    return [words(text), words("", "stop"), *([event(choices=[], usage=usage)] if usage else []), DONE]


class Events(httpx.AsyncByteStream):
    """A response that comes in pieces. After them it ends, breaks off, or waits for as long as anybody listens."""

    def __init__(self, pieces, then="end"):
        self._pieces, self._then = pieces, then
        self.is_closed = False

    async def __aiter__(self):
        for piece in self._pieces:
            yield piece.encode()
        if self._then == "break":
            raise httpx.RemoteProtocolError("peer closed connection")
        if self._then == "wait":
            await asyncio.Event().wait()

    async def aclose(self):
        self.is_closed = True


def stream(pieces, then="end"):
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Events(pieces, then))


Reply = httpx.Response | Exception | Callable[[], httpx.Response]


class FakeServer(httpx.MockTransport):
    """Gives its replies to chats, one after another, and the last one again and again. models: what it lists, or how it
    fails. chats: the bodies it got; requests: everything.
    """

    def __init__(self, *replies):
        super().__init__(self._handle)
        self.replies = list(replies)
        self.models = httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 900}]})
        self.chats = []
        self.requests = []

    async def _handle(self, request):
        self.requests.append(request)
        if request.url.path.endswith("/models"):
            return _given(self.models)
        if not request.url.path.endswith("/chat/completions"):
            return httpx.Response(404)
        self.chats.append(json.loads(await request.aread()))
        return _given(self.replies.pop(0) if len(self.replies) > 1 else self.replies[0])


def _given(reply):
    if isinstance(reply, Exception):
        raise reply
    if isinstance(reply, httpx.Response):
        return httpx.Response(reply.status_code, headers=reply.headers, stream=reply.stream)
    return reply()
