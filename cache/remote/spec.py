"""Where a model's server is, and how it is to be asked, as values."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """url: what the routes of OpenAI's API stand below, as http://127.0.0.1:8000/v1. name: of the model there. key:
    sent as `Authorization: Bearer`; never shown. context_tokens: of prompt and answer together; None: what the server
    says. first_token_s: how long it may take to say the first word. session_headers: names of headers that carry the
    conversation, for routers that keep one on one server. cache_salt, cache_key: whether the fields `cache_salt` (keeps
    prefixes of different customers apart, vLLM) and `prompt_cache_key` (OpenAI) are sent.
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
        """What routes of the server stand below that are not OpenAI's."""
        return self.url.removesuffix("/v1")
