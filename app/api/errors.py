"""Errors as OpenAI's clients know them: {"error": {message, type, param, code}} with the right status.

Only what a caller may know leaves here: errors of the desk that are listed below, each in words that fit a caller;
everything else is one line, and the log says more.
"""

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from app.domain.errors import DeskError
from app.domain.logs import request_id

log = logging.getLogger(__name__)

BUSY_S = 5
"""Seconds after which a caller may try again when the desk was busy."""
UNEXPECTED = "something went wrong on our side"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "requests",
    500: "server_error",
    503: "server_error",
}
"""OpenAI's name for the kind of an error, by status; for all others it is invalid_request_error."""


@dataclass(frozen=True, slots=True)
class _Known:
    """How a DeskError is told. message: in place of its own, which names settings or commands. code: OpenAI's name, if
    it has one.
    """

    status: int
    message: str | None = None
    code: str | None = None


KNOWN = {
    "question-empty": _Known(400, "the last message is empty: write a question"),
    "question-too-long": _Known(400, code="context_length_exceeded"),
    "context-full": _Known(400, "the question is too long for the model: shorten it", "context_length_exceeded"),
    "prompt-too-long": _Known(400, code="context_length_exceeded"),
    "bad-messages": _Known(400),
    "bad-feedback": _Known(400),
    "bad-name": _Known(400),
    "unreadable": _Known(400),
    "upload-too-large": _Known(413),
    "conversation-unknown": _Known(404, "there is no such conversation"),
    "no-such-conversation": _Known(404, "there is no such conversation"),
    "no-such-message": _Known(404, "there is no such answer"),
    "too-many": _Known(409, "there are too many conversations: delete some first"),
    "with-person": _Known(409, "a person answers this conversation: send to /v1/handoffs/ID/messages"),
    "handoff-off": _Known(409, "no person steps in at this desk"),
    "outside-hours": _Known(409, "nobody answers now: send an e-mail address"),
    "bad-email": _Known(400),
    "document-unknown": _Known(404, "there is no such document"),
    "ingestion-running": _Known(503, "documents are being taken in already: try again when that is done"),
    "engine-full": _Known(429, "the desk is busy: try again soon", "rate_limit_exceeded"),
    "engine": _Known(503, "the desk cannot answer now: try again soon"),
    "no-answer": _Known(503, "the answer was stopped before it began"),
}
"""What callers may learn of, by the code of the DeskError."""
_NO_DATABASE = _Known(503, "the desk is busy: try again soon")


@dataclass(eq=False)
class ApiError(Exception):
    """A request that is answered with an error. param: the field at fault. headers: sent as well."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """The JSON that is sent."""
        kind = TYPES.get(self.status, "invalid_request_error")
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": {**told, **({"request_id": id_} if (id_ := request_id()) else {})}}

    @property
    def response(self) -> JSONResponse:
        """The answer to the request."""
        return JSONResponse(self.document, self.status, headers={"cache-control": "no-store", **self.headers})


def told(error: Exception) -> ApiError:
    """An error in words for a caller."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):  # of the framework: a body that is no text, a form that is none
        return ApiError(error.status_code, str(error.detail), "invalid_request")
    if not isinstance(error, DeskError) or (known := _known(error)) is None:
        log.error("a request of the API failed", exc_info=error)
        return ApiError(500, UNEXPECTED)
    headers = {"retry-after": str(BUSY_S)} if known.status in (429, 503) else {}
    return ApiError(known.status, known.message or str(error), known.code or error.code, headers=headers)


def _known(error: DeskError) -> _Known | None:
    if error.is_of_database:
        if not error.is_away:
            log.warning("%s", error)
        return _NO_DATABASE
    return KNOWN.get(error.code)


def _invalid(error: RequestValidationError) -> ApiError:
    """The first of the mistakes in a body or its address. Pydantic's words, without its own prefix."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON", "invalid_json")
    message = first["msg"].removeprefix("Value error, ")
    where = ".".join(place)
    return ApiError(400, f"{where}: {message}" if where else message, "invalid_value", where or None)


class ApiRoute(APIRoute):
    """A route whose errors are told as above."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of FastAPI, within what tells errors."""
        handle = super().get_route_handler()

        async def telling(request: Request) -> Response:
            try:
                return await handle(request)
            except Exception as error:  # outermost: whatever fails becomes an answer
                return told(error).response

        return telling
