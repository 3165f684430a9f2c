"""POST /v1/chat/completions: answers of Warmdesk, or of its language model without the documents."""

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from app.access.identity import Keys, caller_of
from app.api.wire import (
    DESK,
    SYSTEM_LEFT_OUT,
    ApiError,
    ApiRoute,
    ChatRequest,
    Message,
    desk_fields,
    logprobs_reply,
    times,
    told,
    usage_reply,
)
from app.desk.service import AnswerStream, Service
from app.domain.answers import Answer, PlainAnswer, PlainOptions, Said
from app.domain.callers import Caller
from app.domain.logs import in_request


def owner_of(caller: Caller, user: str | None) -> str:
    """Return the owner of the conversations: the caller, or one of its own users. user: OpenAI's field, any text. Only
    API keys can act for users.
    """
    if not user or not caller.owner.startswith("k-"):
        return caller.owner
    return f"{caller.owner}-{hashlib.sha256(user.encode('utf-8', 'replace')).hexdigest()[:16]}"


def count(caller: Caller, keys: Keys) -> None:
    """Count a request that needs computation. Raises ApiError if the key has sent too many within a minute."""
    if wait_s := keys.seconds_to_wait(caller):
        words = f"this key has reached its limit of requests per minute: try again in {wait_s} s"
        raise ApiError(429, words, "rate_limit_exceeded", headers={"retry-after": str(wait_s)})


T = TypeVar("T")


class RunningAnswer(Generic[T]):
    """An answer that its own thread generates, because the framework has few threads. The event loop reads it and never
    waits for the engine. If the client disconnects, generation stops at once and the thread stores the partial answer.
    Iterate over it once for the pieces, then read `answer`. Must be created in an event loop.

    start: starts the answer; it may block and raise. The iteration raises every error of `start` and of the answer.
    """

    def __init__(self, start: Callable[[], AnswerStream[T]]) -> None:
        self._start, self._loop = start, asyncio.get_running_loop()
        self._events: asyncio.Queue[str | BaseException | None] = asyncio.Queue()
        self._stream: AnswerStream[T] | None = None
        self._answer: list[T] = []
        self._left = False
        self._lock = threading.Lock()
        threading.Thread(target=in_request(self._run), name="api-answer", daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            while (event := await self._events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self.cancel()

    @property
    def answer(self) -> T:
        return self._answer[0]

    def cancel(self) -> None:
        """Ask the answer to stop, without waiting. Does nothing after its end."""
        with self._lock:
            self._left = True
            if self._stream is not None:
                self._stream.cancel()

    def _run(self) -> None:
        try:
            stream = self._start()
            with self._lock:
                self._stream = stream
                if self._left:
                    stream.cancel()
            for piece in stream:
                self._tell(piece)
            self._answer.append(stream.answer)
            self._tell(None)
        except BaseException as error:
            self._tell(error)

    def _tell(self, event: str | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop has ended, nothing reads
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)


SSE_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class ChatReply:
    """A request that is being answered, and the JSON of its response."""

    def __init__(self, desk: Service, body: ChatRequest, caller: Caller) -> None:
        """Start the answer. Raises ApiError for an unknown model, and if the last message is not the user's."""
        self.running = _start(desk, body, owner_of(caller, body.user))
        self._caller = caller
        self._has_system = any(message.role in ("system", "developer") for message in body.messages)
        self._common = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": body.model}

    def whole(self, text: str) -> dict[str, Any]:
        answer, finish_reason, extra = self._end()
        message = {"role": "assistant", "content": text, "refusal": None}
        logprobs = logprobs_reply(answer)
        choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": logprobs}
        head = {**self._common, "object": "chat.completion", "choices": [choice]}
        return {**head, "usage": usage_reply(answer.usage), DESK: extra}

    async def events(self, first: str | None, pieces: AsyncIterator[str], include_usage: bool) -> AsyncIterator[str]:
        try:
            yield self._piece({"role": "assistant", "content": first or ""})
            async for piece in pieces:
                yield self._piece({"content": piece})
            answer, reason, extra = self._end()
            yield self._piece({}, reason, logprobs_reply(answer), **{DESK: extra})
            if include_usage:
                chunk = {**self._common, "object": "chat.completion.chunk", "choices": []}
                yield _event({**chunk, "usage": usage_reply(answer.usage)})
        except Exception as error:  # the status is already sent
            yield _event(told(error).document)
        finally:
            self.running.cancel()
        yield "data: [DONE]\n\n"

    def _piece(
        self,
        delta: dict[str, str],
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
        **more: Any,
    ) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        return _event({**self._common, "object": "chat.completion.chunk", "choices": [choice], **more})

    def _end(self) -> tuple[Answer | PlainAnswer, str, dict[str, Any]]:
        """Return the finished answer, the reason for its end, and the fields that only Warmdesk has."""
        answer = self.running.answer
        if isinstance(answer, PlainAnswer):
            return answer, answer.finish_reason, {"timings_ms": times(answer.timings, self._caller)}
        notice = SYSTEM_LEFT_OUT if self._has_system else None
        return answer, "length" if answer.is_cut else "stop", desk_fields(answer, self._caller, notice)


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n"


def chat_router(desk: Service, keys: Keys) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["chat"])

    @router.post("/chat/completions")
    async def create_completion(request: Request, body: ChatRequest) -> Response:
        """Answers the last message. The model "warmdesk" answers from the documents, with sources; the language
        model, chosen by its own name, answers without them.
        """
        caller = caller_of(request)
        count(caller, keys)
        reply = ChatReply(desk, body, caller)
        pieces = aiter(reply.running)
        if not body.stream:
            return await _whole(request, reply, pieces)
        first = await anext(pieces, None)  # an error before the first piece still has its own status
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        events = reply.events(first, pieces, include_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers=SSE_HEADERS)

    return router


def _start(desk: Service, body: ChatRequest, owner: str) -> "RunningAnswer[Answer] | RunningAnswer[PlainAnswer]":
    *earlier, last = (_said(message) for message in body.messages)
    if body.model == DESK:
        if last.role != "user":
            raise ApiError(400, "the last message must have the role user", "bad-messages", "messages")
        return RunningAnswer(
            lambda: desk.ask(last.text, owner=owner, conversation_id=body.conversation_id, earlier=earlier)
        )
    if body.model != desk.models().language:
        raise ApiError(404, f"there is no model {body.model!r}: see /v1/models", "model_not_found", "model")
    named = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed")
    given = {name: value for name in named if (value := getattr(body, name)) is not None}
    biases = tuple((body.logit_bias or {}).items())
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    options = PlainOptions(logprobs=logprobs, max_tokens=body.longest, stop=body.stops, logit_bias=biases, **given)
    return RunningAnswer(lambda: desk.complete([*earlier, last], options, owner=owner))


def _said(message: Message) -> Said:
    return Said("system" if message.role == "developer" else message.role, message.text)


async def _whole(request: Request, reply: ChatReply, pieces: AsyncIterator[str]) -> Response:
    """Return the whole answer at once. If the client disconnects, generation stops."""

    async def collect() -> str:
        return "".join([piece async for piece in pieces])

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answering, leaving = asyncio.ensure_future(collect()), asyncio.ensure_future(left())
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            return Response(status_code=499)  # the client has left
        text = await answering
    finally:
        answering.cancel()
        leaving.cancel()
    return JSONResponse(reply.whole(text), headers={"cache-control": "no-store"})
