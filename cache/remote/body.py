"""What a server is sent for a request. Strict servers refuse fields that they do not know: these are left out from then
on. The messages are the same byte for byte in every turn, so that the server finds its prefix again.
"""

import re
from collections.abc import Sequence
from typing import Any

from cache.engine.request import Request
from cache.memory.keys import digest
from cache.remote.spec import ServerSpec

OPTIONAL = (
    *("stream_options", "cache_salt", "prompt_cache_key"),
    *("repetition_penalty", "top_k", "top_p", "seed", "stop", "temperature"),
)
"""Fields without which a server answers as well, or nearly so."""
LONGEST, NEW_LONGEST = "max_tokens", "max_completion_tokens"
"""Some models of OpenAI know the second name only."""


class Bodies:
    """Makes bodies for one server, and remembers what it refuses."""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec, self._refused = spec, set[str]()

    def of(self, request: Request, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
        """The body of a request."""
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
            ("repetition_penalty", sampling.repetition_penalty, 1.0),
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
        """The body again, without the fields that a refusal names; None if it names none that can be left out."""
        named = {name for name in (*OPTIONAL, LONGEST) if name in body and re.search(rf"\b{name}\b", message)}
        if NEW_LONGEST not in message:
            named.discard(LONGEST)
        self._refused |= named
        return self._accepted(body) if named else None

    def _accepted(self, body: dict[str, Any]) -> dict[str, Any]:
        names = {name: NEW_LONGEST if name == LONGEST and name in self._refused else name for name in body}
        return {new: body[name] for name, new in names.items() if new not in self._refused}


def headers_of(request: Request, spec: ServerSpec) -> dict[str, str]:
    """Headers by which routers keep a conversation on one server."""
    return {} if request.session is None else dict.fromkeys(spec.session_headers, name_of(request.session))


def name_of(secret: str) -> str:
    """A name for a conversation or a customer that tells nothing of it, always the same."""
    return digest("elsewhere", secret).partition(":")[2][:32]
