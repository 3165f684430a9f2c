"""What a server refuses, and what readers get for it: one line that names the server and the cure.

The line goes to the log. So it has the server's status and code and none of its words, which may repeat the question.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from cache.errors import CacheError, EngineFull, PromptError, ServerFailed
from cache.remote.reply import Reply
from cache.remote.spec import ServerSpec

TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same may be asked again."""
_TOO_LONG = re.compile(
    r"context.?(length|size|window)|context_length_exceeded|exceed_context|max_model_len|maximum model length"
    r"|(prompt|input|request|messages?) (is |are )?too (long|large)|(prompt|input)[^.]{0,60}(exceeds?|longer than)",
    re.IGNORECASE,
)
_CODE = re.compile(r"[A-Za-z][A-Za-z_]{0,63}")
"""What codes of errors look like: a word, such as rate_limit_exceeded."""


class Refusal(Exception):
    """A server's answer that is no answer. message: in its own words, which are for no reader. code: its name for the
    error, if it has one. retry_after: seconds, if it names them.
    """

    def __init__(self, status: int, message: str, code: str = "", retry_after: float | None = None) -> None:
        super().__init__(status, code)
        self.status, self.message, self.code, self.retry_after = status, message, code, retry_after

    @property
    def is_too_long(self) -> bool:
        """Whether the prompt does not fit the model's context."""
        return self.status == 413 or (self.status in (400, 422, 500) and _TOO_LONG.search(self.message) is not None)

    @property
    def may_pass(self) -> bool:
        """Whether the same may be answered a little later."""
        return self.status in TRANSIENT and not self.is_too_long

    def as_error(self, spec: ServerSpec, known: tuple[str, ...] = ()) -> CacheError:
        """What readers get. known: names of the models that the server has, if it says so."""
        where, said = f"the model's server {spec.url}", ", ".join(filter(None, (str(self.status), self.code)))
        if self.status in (401, 403):
            cure = "set WARMDESK_OPENAI_API_KEY" if spec.key is None else "correct WARMDESK_OPENAI_API_KEY"
            return ServerFailed(f"{where} refused the key ({self.status}): {cure} in the desk's environment")
        if self.is_too_long:
            return PromptError(f"the prompt is too long for {spec.name} at {spec.url} ({said}): lower context_tokens")
        if self.status == 404:
            has = f"it has {', '.join(known[:5])}" if known else said
            return ServerFailed(f"{where} has no model {spec.name!r} or no chat ({has}): correct the setting model")
        if self.status == 429:
            return EngineFull(f"{where} is busy ({said}): try again soon")
        if self.may_pass:
            return ServerFailed(f"{where} cannot answer now ({said}): ask again, or look at its log")
        return ServerFailed(f"{where} refused the request ({said}): look at its log")


def refusal_of(response: httpx.Response) -> Refusal:
    """The refusal in a response whose body has been read."""
    text, wait = response.text, seconds_in(response.headers.get("retry-after"))
    return Refusal(response.status_code, message_in(text), code_in(text), wait)


def refusal_in(event: Mapping[str, object]) -> Refusal | None:
    """The refusal that came as an event of a stream, if it is one."""
    error = event.get("error")
    if not error:
        return None
    code = error.get("code") if isinstance(error, dict) else None
    text = json.dumps(event)
    return Refusal(code if isinstance(code, int) else 500, message_in(text), code_in(text))


def message_in(text: str) -> str:
    """What went wrong, from a body as OpenAI, Ollama, FastAPI and others write it."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    if isinstance(found, str):
        return found
    return json.dumps(found, ensure_ascii=False)


def code_in(text: str) -> str:
    """The name of the error in such a body: a code or a type; "" if it has none, or it is no name."""
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    error = found.get("error", found) if isinstance(found, dict) else None
    names = (error.get("code"), error.get("type")) if isinstance(error, dict) else ()
    return next((name for name in names if isinstance(name, str) and _CODE.fullmatch(name)), "")


def seconds_in(retry_after: str | None) -> float | None:
    """The wait that a header Retry-After asks for, in seconds or as a date; None if it asks for none."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def away(spec: ServerSpec, error: httpx.HTTPError) -> ServerFailed:
    """The server cannot be reached."""
    why = " ".join(str(error).split()) or type(error).__name__
    return ServerFailed(
        f"the model's server {spec.url} cannot be reached ({why}): start it, or correct the setting model"
    )


def silence(spec: ServerSpec, reply: Reply) -> str:
    """Why there is not a word in an answer that has ended."""
    model, is_cut = f"the model {spec.name} at {spec.url}", reply.finish_reason == "length"
    if reply.has_thoughts and is_cut:
        return f"{model} thought until the answer had its full length: turn its thinking off, or raise answer_tokens"
    if reply.has_thoughts:
        return f"{model} thought and then said nothing: ask again, or turn its thinking off"
    if reply.ending == "content_filter":
        return f"{model} said nothing: its server's filter of contents kept the answer back"
    return f"{model} gave an empty answer: ask again, or look at its server's log"


def thinks_too_long(spec: ServerSpec, seconds: float) -> str:
    """It thought for as long as an answer may take."""
    cure = "turn its thinking off, or raise answer_seconds"
    return f"the model {spec.name} at {spec.url} thought for {seconds:g} s and did not answer: {cure}"


def thinks_aloud(spec: ServerSpec) -> str:
    """Its thoughts come as its answer."""
    return (
        f"the model {spec.name} at {spec.url} gives its thoughts as its answer: turn its thinking off, or start its "
        "server with a parser for them"
    )
