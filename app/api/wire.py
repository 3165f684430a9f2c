"""The JSON of the API: errors, request bodies and responses with OpenAI's names. Warmdesk's own fields are in the
object "warmdesk".

An error has the form {"error": {message, type, param, code}} and the right status. Only the errors in `KNOWN` are
described to the caller; any other error is one general line, and the log has its cause. OpenAI's request fields that
change nothing here are ignored (`metadata`, ...); a field that would change the answer is refused by name. Paths of
documents are never sent: a document has an id and a file name.
"""

import base64
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import PurePath
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from starlette.exceptions import HTTPException

from app.desk.output import lookup_json, usage_json
from app.domain.answers import (
    Answer,
    AnswerTimings,
    AnswerUsage,
    ConversationSummary,
    Embedded,
    ModelNames,
    PlainAnswer,
    TextLogprob,
    Turn,
)
from app.domain.callers import Caller, Id, Line, LongText
from app.domain.documents import StoredDocument
from app.domain.errors import DeskError
from app.domain.logs import request_id

log = logging.getLogger(__name__)

BUSY_S = 5  # seconds until the next try if the server was busy; more if a model server asks for more
UNEXPECTED = "an unexpected error occurred in the server"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "requests",
    500: "server_error",
    503: "server_error",
}
"""OpenAI's type of an error, by status; all others are invalid_request_error."""


class _Known(NamedTuple):
    """A DeskError as a caller sees it. message, code: used instead of its own, for example OpenAI's error code."""

    status: int
    message: str | None = None
    code: str | None = None


KNOWN = {
    "question-empty": _Known(400, "the last message is empty: write a question"),
    "question-too-long": _Known(400, code="context_length_exceeded"),
    "context-full": _Known(400, "the question is too long for the model: shorten it", "context_length_exceeded"),
    "prompt-too-long": _Known(400, code="context_length_exceeded"),
    "bad-messages": _Known(400),
    "bad-logit-bias": _Known(400),
    "bad-logprobs": _Known(400),
    "bad-feedback": _Known(400),
    "bad-name": _Known(400),
    "unreadable": _Known(400),
    "upload-too-large": _Known(413),
    "conversation-unknown": _Known(404, "there is no such conversation"),
    "no-such-conversation": _Known(404, "there is no such conversation"),
    "no-such-message": _Known(404, "there is no such answer"),
    "too-many": _Known(409, "there are too many conversations: delete some first"),
    "with-person": _Known(409, "an agent answers this conversation: send to /v1/handoffs/ID/messages"),
    "handoff-off": _Known(409, "hand-off to a person is disabled"),
    "outside-hours": _Known(409, "no agent is available now: send an e-mail address"),
    "bad-email": _Known(400),
    "document-unknown": _Known(404, "there is no such document"),
    "ingestion-running": _Known(503, "documents are already being added: try again when that is done"),
    "engine-full": _Known(429, "the server is busy: try again soon", "rate_limit_exceeded"),
    "engine": _Known(503, "the server cannot answer now: try again soon"),
    "no-answer": _Known(503, "the answer was stopped before it began"),
}
"""Errors that callers may see, by the code of the DeskError."""
_NO_DATABASE = _Known(503, "the server is busy: try again soon")


@dataclass(eq=False)
class ApiError(Exception):
    """An error response. param: the wrong field. headers: further headers to send."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error")
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": {**told, **({"request_id": id_} if (id_ := request_id()) else {})}}

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.document, self.status, headers={"cache-control": "no-store", **self.headers})


def told(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):  # from the framework: a body that is not text, or not a form
        return ApiError(error.status_code, str(error.detail), "invalid_request")
    if not isinstance(error, DeskError) or (known := _known(error)) is None:
        log.error("an API request failed", exc_info=error)
        return ApiError(500, UNEXPECTED)
    headers = {"retry-after": str(max(BUSY_S, ceil(error.wait_s)))} if known.status in (429, 503) else {}
    return ApiError(known.status, known.message or str(error), known.code or error.code, headers=headers)


def _known(error: DeskError) -> _Known | None:
    if error.is_of_database:
        if not error.is_away:
            log.warning("%s", error)
        return _NO_DATABASE
    return KNOWN.get(error.code)


def _invalid(error: RequestValidationError) -> ApiError:
    """Return the first mistake in a body or a URL, in Pydantic's words without its prefix."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON", "invalid_json")
    message = first["msg"].removeprefix("Value error, ")
    where = ".".join(place)
    return ApiError(400, f"{where}: {message}" if where else message, "invalid_value", where or None)


class ApiRoute(APIRoute):
    """A route that returns every error as the response of an `ApiError`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def telling(request: Request) -> Response:
            try:
                return await handle(request)
            except Exception as error:  # outermost: every failure becomes a response
                return told(error).response

        return telling


MOST_MESSAGES, MOST_PARTS = 1000, 1000
DESK = "warmdesk"  # the model name of Warmdesk, and the field with its own values
MOST_INPUTS = 256
MOST_STOPS, MOST_BIASES = 4, 300
UNSUPPORTED = {
    "tools": "tools are not supported",
    "functions": "functions are not supported",
    "audio": "only text is supported",
    "prediction": "predicted outputs are not supported",
}
"""Fields that must be absent or empty, and the reason."""


class TextPart(BaseModel):
    """A part of a message's content."""

    type: Literal["text"]
    text: LongText


class Message(BaseModel):
    """A message of a conversation. Its text never becomes structure of the prompt."""

    role: Literal["system", "developer", "user", "assistant"]
    content: LongText | Annotated[list[TextPart], Field(max_length=MOST_PARTS)]

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, value: object) -> object:
        kinds = [part.get("type") for part in value if isinstance(part, dict)] if isinstance(value, list) else []
        if other := [kind for kind in kinds if isinstance(kind, str) and kind != "text"]:
            raise ValueError(f"only text parts are supported, not {other[0][:40]!r}")
        return value

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    """Options of a stream. include_usage: send the token counts in a last chunk, which has no choices."""

    include_usage: bool = False


class OfUser(BaseModel):
    """A body that may name one of the caller's own users."""

    user: Annotated[str | None, Field(max_length=512, description="Separates your users' conversations.")] = None


class ChatRequest(OfUser):
    """The body of /v1/chat/completions."""

    model_config = ConfigDict(extra="allow")

    model: Line = Field(description='"warmdesk" for answers from the documents, or the name of the language model.')
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    conversation_id: Annotated[
        Id | None,
        Field(description="Continues a stored conversation; its history is used, not the earlier messages."),
    ] = None
    max_tokens: Annotated[int | None, Field(ge=1, description="Only for the language model.")] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1, description="Newer name of max_tokens.")] = None
    temperature: Annotated[float | None, Field(ge=0, le=2, description="Only for the language model.")] = None
    top_p: Annotated[float | None, Field(gt=0, le=1, description="Only for the language model.")] = None
    min_p: Annotated[float | None, Field(ge=0, le=1, description="Only for the language model.")] = None
    repetition_penalty: Annotated[float | None, Field(ge=1, le=100, description="Only for the language model.")] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2, description="Only for the language model.")] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2, description="Only for the language model.")] = None
    logit_bias: Annotated[
        dict[int, Annotated[float, Field(ge=-100, le=100)]] | None,
        Field(max_length=MOST_BIASES, description="Only for the language model: added to logits, by token id."),
    ] = None
    logprobs: Annotated[bool | None, Field(description="Only for the language model.")] = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=20, description="Needs logprobs.")] = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63, description="Only for the language model.")] = None
    stop: Annotated[Line | list[Line] | None, Field(description="Only for the language model; up to 4.")] = None
    n: Annotated[int | None, Field(ge=1, le=1, description="Only 1 is supported.")] = None

    @field_validator("stop")
    @classmethod
    def _stops_something(cls, stop: str | list[str] | None) -> str | list[str] | None:
        stops = [stop] if isinstance(stop, str) else stop or []
        if len(stops) > MOST_STOPS:
            raise ValueError(f"at most {MOST_STOPS} stop strings are allowed")
        if "" in stops:
            raise ValueError("an empty stop string would end every answer at once")
        return stop

    @model_validator(mode="after")
    def _supported(self) -> "ChatRequest":
        given: dict[str, Any] = self.model_extra or {}
        for name, why in UNSUPPORTED.items():
            if given.get(name):
                raise ValueError(f"{name}: {why}")
        if self.logprobs and self.model == DESK:
            raise ValueError("logprobs: only the language model returns them, not warmdesk")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: set logprobs to true")
        kind = given.get("response_format")
        if isinstance(kind, dict) and kind.get("type") not in (None, "text"):
            raise ValueError("response_format: only text is supported")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def longest(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class EmbeddingRequest(OfUser):
    """The body of /v1/embeddings."""

    model: Line = Field(description="The name of the embedder; see /v1/models.")
    input: Annotated[LongText | list[LongText], Field(description="One text, or up to 256.")]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(description="Only the embedder's own number.")] = None
    input_type: Annotated[
        Literal["document", "query"], Field(description="Some embedders treat questions differently.")
    ] = "document"

    @field_validator("input", mode="before")
    @classmethod
    def _texts(cls, value: object) -> object:
        if isinstance(value, list) and value and isinstance(value[0], int | list):
            raise ValueError("token ids are not supported: send text")
        return value

    @field_validator("input")
    @classmethod
    def _enough(cls, value: str | list[str]) -> str | list[str]:
        texts = [value] if isinstance(value, str) else value
        if not texts or not all(texts):
            raise ValueError("an empty text has no embedding")
        if len(texts) > MOST_INPUTS:
            raise ValueError(f"at most {MOST_INPUTS} texts are allowed in one request")
        return value

    @property
    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


class FeedbackRequest(OfUser):
    """The body of /v1/feedback. value: None removes the rating."""

    message_id: Id
    value: Literal["up", "down"] | None
    reason: Annotated[str, Field(max_length=500)] = ""


class HandoffRequest(OfUser):
    """The body of POST /v1/handoffs."""

    conversation_id: Annotated[Id | None, Field(description="Default: a new conversation.")] = None
    message: Annotated[str, Field(max_length=10_000, description="The customer's message.")] = ""
    email: Annotated[str, Field(max_length=254, description="The customer's e-mail address for the answer.")] = ""


class HandoffMessage(OfUser):
    """The body of POST /v1/handoffs/ID/messages."""

    message: Annotated[str, Field(min_length=1, max_length=10_000)]


SYSTEM_LEFT_OUT = "Warmdesk has its own instructions: the system messages were ignored."


def file_name(path: str) -> str:
    return PurePath(path.replace("\\", "/")).name


def usage_reply(usage: AnswerUsage) -> dict[str, Any]:
    """Return tokens by source. cached_tokens = session + prefix + module; null if a remote server reports no count."""
    tokens = usage_json(usage)
    del tokens["computed_tokens"]
    return {**tokens, "total_tokens": usage.prompt_tokens + usage.completion_tokens}


def logprobs_reply(answer: Answer | PlainAnswer) -> dict[str, Any] | None:
    """Return log probabilities in OpenAI's form; None if there are none."""
    if not isinstance(answer, PlainAnswer) or not answer.logprobs:
        return None

    def told(one: TextLogprob) -> dict[str, Any]:
        return {"token": one.text, "logprob": one.logprob, "bytes": list(one.text.encode())}

    return {"content": [{**told(one), "top_logprobs": [told(other) for other in one.top]} for one in answer.logprobs]}


def times(timings: AnswerTimings, caller: Caller) -> dict[str, float]:
    """Return the milliseconds of each stage. Times of search and memory reveal what others asked recently, so only keys
    of the scope admin get them exactly.
    """
    shown = asdict(timings)
    if "admin" not in caller.scopes:
        shown |= {stage: round(shown[stage], -1) for stage in ("retrieve", "load")}
    return shown


def desk_fields(answer: Answer, caller: Caller, notice: str | None = None) -> dict[str, Any]:
    """Return the fields that only Warmdesk has. notice: to add to the answer's own."""
    notices = [one for one in (answer.notice, notice) if one]
    return {
        "conversation_id": answer.conversation_id,
        "message_id": answer.message_id,
        "outcome": answer.outcome,
        "sources": [{**asdict(one), "document": file_name(one.document)} for one in answer.citations],
        "modules": [{**asdict(one), "document": file_name(one.document)} for one in answer.modules],
        "timings_ms": times(answer.timings, caller),
        "policy": answer.policy,
        "exact": answer.exact,
        "grounding": answer.grounding,
        "lookup": lookup_json(answer.lookup),
        "notice": " ".join(notices) or None,
    }


def models_reply(names: ModelNames, started: int) -> list[dict[str, Any]]:
    """Return the models for OpenAI's route /v1/models. started: start time of the server, in seconds since 1970."""
    kinds = ((DESK, "desk"), (names.language, "language"), (names.embedder, "embedding"))
    return [{"id": name, "object": "model", "created": started, "owned_by": DESK, "kind": kind} for name, kind in kinds]


def embeddings_reply(embedded: Embedded, model: str, *, in_base64: bool) -> dict[str, Any]:
    """Return vectors in the order of their texts. in_base64: as little-endian float32."""
    rows = [base64.b64encode(row.astype("<f4")).decode() if in_base64 else row.tolist() for row in embedded.vectors]
    data = [{"object": "embedding", "index": number, "embedding": row} for number, row in enumerate(rows)]
    usage = {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens}
    return {**listed(data), "model": model, "usage": usage}


def document_reply(document: StoredDocument) -> dict[str, Any]:
    return {
        "id": str(document.id),
        "object": "document",
        "name": file_name(document.path),
        "title": document.title,
        "collection": document.collection,
        "passages": document.num_passages,
        "loaded_at": document.loaded_at.isoformat(),
        "content_hash": document.content_hash,
    }


def summary_reply(summary: ConversationSummary) -> dict[str, Any]:
    return {
        "id": summary.id,
        "object": "conversation",
        "title": summary.title,
        "updated": summary.updated.isoformat(),
        "messages": summary.turns,
    }


def turn_reply(turn: Turn, caller: Caller) -> dict[str, Any]:
    """Return a message of a stored conversation. An answer has Warmdesk's own fields."""
    message: dict[str, Any] = {
        "id": turn.message_id,
        "role": turn.role,
        "content": turn.text if turn.answer is None else turn.answer.shown,
        "created": turn.created.isoformat(),
    }
    if turn.answer is not None:
        message |= {"feedback": turn.feedback, "usage": usage_reply(turn.answer.usage)}
        message[DESK] = desk_fields(turn.answer, caller)
    return message


def listed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": list(rows)}


def not_found(what: str) -> ApiError:
    """Return the error for a thing that does not exist or has another owner."""
    return ApiError(404, f"there is no such {what}", f"{what}-unknown")
