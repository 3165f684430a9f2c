"""Thoughts that a model writes before its answer, between <think> and </think>: no reader gets them.

Only what stands at the very beginning is a thought; later these are words like any others. Not covered: thoughts that a
server sends apart (`reasoning_content`), which never were part of the text.

What a server has said so far: the text of an answer, why it ended, and what it counted.

Servers count reused tokens under different names, or not at all. What is not said is unknown, which is not 0.

What a server refuses, and what readers get for it: one line that names the server and the cure.

The line goes to the log. So it has the server's status and code and none of its words, which may repeat the question.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from cache.engine.request import FinishReason, Usage
from cache.errors import CacheError, EngineFull, PromptError, ServerFailed
from cache.remote.spec import ServerSpec

OPEN, CLOSE = "<think>", "</think>"


class Thoughts:
    """Leaves thoughts out of a text that comes in pieces. has_any: whether there were some."""

    def __init__(self) -> None:
        self.has_any = False
        self._is_over = False  # from here on all is text
        self._held = ""

    def without(self, piece: str) -> str:
        """What of the text is to be read so far, and was not given before."""
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
        """What was held back, and began no thought, when there is no more."""
        return "" if self.has_any else self._rest(self._held)

    def _rest(self, text: str) -> str:
        self._is_over, self._held = True, ""
        return text


ENDINGS: dict[str, FinishReason] = {"length": "length", "max_tokens": "length"}
"""How an answer ended, by the server's word; any other is an ordinary end."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Fields in which servers send thoughts: vLLM, SGLang, llama.cpp; OpenRouter, newer vLLM; Ollama."""


class Reply:
    """An answer as it comes. text: so far, without thoughts. ending: why it ended, in the server's word."""

    def __init__(self) -> None:
        self.text = self.ending = ""
        self._thoughts, self._thinks_apart = Thoughts(), False
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}

    def take(self, event: Mapping[str, Any]) -> str:
        """Take over an event, or a whole reply that was not streamed; gives the text that is new."""
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
        """The same for the engine."""
        return ENDINGS.get(self.ending, "stop")

    @property
    def has_thoughts(self) -> bool:
        """Whether the model thought before it answered."""
        return self._thinks_apart or self._thoughts.has_any

    @property
    def is_thought(self) -> bool:
        """Whether what was taken for the answer is a thought: its prompt has the beginning, it has the end."""
        return CLOSE in self.text

    @property
    def usage(self) -> Usage:
        """What the server counted; see `usage_of`."""
        return usage_of(self._usage, self._timings)


def has_words(event: Mapping[str, Any]) -> bool:
    """Whether the model said something in an event, be it only thinking."""
    return any(isinstance(said, str) and said for name, said in _said(_choice(event)).items() if name != "role")


def says_why_it_ends(event: Mapping[str, Any]) -> bool:
    """Whether it is the last event with words."""
    return _choice(event).get("finish_reason") is not None


def usage_of(usage: Mapping[str, Any], timings: Mapping[str, Any]) -> Usage:
    """A server's numbers as ours. What it reused is an exact prefix. If it does not say how much that is, no token
    counts as computed or as reused; if it says nothing of the prompt, `prompt_tokens` is 0.
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
    """What is new, or the whole message of a reply that was not streamed."""
    return _mapping(choice.get("delta") or choice.get("message"))


def _anthropic_prompt(usage: Mapping[str, Any]) -> int | None:
    """There, tokens that were read from the cache or written to it are counted apart."""
    apart = (usage.get(f"cache_{done}_input_tokens") for done in ("read", "creation"))
    given = _first(usage.get("input_tokens"))
    return None if given is None else given + sum(_first(number) or 0 for number in apart)


def _sum(values: Mapping[str, Any], *names: str) -> int | None:
    numbers = [_first(values.get(name)) for name in names]
    return None if None in numbers else sum(number or 0 for number in numbers)


def _first(*values: object) -> int | None:
    """The first that is a count."""
    counts = (value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0)
    return next(counts, None)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


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
