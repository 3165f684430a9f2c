"""Messages between a program and its engine in another process: their types, and their bytes (MessagePack).

Each message has the name of its type, and its content is checked when it is read. Reading never runs code. A plan has
each segment once. Its spans refer to segments by index, so that equal segments are still one object after decoding
(`Span.continues`). Out of scope: tracebacks, and teacher-forced requests and their logits, which only measurements use.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

from msgspec import Raw, Struct, msgpack

from cache.engine.log_lines import LogFormat, LogLevel
from cache.engine.request import Completion, Encoded, Limits, Request
from cache.errors import CacheError, PMLError
from cache.memory.kv_shape import ArenaSize, DType, KVStorage
from cache.model.info import ModelInfo, Weights
from cache.prompt.plan import Placement, Plan, Segment, Span
from cache.serving.interface import EngineInterface

Row = tuple[Segment, int | None]
"""A segment without its conditioning prefix, and the prefix's index, which is lower, in the table."""


class SegmentTable:
    """A list of different segments. Other data refers to a segment by its index."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._numbers: dict[Segment, int] = {}

    def add(self, segment: Segment) -> int:
        number = self._numbers.get(segment)
        if number is None:
            prefix = None if segment.prefix is None else self.add(segment.prefix)
            self.rows.append((replace(segment, prefix=None), prefix))
            number = self._numbers[segment] = len(self.rows) - 1
        return number


def segments_of(rows: Sequence[Row]) -> list[Segment]:
    segments: list[Segment] = []
    for segment, prefix in rows:
        segments.append(segment if prefix is None else replace(segment, prefix=segments[prefix]))
    return segments


class SentPlan(Struct, array_like=True, frozen=True):
    """A plan as it is sent: a list of segments, and spans that refer to them by index."""

    segments: list[Row]
    spans: list[tuple[Span, int | None]]

    @classmethod
    def of(cls, plan: Plan) -> "SentPlan":
        table = SegmentTable()
        numbers = [None if span.segment is None else table.add(span.segment) for span in plan.spans]
        spans = [replace(span, segment=None) for span in plan.spans]
        return cls(table.rows, [*zip(spans, numbers, strict=True)])

    def plan(self) -> Plan:
        segments = segments_of(self.segments)
        spans = [span if number is None else replace(span, segment=segments[number]) for span, number in self.spans]
        return Plan(spans=tuple(spans))


class EngineSpec(Struct, frozen=True, kw_only=True):
    """Parameters of an engine. model, device, converted, adapter, weights, dtype: see `load_model`. disk: bytes on disk
    in `modules`; 0: no disk tier. disk_floor: see `free_space`. shared: folder or fsspec URL of a disk tier that
    engines share. threads: CPU threads; None: PyTorch's number, at most the CPUs that the process may use. Others: see
    `Engine`.
    """

    model: str | None
    converted: Path
    modules: Path
    memory: ArenaSize
    host_memory: int = 0
    disk: int = 0
    disk_floor: int | None = None
    shared: str | None = None
    kv_storage: KVStorage = "model"
    device: str = "cpu"
    adapter: Path | None = None
    weights: Weights = "model"
    dtype: DType | None = None
    placement: Placement = "contiguous"
    slot: int = 256
    limits: Limits = Limits()
    threads: int | None = None
    log_format: LogFormat = "text"
    log_level: LogLevel = "warning"


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
"""Methods of `EngineInterface` that are sent as a `Call`."""


class Begin(Struct, tag=True, frozen=True):
    """The first message to the process: start an engine."""

    spec: EngineSpec


class Submit(Struct, tag=True, frozen=True):
    """Submit a request. Its plan is in `plan`, not in `request`. is_idle: compute it only while the engine is idle."""

    number: int
    request: Request
    plan: SentPlan
    is_idle: bool

    @classmethod
    def of(cls, number: int, request: Request, *, is_idle: bool) -> "Submit":
        if request.teacher_forced:
            raise ValueError("an engine in another process does not support teacher forcing: use one in this process")
        return cls(number, replace(request, plan=Plan(spans=())), SentPlan.of(request.plan), is_idle)

    def asked(self) -> Request:
        return replace(self.request, plan=self.plan.plan())


class Cancel(Struct, tag=True, frozen=True):
    """Cancel an answer or a prefetch."""

    number: int


class Modules(Struct, frozen=True):
    """A message about modules of a tenant. asked: their indices in `segments`."""

    number: int
    segments: list[Row]
    asked: list[int]
    tenant: str

    @classmethod
    def of(cls, number: int, asked: Iterable[Segment], tenant: str) -> Self:
        table = SegmentTable()
        return cls(number, table.rows, [table.add(segment) for segment in asked], tenant)

    def modules(self) -> list[Segment]:
        table = segments_of(self.segments)
        return [table[number] for number in self.asked]


class Encode(Modules, tag=True, frozen=True):
    """Encode modules."""


class Foresee(Modules, tag=True, frozen=True):
    """Prefetch modules. There is no reply."""


class Call(Struct, tag=True, frozen=True):
    """Call a method. arguments: encoded list of its arguments."""

    number: int
    name: CallName
    arguments: Raw


class AskState(Struct, tag=True, frozen=True):
    """Ask for the engine's state. The engine replies at once."""

    number: int


class Begun(Struct, tag=True, frozen=True):
    """The model is loaded and requests are accepted. fingerprint: of the model and the stored form of modules."""

    info: ModelInfo
    fingerprint: str
    module_room: int


class Piece(Struct, tag=True, frozen=True):
    """The next piece of an answer's text."""

    number: int
    text: str


class Ended(Struct, tag=True, frozen=True):
    """A finished answer."""

    number: int
    completion: Completion


class Failed(Struct, tag=True, frozen=True):
    """The request with this number has failed. Number 0: the start has failed."""

    number: int
    error: CacheError


class EncodingEnded(Struct, tag=True, frozen=True):
    """Result of encoding. failed: errors by index among the requested modules."""

    number: int
    computed: int
    failed: list[tuple[int, CacheError]]

    @classmethod
    def of(cls, number: int, done: Encoded, asked: Sequence[Segment]) -> "EncodingEnded":
        return cls(number, done.computed, [(asked.index(one), why) for one, why in done.failed.items()])

    def encoded(self, asked: Sequence[Segment]) -> Encoded:
        return Encoded(self.computed, {asked[number]: error for number, error in self.failed})


class Returned(Struct, tag=True, frozen=True):
    """The result of a `Call`."""

    number: int
    value: Raw


class State(Struct, tag=True, frozen=True):
    """State of an engine: see the properties of `EngineInterface`, and `Engine.hangs`."""

    number: int = 0
    is_running: bool = False
    hangs: bool = False
    is_idle: bool = False
    num_restarts: int = 0
    num_shortages: int = 0
    seconds_per_token: float = 0.0
    running: int = 0
    waiting: int = 0


ToEngine = Begin | Submit | Cancel | Encode | Foresee | Call | AskState
FromEngine = Begun | Piece | Ended | Failed | EncodingEnded | Returned | State


def arguments_of(name: CallName) -> Any:
    hints = get_type_hints(getattr(EngineInterface, name))
    return tuple[tuple(hint for argument, hint in hints.items() if argument != "return")]  # type: ignore[misc]


def result_of(name: CallName) -> Any:
    return get_type_hints(getattr(EngineInterface, name))["return"]


def encoded(value: Any) -> bytes:
    """Return the bytes of a message or of a value in a message. Raises NotImplementedError for a tensor."""
    return msgpack.encode(value, enc_hook=_plain)


def decoded(data: bytes | Raw, kind: Any) -> Any:
    """Return the message or value of these bytes. Raises msgspec.ValidationError for another type."""
    return msgpack.decode(data, type=kind, dec_hook=_rebuilt)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, PMLError):
        return "PMLError", value.message, value.where, value.line, value.column, value.source
    if isinstance(value, CacheError):
        return type(value).__name__, str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be sent to or from an engine")


def _rebuilt(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    if kind is CacheError:
        return _error(*value)
    raise NotImplementedError(kind.__name__)


def _error(kind: str, message: str, *details: Any) -> CacheError:
    """Return an error of the class named `kind`; a CacheError for an unknown class. details: of a PMLError."""
    if details:
        where, line, column, source = details
        error = PMLError(message, where=where, line=line, column=column)
        error.source = source
        return error
    kinds = {kind.__name__: kind for kind in CacheError.__subclasses__() if kind is not PMLError}
    return kinds.get(kind, CacheError)(message)


def read_all(frames: Iterator[bytes], kind: Any) -> Iterator[Any]:
    decoder = msgpack.Decoder(kind, dec_hook=_rebuilt)
    return (decoder.decode(frame) for frame in frames)
