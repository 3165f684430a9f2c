"""Parameters of a server, and its answers: text without thoughts, finish reason, token counts, and refusals.

Text between <think> and </think> at the very start is a thought and is not shown. Servers report reused tokens under
different names or not at all; a missing number is unknown, not 0. A refusal becomes one line that names the server and
the fix. It is logged, so it has the server's status and code but not its text, which can repeat the question.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from cache.engine.request import FinishReason, Usage
from cache.errors import CacheError, EngineFull, PromptError, ServerFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """A model server. url: OpenAI-compatible base URL, for example http://127.0.0.1:8000/v1. name: the model's name
    there. key: API key, never shown. context_tokens: maximum tokens of prompt and answer together; None: as reported.
    first_token_s: maximum time to the first token. session_headers: headers that identify the conversation, for routers
    with sticky sessions. cache_salt: send vLLM's field, which separates customers. cache_key: send OpenAI's
    prompt_cache_key.
    """

    url: str
    name: str
    key: str | None = field(default=None, repr=False)
    context_tokens: int | None = None
    first_token_s: float = 120.0
    session_headers: tuple[str, ...] = ()
    cache_salt: bool = False
    cache_key: bool = False


OPEN, CLOSE = "<think>", "</think>"


class Thoughts:
    """Removes thoughts from a text that arrives in pieces. has_any: True after the first thought."""

    def __init__(self) -> None:
        self.has_any = False
        self._is_over = False  # True: thoughts have ended, all further text is the answer
        self._held = ""

    def without(self, piece: str) -> str:
        if self._is_over:
            return piece
        self._held += piece
        if not self.has_any:
            begun = self._held.lstrip()
            if OPEN.startswith(begun):
                return ""
            if not begun.startswith(OPEN):
                return self._rest(self._held)
            self.has_any = True
        _, close, behind = self._held.partition(CLOSE)
        behind = behind.lstrip()
        return self._rest(behind) if close and behind else ""

    def end(self) -> str:
        """Return held-back text at the end of the answer, if it is not a thought."""
        return "" if self.has_any else self._rest(self._held)

    def _rest(self, text: str) -> str:
        self._is_over, self._held = True, ""
        return text


ENDINGS: dict[str, FinishReason] = {"length": "length", "max_tokens": "length"}
"""Finish reasons by the server's word for them. Any other word is a normal end ("stop")."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Fields with thoughts. First: vLLM, SGLang, llama.cpp. Second: OpenRouter, newer vLLM. Third: Ollama."""


class Reply:
    """Collects an answer from a server. text: the text so far, without thoughts. ending: the server's finish reason."""

    def __init__(self) -> None:
        self.text = self.ending = ""
        self._thoughts, self._thinks_apart = Thoughts(), False
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}

    def take(self, event: Mapping[str, Any]) -> str:
        """Add an event, or a whole reply that was not streamed. Returns the new text."""
        self._usage = _mapping(event.get("usage")) or self._usage
        self._timings = _mapping(event.get("timings")) or self._timings  # llama.cpp
        choice = _choice(event)
        said = _said(choice)
        self._thinks_apart = self._thinks_apart or any(said.get(name) for name in THOUGHTS)
        content = said.get("content")
        new = self._thoughts.without(content) if isinstance(content, str) else ""
        if (ending := choice.get("finish_reason")) is not None:
            self.ending = str(ending)
            new += self._thoughts.end()
        self.text += new
        return new

    @property
    def finish_reason(self) -> FinishReason:
        return ENDINGS.get(self.ending, "stop")

    @property
    def has_thoughts(self) -> bool:
        return self._thinks_apart or self._thoughts.has_any

    @property
    def usage(self) -> Usage:
        return usage_of(self._usage, self._timings)


def has_words(event: Mapping[str, Any]) -> bool:
    return any(isinstance(said, str) and said for name, said in _said(_choice(event)).items() if name != "role")


def says_why_it_ends(event: Mapping[str, Any]) -> bool:
    return _choice(event).get("finish_reason") is not None


def usage_of(usage: Mapping[str, Any], timings: Mapping[str, Any]) -> Usage:
    """Convert a server's token counts. Reused tokens count as prefix. If the server does not report reuse, `computed`
    and `prefix` are 0. If it does not report the prompt's length, `prompt_tokens` is 0.
    """
    cached = _first(
        _mapping(usage.get("prompt_tokens_details")).get("cached_tokens"),  # OpenAI, vLLM, SGLang, llama.cpp
        _mapping(usage.get("input_tokens_details")).get("cached_tokens"),
        usage.get("prompt_cache_hit_tokens"),  # DeepSeek
        usage.get("cache_read_input_tokens"),  # Anthropic
        usage.get("cached_tokens"),  # Moonshot
        timings.get("cache_n"),  # llama.cpp
    )
    prompt = _first(usage.get("prompt_tokens"), _anthropic_prompt(usage), _sum(timings, "cache_n", "prompt_n")) or 0
    prefix = min(cached or 0, prompt)
    return Usage(
        prompt_tokens=prompt,
        computed=0 if cached is None else prompt - prefix,
        prefix=prefix,
        completion_tokens=_first(usage.get("completion_tokens"), usage.get("output_tokens"), timings.get("predicted_n"))
        or 0,
    )


def _choice(event: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = event.get("choices")
    return _mapping(choices[0]) if isinstance(choices, list) and choices else {}


def _said(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the new part of a streamed message, or the whole message."""
    return _mapping(choice.get("delta") or choice.get("message"))


def _anthropic_prompt(usage: Mapping[str, Any]) -> int | None:
    """Return the sum of prompt tokens. Anthropic counts tokens read from or written to its cache separately."""
    apart = (usage.get(f"cache_{done}_input_tokens") for done in ("read", "creation"))
    given = _first(usage.get("input_tokens"))
    return None if given is None else given + sum(_first(number) or 0 for number in apart)


def _sum(values: Mapping[str, Any], *names: str) -> int | None:
    numbers = [_first(values.get(name)) for name in names]
    return None if None in numbers else sum(number or 0 for number in numbers)


def _first(*values: object) -> int | None:
    counts = (value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0)
    return next(counts, None)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})  # status codes after which a request may be retried
_TOO_LONG = re.compile(
    r"context.?(length|size|window)|context_length_exceeded|exceed_context|max_model_len|maximum model length"
    r"|(prompt|input|request|messages?) (is |are )?too (long|large)|(prompt|input)[^.]{0,60}(exceeds?|longer than)",
    re.IGNORECASE,
)
LONGEST_TOLD_S = 3600.0  # maximum wait that is passed on from a server to callers
_CODE = re.compile(r"[A-Za-z][A-Za-z_]{0,63}")  # pattern of error codes: a word, such as rate_limit_exceeded


class Refusal(Exception):
    """Raised for a refused request. message: the server's text, never shown. code: the server's error code, if any.
    retry_after: requested wait in seconds, if given.
    """

    def __init__(self, status: int, message: str, code: str = "", retry_after: float | None = None) -> None:
        super().__init__(status, code)
        self.status, self.message, self.code, self.retry_after = status, message, code, retry_after

    @property
    def is_too_long(self) -> bool:
        return self.status == 413 or (self.status in (400, 422, 500) and _TOO_LONG.search(self.message) is not None)

    @property
    def may_pass(self) -> bool:
        return self.status in TRANSIENT and not self.is_too_long

    def as_error(self, spec: ServerSpec, known: tuple[str, ...] = ()) -> CacheError:
        """Return the error to show to people. known: names of the server's models, if it lists them."""
        where, said = f"the model's server {spec.url}", ", ".join(filter(None, (str(self.status), self.code)))
        if self.status in (401, 403):
            cure = "set WARMDESK_OPENAI_API_KEY" if spec.key is None else "correct WARMDESK_OPENAI_API_KEY"
            return ServerFailed(f"{where} refused the key ({self.status}): {cure} in Warmdesk's environment")
        if self.is_too_long:
            return PromptError(f"the prompt is too long for {spec.name} at {spec.url} ({said}): lower context_tokens")
        if self.status == 404:
            has = f"it has {', '.join(known[:5])}" if known else said
            return ServerFailed(f"{where} has no model {spec.name!r} or no chat API ({has}): correct the setting model")
        if self.status == 429:
            return self._later(EngineFull(f"{where} is busy ({said}): try again soon"))
        if self.may_pass:
            return self._later(ServerFailed(f"{where} cannot answer now ({said}): ask again, or look at its log"))
        return ServerFailed(f"{where} refused the request ({said}): look at its log")

    def _later(self, error: CacheError) -> CacheError:
        error.wait_s = min(self.retry_after or 0.0, LONGEST_TOLD_S)
        return error


def refusal_of(response: httpx.Response) -> Refusal:
    return Refusal(response.status_code, *said_in(response.text), seconds_in(response.headers.get("retry-after")))


def refusal_in(event: Mapping[str, object]) -> Refusal | None:
    error = event.get("error")
    if not error:
        return None
    code = error.get("code") if isinstance(error, dict) else None
    return Refusal(code if isinstance(code, int) else 500, *said_in(json.dumps(event)))


def said_in(text: str) -> tuple[str, str]:
    """Return the error message of a body, and the error's code or type ("" if missing). Reads the formats of OpenAI,
    Ollama, FastAPI and others.
    """
    try:
        found = json.loads(text)
    except ValueError:
        return text, ""
    error = found.get("error", found) if isinstance(found, dict) else None
    names = (error.get("code"), error.get("type")) if isinstance(error, dict) else ()
    code = next((name for name in names if isinstance(name, str) and _CODE.fullmatch(name)), "")
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False), code


def seconds_in(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; None without one."""
    with suppress(ValueError, TypeError):
        return max(0.0, float(retry_after or ""))
    with suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(retry_after or "") - datetime.now(UTC)).total_seconds())
    return None


def away(spec: ServerSpec, error: httpx.HTTPError) -> ServerFailed:
    why = " ".join(str(error).split()) or type(error).__name__
    return ServerFailed(
        f"the model's server {spec.url} cannot be reached ({why}): start it, or correct the setting model"
    )


def silence(spec: ServerSpec, reply: Reply) -> str:
    model, is_cut = f"the model {spec.name} at {spec.url}", reply.finish_reason == "length"
    if reply.has_thoughts and is_cut:
        return f"{model} thought until the answer had its full length: turn its thinking off, or raise answer_tokens"
    if reply.has_thoughts:
        return f"{model} thought but returned no answer: ask again, or turn its thinking off"
    if reply.ending == "content_filter":
        return f"{model} returned no text: its server's content filter removed the answer"
    return f"{model} returned an empty answer: ask again, or look at its server's log"


def thinks_too_long(spec: ServerSpec, seconds: float) -> str:
    cure = "turn its thinking off, or raise answer_seconds"
    return f"the model {spec.name} at {spec.url} thought for {seconds:g} s and did not answer: {cure}"


def thinks_aloud(spec: ServerSpec) -> str:
    return (
        f"the model {spec.name} at {spec.url} returns its thoughts as its answer: turn its thinking off, or start its "
        "server with a reasoning parser"
    )
