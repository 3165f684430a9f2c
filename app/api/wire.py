"""What programs send: the bodies of the API's requests, as OpenAI names their fields.

Fields that OpenAI knows and that change nothing here are accepted and ignored (`seed` of the desk, `metadata`, ...);
those whose absence would change what the caller gets are refused by name. Not covered: what is sent back (`replies`).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from app.domain.lengths import Id, Line, LongText

MOST_MESSAGES, MOST_PARTS = 1000, 1000
MOST_INPUTS = 256
MOST_STOPS = 4
UNSUPPORTED = {
    "tools": "tools are not supported",
    "functions": "functions are not supported",
    "audio": "only text is supported",
    "logprobs": "log probabilities are not supported",
    "prediction": "predicted outputs are not supported",
}
"""Fields that must be absent or empty, and why."""


class TextPart(BaseModel):
    """A part of a message's content."""

    type: Literal["text"]
    text: LongText


class Message(BaseModel):
    """A message of a conversation. Its text is only ever text: nothing in it becomes structure of the prompt."""

    role: Literal["system", "developer", "user", "assistant"]
    content: LongText | Annotated[list[TextPart], Field(max_length=MOST_PARTS)]

    @property
    def text(self) -> str:
        """The whole content."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    """include_usage: send the usage in a last chunk without a choice."""

    include_usage: bool = False


class ChatRequest(BaseModel):
    """The body of /v1/chat/completions."""

    model_config = ConfigDict(extra="allow")

    model: Line = Field(description='"warmdesk" for the desk, or the name of its language model.')
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Annotated[str | None, Field(max_length=512, description="Keeps your users' conversations apart.")] = None
    conversation_id: Annotated[
        Id | None,
        Field(description="Goes on with a stored conversation; its past is used, not the messages'."),
    ] = None
    max_tokens: Annotated[int | None, Field(ge=1, description="Of the language model alone.")] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1, description="The same under its newer name.")] = None
    temperature: Annotated[float | None, Field(ge=0, le=2, description="Of the language model alone.")] = None
    top_p: Annotated[float | None, Field(gt=0, le=1, description="Of the language model alone.")] = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63, description="Of the language model alone.")] = None
    stop: Annotated[Line | list[Line] | None, Field(description="Of the language model alone; up to 4.")] = None
    n: Annotated[int | None, Field(ge=1, le=1, description="One answer each.")] = None

    @field_validator("stop")
    @classmethod
    def _stops_something(cls, stop: str | list[str] | None) -> str | list[str] | None:
        stops = [stop] if isinstance(stop, str) else stop or []
        if len(stops) > MOST_STOPS:
            raise ValueError(f"at most {MOST_STOPS} stop strings are possible")
        if "" in stops:
            raise ValueError("an empty stop string would end every answer at once")
        return stop

    @model_validator(mode="after")
    def _supported(self) -> "ChatRequest":
        given: dict[str, Any] = self.model_extra or {}
        for field, why in UNSUPPORTED.items():
            if given.get(field):
                raise ValueError(f"{field}: {why}")
        kind = given.get("response_format")
        if isinstance(kind, dict) and kind.get("type") not in (None, "text"):
            raise ValueError("response_format: only text is supported")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def longest(self) -> int | None:
        """The most tokens of the answer, if a limit was given."""
        return self.max_completion_tokens or self.max_tokens


class EmbeddingRequest(BaseModel):
    """The body of /v1/embeddings."""

    model: Line = Field(description="The name of the desk's embedder; see /v1/models.")
    input: Annotated[LongText | list[LongText], Field(description="One text, or up to 256.")]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(description="The embedder's own, if given.")] = None
    input_type: Annotated[
        Literal["document", "query"], Field(description="Some embedders treat questions differently.")
    ] = "document"
    user: Annotated[str | None, Field(max_length=512)] = None

    @field_validator("input", mode="before")
    @classmethod
    def _texts(cls, value: object) -> object:
        if isinstance(value, list) and value and isinstance(value[0], int | list):
            raise ValueError("token ids of another model mean nothing here: send text")
        return value

    @field_validator("input")
    @classmethod
    def _enough(cls, value: str | list[str]) -> str | list[str]:
        texts = [value] if isinstance(value, str) else value
        if not texts or not all(texts):
            raise ValueError("an empty text has no embedding")
        if len(texts) > MOST_INPUTS:
            raise ValueError(f"at most {MOST_INPUTS} texts are possible at once")
        return value

    @property
    def texts(self) -> list[str]:
        """All texts, in order."""
        return [self.input] if isinstance(self.input, str) else self.input


class FeedbackRequest(BaseModel):
    """The body of /v1/feedback. value: None takes the verdict back."""

    message_id: Id
    value: Literal["up", "down"] | None
    reason: Annotated[str, Field(max_length=500)] = ""
    user: Annotated[str | None, Field(max_length=512)] = None


class HandoffRequest(BaseModel):
    """The body of POST /v1/handoffs."""

    conversation_id: Annotated[Id | None, Field(description="Unset: a new one.")] = None
    message: Annotated[str, Field(max_length=10_000, description="What the customer says with it.")] = ""
    email: Annotated[str, Field(max_length=254, description="Where the customer wants to be answered.")] = ""
    user: Annotated[str | None, Field(max_length=512)] = None


class HandoffMessage(BaseModel):
    """The body of POST /v1/handoffs/ID/messages."""

    message: Annotated[str, Field(min_length=1, max_length=10_000)]
    user: Annotated[str | None, Field(max_length=512)] = None
