"""POST /v1/chat/completions: Warmdesk as a model, and its language model alone."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from app.access.identity import Keys, caller_of
from app.api.running import RunningAnswer, count, owner_of
from app.api.wire import (
    DESK,
    SYSTEM_LEFT_OUT,
    ApiError,
    ApiRoute,
    ChatReply,
    ChatRequest,
    Message,
    desk_fields,
    event,
    plain_fields,
    told,
)
from app.desk.service import Service
from app.domain.answers import Answer, PlainAnswer, PlainOptions, Said
from app.domain.callers import Caller

SSE_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class Replying:
    """A request that is being answered. has_system: it has a system message."""

    running: "RunningAnswer[Answer] | RunningAnswer[PlainAnswer]"
    reply: ChatReply
    caller: Caller
    has_system: bool


def chat_router(desk: Service, keys: Keys) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["chat"])

    @router.post("/chat/completions")
    async def create_completion(request: Request, body: ChatRequest) -> Response:
        """Answers the last message. The model "warmdesk" answers from the documents, with sources; the language model's
        own name answers without them.
        """
        caller = caller_of(request)
        count(caller, keys)
        asked = Replying(
            _start(desk, body, owner_of(caller, body.user)),
            ChatReply(f"chatcmpl-{uuid4().hex}", int(time.time()), body.model),
            caller,
            any(message.role in ("system", "developer") for message in body.messages),
        )
        pieces = aiter(asked.running)
        if not body.stream:
            return await _whole(request, asked, pieces)
        first = await anext(pieces, None)  # an error before the first piece still has its own status
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        events = _events(asked, first, pieces, include_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers=SSE_HEADERS)

    return router


def _start(desk: Service, body: ChatRequest, owner: str) -> "RunningAnswer[Answer] | RunningAnswer[PlainAnswer]":
    """Start the answer. Raises ApiError for an unknown model, and if the last message is not the user's."""
    *earlier, last = (_said(message) for message in body.messages)
    if body.model == DESK:
        if last.role != "user":
            raise ApiError(400, "the last message must be the user's", "bad-messages", "messages")
        return RunningAnswer(
            lambda: desk.ask(last.text, owner=owner, conversation_id=body.conversation_id, earlier=earlier)
        )
    if body.model != desk.models().language:
        raise ApiError(404, f"there is no model {body.model!r}: see /v1/models", "model_not_found", "model")
    options = PlainOptions(
        max_tokens=body.longest,
        temperature=body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=body.stops,
    )
    return RunningAnswer(lambda: desk.complete([*earlier, last], options, owner=owner))


def _said(message: Message) -> Said:
    return Said("system" if message.role == "developer" else message.role, message.text)


def _end(asked: Replying) -> tuple[Answer | PlainAnswer, str, dict[str, Any]]:
    answer = asked.running.answer
    if isinstance(answer, PlainAnswer):
        return answer, answer.finish_reason, plain_fields(answer, asked.caller)
    notice = SYSTEM_LEFT_OUT if asked.has_system else None
    return answer, "length" if answer.is_cut else "stop", desk_fields(answer, asked.caller, notice)


async def _whole(request: Request, asked: Replying, pieces: AsyncIterator[str]) -> Response:
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
    answer, reason, extra = _end(asked)
    return JSONResponse(asked.reply.whole(text, reason, answer.usage, extra), headers={"cache-control": "no-store"})


async def _events(
    asked: Replying, first: str | None, pieces: AsyncIterator[str], include_usage: bool
) -> AsyncIterator[str]:
    try:
        yield asked.reply.piece({"role": "assistant", "content": first or ""})
        async for piece in pieces:
            yield asked.reply.piece({"content": piece})
        answer, reason, extra = _end(asked)
        yield asked.reply.piece({}, reason, **{DESK: extra})
        if include_usage:
            yield asked.reply.usage(answer.usage)
    except Exception as error:  # the status is already sent
        yield event(told(error).document)
    finally:
        asked.running.cancel()
    yield "data: [DONE]\n\n"
