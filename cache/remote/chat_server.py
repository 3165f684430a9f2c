"""An OpenAI-compatible server over HTTP: bodies of requests, streamed events, and facts about its models.

Strict servers refuse unknown fields; a refused field is omitted from then on. A failure before the first token is
retried after the delay that the server requests; later failures are not retried. Every wait has a limit. Event lines
end in LF or CRLF only. (httpx also splits at U+2028, which some servers send.) Out of scope: answers (`reply`).
"""

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx

from cache.engine.request import Request
from cache.errors import ServerFailed
from cache.memory.keys import digest
from cache.remote.reply import Refusal, ServerSpec, away, has_words, refusal_in, refusal_of, says_why_it_ends

OPTIONAL = (
    *("stream_options", "cache_salt", "prompt_cache_key"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("top_k", "top_p", "min_p", "seed", "stop", "temperature"),
)
"""Fields that are omitted if the server refuses them."""
LONGEST, NEW_LONGEST = "max_tokens", "max_completion_tokens"  # some OpenAI models accept only the second name


class Bodies:
    """Makes the bodies of requests to one server, and remembers the fields that it refuses."""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec, self._refused = spec, set[str]()

    def of(self, request: Request, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
        sampling, spec = request.sampling, self._spec
        body: dict[str, Any] = {
            "model": spec.name,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            LONGEST: sampling.max_tokens,
            "temperature": sampling.temperature,
        }
        for name, value, default in (
            ("top_p", sampling.top_p, 1.0),
            ("top_k", sampling.top_k, 0),
            ("min_p", sampling.min_p, 0.0),
            ("repetition_penalty", sampling.repetition_penalty, 1.0),
            ("presence_penalty", sampling.presence_penalty, 0.0),
            ("frequency_penalty", sampling.frequency_penalty, 0.0),
            ("logit_bias", {str(token): value for token, value in sampling.logit_bias}, {}),
            ("seed", sampling.seed, None),
            ("stop", list(sampling.stop), []),
        ):
            if value != default:
                body[name] = value
        if spec.cache_salt:
            body["cache_salt"] = name_of(request.tenant)
        if spec.cache_key and request.session is not None:
            body["prompt_cache_key"] = name_of(request.session)
        return self._accepted(body)

    def without_refused(self, body: dict[str, Any], message: str) -> dict[str, Any] | None:
        """Return the body without the optional fields that a refusal names; None if it names no field."""
        named = {name for name in (*OPTIONAL, LONGEST) if name in body and re.search(rf"\b{name}\b", message)}
        if NEW_LONGEST not in message:
            named.discard(LONGEST)
        self._refused |= named
        return self._accepted(body) if named else None

    def _accepted(self, body: dict[str, Any]) -> dict[str, Any]:
        names = {name: NEW_LONGEST if name == LONGEST and name in self._refused else name for name in body}
        return {new: body[name] for name, new in names.items() if new not in self._refused}


def headers_of(request: Request, spec: ServerSpec) -> dict[str, str]:
    return {} if request.session is None else dict.fromkeys(spec.session_headers, name_of(request.session))


def name_of(secret: str) -> str:
    """Return a name for a conversation or customer: always the same, but it does not reveal their id."""
    return digest("elsewhere", secret).partition(":")[2][:32]


async def data_of(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """Yield the data of each event. A last event without an empty line at its end is included."""
    lines: list[str] = []
    async with aclosing(_lines_of(chunks)) as found:
        async for line in found:
            field, _, value = line.partition(":")
            if field == "data":
                lines.append(value.removeprefix(" "))
            elif not line and lines:
                yield "\n".join(lines)
                lines = []
    if lines:
        yield "\n".join(lines)


async def _lines_of(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    rest = b""
    async for chunk in chunks:
        *ended, rest = (rest + chunk).split(b"\n")
        for line in ended:
            yield _text_of(line)
    if rest:
        yield _text_of(rest)


def _text_of(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")


CONNECT_S, SEND_S, BETWEEN_S, LOOK_S = 5.0, 30.0, 60.0, 5.0
"""Time limits in seconds: for connecting, sending, the next token, and requests for facts about the server."""
TRIES, FIRST_WAIT_S, LONGEST_WAIT_S = 3, 0.5, 20.0
"""Attempts per answer, the first wait between them, and the longest wait that a server may request."""
CONTEXT_NAMES = ("max_model_len", "context_window", "context_length", "max_context_length")
"""Names of the field for the context length in different servers' lists of models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts about a server. models: their names. context_tokens: context length of the used model, if reported."""

    models: tuple[str, ...] = ()
    context_tokens: int | None = None


class ChatServer:
    """The connection to one server. All methods run in one event loop."""

    def __init__(self, spec: ServerSpec, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """transport: replaces the network in tests."""
        self._spec, self.bodies = spec, Bodies(spec)
        self._client = httpx.AsyncClient(
            headers={} if spec.key is None else {"authorization": f"Bearer {spec.key}"},
            timeout=httpx.Timeout(None, connect=CONNECT_S, write=SEND_S),
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def events(self, body: dict[str, Any], headers: Mapping[str, str]) -> AsyncGenerator[Mapping[str, Any]]:
        """Yield the events of an answer. Raises Refusal if the server refuses, and CacheError for other failures."""
        tried, has_begun = 0, False
        while True:
            wait: float | None = None
            error: Exception
            try:
                async with aclosing(self._tried(body, headers)) as events:
                    async for event in events:
                        has_begun = has_begun or has_words(event)
                        yield event
                return
            except Refusal as refusal:
                error, wait = refusal, refusal.retry_after
                if refusal.status in (400, 422) and not (has_begun or refusal.is_too_long):
                    fewer = self.bodies.without_refused(body, refusal.message)
                    if fewer is not None:
                        body = fewer
                        continue
                if not refusal.may_pass:
                    raise
            except httpx.HTTPError as failure:
                error = away(self._spec, failure)
                if has_begun:
                    broken = "stopped in the middle of an answer: ask again"
                    raise ServerFailed(f"the model's server {self._spec.url} {broken}") from failure
            tried += 1
            if has_begun or tried == TRIES or (wait or 0) > LONGEST_WAIT_S:
                raise error
            await asyncio.sleep(max(wait or 0, FIRST_WAIT_S * 2 ** (tried - 1) * random.uniform(0.8, 1.2)))

    async def _tried(self, body: dict[str, Any], headers: Mapping[str, str]) -> AsyncGenerator[Mapping[str, Any]]:
        """Make one attempt. A stream that ends without [DONE] must have a finish reason. Raises Refusal,
        httpx.HTTPError, ServerFailed.
        """
        clock, spec = asyncio.get_running_loop().time, self._spec
        wait, has_begun, has_ended = spec.first_token_s, False, False
        deadline = clock() + wait
        request = self._client.build_request("POST", f"{spec.url}/chat/completions", json=body, headers=headers)
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._client.send(request, stream=True)
            async with aclosing(response):
                if response.status_code != httpx.codes.OK:
                    async with asyncio.timeout(LOOK_S):
                        await response.aread()
                    raise refusal_of(response)
                async with aclosing(self._data(response)) as events:
                    while True:
                        data = await _following(events, deadline, has_ended)
                        if data is None and not has_ended:
                            raise httpx.RemoteProtocolError("the stream ended early")
                        if data is None or data.strip() == "[DONE]":
                            return
                        event = self._read(data, has_begun)
                        has_begun = has_begun or has_words(event)
                        has_ended = has_ended or says_why_it_ends(event)
                        if has_ended or has_words(event):
                            wait = LOOK_S if has_ended else BETWEEN_S
                            deadline = clock() + wait
                        yield event
        except TimeoutError as error:
            said = f"sent nothing for {wait:g} s: it may be overloaded, ask again"
            raise ServerFailed(f"the model's server {spec.url} {said}") from error

    async def _data(self, response: httpx.Response) -> AsyncGenerator[str]:
        """Yield the data of each event, or the whole body if the server does not stream."""
        if "json" in response.headers.get("content-type", ""):
            yield (await response.aread()).decode(errors="replace")
            return
        async with aclosing(data_of(response.aiter_bytes())) as events:
            async for data in events:
                yield data

    def _read(self, data: str, has_begun: bool) -> Mapping[str, Any]:
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            cure = "ask again" if has_begun else "correct its URL"
            raise ServerFailed(f"the model's server {self._spec.url} sent invalid chat events: {cure}")
        if (refusal := refusal_in(event)) is not None:
            raise refusal
        return event

    # --- facts about the server ------------------------------------------------------------------------------

    async def look(self) -> ServerFacts:
        try:
            models = await self._client.get(f"{self._spec.url}/models", timeout=LOOK_S)
        except httpx.HTTPError as error:
            raise away(self._spec, error) from error
        if models.status_code in (401, 403) or models.status_code >= 500:
            raise refusal_of(models).as_error(self._spec)
        rows = [row for row in _listed(models) if isinstance(row.get("id"), str)]
        own = next((row for row in rows if row["id"] == self._spec.name), {})
        said = next((own[name] for name in CONTEXT_NAMES if isinstance(own.get(name), int)), None)
        return ServerFacts(models=tuple(row["id"] for row in rows), context_tokens=said or await self._props())

    async def _props(self) -> int | None:
        try:
            reply = await self._client.get(f"{self._spec.url.removesuffix('/v1')}/props", timeout=LOOK_S)
            said = reply.json()["default_generation_settings"]["n_ctx"] if reply.is_success else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
        return said if isinstance(said, int) and said > 0 else None


async def _following(events: AsyncGenerator[str], deadline: float, has_ended: bool) -> str | None:
    """Return the data of the next event; None at the end. has_ended: the answer is complete, so an error is the end."""
    try:
        async with asyncio.timeout_at(deadline):
            return await anext(events, None)
    except (httpx.HTTPError, TimeoutError):
        if has_ended:
            return None
        raise


def _listed(response: httpx.Response) -> list[dict[str, Any]]:
    try:
        data = response.json()["data"] if response.is_success else []
    except (ValueError, KeyError, TypeError):
        return []
    return [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
