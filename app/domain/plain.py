"""What the models alone are asked and give, without documents: plain values for HTTP."""

from dataclasses import dataclass
from typing import Literal

from app.domain.answers import AnswerTimings, AnswerUsage
from app.domain.documents import Vectors

SpokenRole = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Said:
    """A message as a caller sends it."""

    role: SpokenRole
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOptions:
    """How the model answers. max_tokens: None for the desk's default. temperature: 0 is greedy, None the desk's
    setting. seed: makes a sampled answer repeatable. stop: strings that end the answer.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAnswer:
    """What the model said. finish_reason: stop, or length where it was cut."""

    text: str
    finish_reason: Literal["stop", "length"]
    usage: AnswerUsage
    timings: AnswerTimings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedded:
    """Texts as vectors `[texts, dimension]`, each of length 1. tokens: of all texts, as the embedder reads them."""

    vectors: Vectors
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """The models of a desk by the names that callers know. dimension: numbers in a vector of the embedder."""

    language: str
    embedder: str
    dimension: int
