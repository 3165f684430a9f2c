"""The address and options of a remote model's server."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """url: base URL of the OpenAI API, as http://127.0.0.1:8000/v1. name: of the model there. key: sent as
    `Authorization: Bearer`; never shown. context_tokens: of prompt and answer together; None: as reported.
    first_token_s: maximum time to the first token. session_headers: headers with the conversation, for routers that
    keep one on one server. cache_salt, cache_key: whether to send `cache_salt` (separates customers' prefixes, vLLM)
    and `prompt_cache_key` (OpenAI).
    """

    url: str
    name: str
    key: str | None = field(default=None, repr=False)
    context_tokens: int | None = None
    first_token_s: float = 120.0
    session_headers: tuple[str, ...] = ()
    cache_salt: bool = False
    cache_key: bool = False

    @property
    def root(self) -> str:
        """Base URL of the server's other routes."""
        return self.url.removesuffix("/v1")
