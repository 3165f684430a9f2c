"""Messages between a program and the process of its engine: their types, and their bytes (MessagePack).

Each message is told by its name and checked against its type when it is read. Nothing that is read can run code.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_type_hints

import torch
from msgspec import Raw, Struct, msgpack

from cache.engine.request import Completion
from cache.model.language_model import ModelInfo
from cache.serving.interface import EngineInterface
from cache.serving.spec import EngineSpec
from cache.serving.values import SentEncoded, SentError, SentRequest, SentSegment

CallName = Literal[
    "settle",
    "forget",
    "keep",
    "drop_prefixes",
    "modules",
    "modules_of_prefixes",
    "bring_to_device",
    "evict",
    "verify",
    "contents",
    "prefix_uses",
    "flush",
]
"""Methods of `EngineInterface` that are called with values and return one."""


class Begin(Struct, tag=True, frozen=True):
    """The first message to the process."""

    spec: EngineSpec


class Submit(Struct, tag=True, frozen=True):
    """A request. is_idle: to be computed while there is nothing else to do."""

    number: int
    request: SentRequest
    is_idle: bool


class Cancel(Struct, tag=True, frozen=True):
    """Nobody wants the rest of an answer, or of modules to be prefetched."""

    number: int


class Encode(Struct, tag=True, frozen=True):
    """Modules to be encoded: numbers in the table of segments."""

    number: int
    segments: list[SentSegment]
    asked: list[int]
    tenant: str


class Foresee(Struct, tag=True, frozen=True):
    """Modules to be prefetched: numbers in the table of segments. There is no reply."""

    number: int
    segments: list[SentSegment]
    asked: list[int]
    tenant: str


class Call(Struct, tag=True, frozen=True):
    """A method, with its arguments as a list."""

    number: int
    name: CallName
    arguments: Raw


class AskState(Struct, tag=True, frozen=True):
    """What the engine does now; answered at once."""

    number: int


class Begun(Struct, tag=True, frozen=True):
    """The model is loaded, and requests are taken. fingerprint: of modules, which may be kept in other ways."""

    info: ModelInfo
    fingerprint: str
    module_room: int


class Piece(Struct, tag=True, frozen=True):
    """More text of an answer."""

    number: int
    text: str


class Ended(Struct, tag=True, frozen=True):
    """A finished answer."""

    number: int
    completion: Completion


class Failed(Struct, tag=True, frozen=True):
    """What was asked for under a number has failed; 0: beginning has."""

    number: int
    error: SentError


class EncodingEnded(Struct, tag=True, frozen=True):
    """What became of modules that were to be encoded."""

    number: int
    encoded: SentEncoded


class Returned(Struct, tag=True, frozen=True):
    """What a method has returned."""

    number: int
    value: Raw


class State(Struct, tag=True, frozen=True):
    """See the properties of `EngineInterface`. hangs: see `Engine`."""

    number: int
    is_running: bool
    hangs: bool
    is_idle: bool
    num_restarts: int
    num_shortages: int
    seconds_per_token: float
    running: int
    waiting: int


ToEngine = Begin | Submit | Cancel | Encode | Foresee | Call | AskState
FromEngine = Begun | Piece | Ended | Failed | EncodingEnded | Returned | State


def arguments_of(name: CallName) -> Any:
    """The type of a method's arguments."""
    hints = get_type_hints(getattr(EngineInterface, name))
    return tuple[tuple(hint for argument, hint in hints.items() if argument != "return")]  # type: ignore[misc]


def result_of(name: CallName) -> Any:
    """The type of what a method returns."""
    return get_type_hints(getattr(EngineInterface, name))["return"]


def encoded(value: Any) -> bytes:
    """The bytes of a message or of a value in it. Raises NotImplementedError for a tensor."""
    return msgpack.encode(value, enc_hook=_plain)


def decoded(data: bytes | Raw, kind: Any) -> Any:
    """The message or value in some bytes. Raises msgspec.ValidationError if it is not of this type."""
    return msgpack.decode(data, type=kind, dec_hook=_rebuilt)


def _plain(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} is not sent to an engine or from it")


def _rebuilt(kind: type, value: Any) -> Any:
    if kind is torch.dtype:
        return {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES}[value]
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind.__name__)


_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8)


def read_all(frames: Iterator[bytes], kind: Any) -> Iterator[Any]:
    """The messages in some frames."""
    decoder = msgpack.Decoder(kind, dec_hook=_rebuilt)
    return (decoder.decode(frame) for frame in frames)
