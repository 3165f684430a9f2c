"""Messages between a program and its engine in another process: their types, and their bytes (MessagePack).

Each message has a name and is checked against its type when it is read. Reading never runs code. A plan is sent with
each segment once. Its spans refer to segments by index, so that equal segments are still one object after
deserialization (`Span.continues`). Out of scope: teacher-forced requests and their logits, which only measurements use,
and tracebacks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import torch
from msgspec import Raw, Struct, msgpack

from cache.decoding.constraints import Choice, Choices
from cache.decoding.sampling import Sampling
from cache.engine.device_memory import ArenaSize
from cache.engine.encoder import Encoded
from cache.engine.log_lines import LogFormat, LogLevel
from cache.engine.recomputation import SelectiveRecomputation
from cache.engine.request import Completion, Limits, Request, Reuse
from cache.errors import CacheError, PMLError, Where
from cache.memory.kv_format import KVStorage
from cache.model.language_model import ModelInfo
from cache.model.loading import Weights
from cache.prompt.plan import Placement, Plan, Segment, Span
from cache.serving.interface import EngineInterface


class SentSegment(Struct, array_like=True, frozen=True):
    """A segment. prefix: index of its conditioning prefix, earlier in the table."""

    name: str
    tokens: tuple[int, ...]
    start: int
    gaps: tuple[tuple[int, int], ...]
    prefix: int | None
    left_context: tuple[int, ...]


class SentSpan(Struct, array_like=True, frozen=True):
    """A span. tokens: their number, if they are the segment's own."""

    start: int
    tokens: tuple[int, ...] | int
    segment: int | None
    row: int


class SegmentTable:
    """Segments by index, each once, after its conditioning prefix."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.rows: list[SentSegment] = []
        self._numbers: dict[Segment, int] = {}
        for segment in segments:
            self.add(segment)

    def add(self, segment: Segment) -> int:
        """Return the index of a segment."""
        number = self._numbers.get(segment)
        if number is None:
            prefix = None if segment.prefix is None else self.add(segment.prefix)
            left_context = segment.left_context
            self.rows.append(
                SentSegment(segment.name, segment.tokens, segment.start, segment.gaps, prefix, left_context)
            )
            number = self._numbers[segment] = len(self.rows) - 1
        return number


def segments_of(rows: Sequence[SentSegment]) -> list[Segment]:
    """Return the segments of a table. Raises ValueError for a malformed one."""
    segments: list[Segment] = []
    for row in rows:
        segments.append(
            Segment(
                name=row.name,
                tokens=row.tokens,
                start=row.start,
                gaps=row.gaps,
                prefix=None if row.prefix is None else segments[row.prefix],
                left_context=row.left_context,
            )
        )
    return segments


class SentPlan(Struct, array_like=True, frozen=True):
    segments: list[SentSegment]
    spans: list[SentSpan]

    @classmethod
    def of(cls, plan: Plan) -> "SentPlan":
        table = SegmentTable()
        spans: list[SentSpan] = []
        for span in plan.spans:
            if span.segment is None:
                spans.append(SentSpan(span.start, span.tokens, None, span.row))
                continue
            rows = span.segment.tokens[span.row : span.row + len(span.tokens)]
            tokens = len(rows) if rows == span.tokens else span.tokens
            spans.append(SentSpan(span.start, tokens, table.add(span.segment), span.row))
        return cls(table.rows, spans)

    def plan(self) -> Plan:
        """Return the plan that was sent. Raises ValueError for a malformed one."""
        segments = segments_of(self.segments)
        spans: list[Span] = []
        for sent in self.spans:
            segment = None if sent.segment is None else segments[sent.segment]
            tokens = sent.tokens
            if isinstance(tokens, int):
                if segment is None:
                    raise ValueError("a span without a segment has no tokens")
                tokens = segment.tokens[sent.row : sent.row + tokens]
            spans.append(Span(start=sent.start, tokens=tokens, segment=segment, row=sent.row))
        return Plan(spans=tuple(spans))


class SentChoices(Struct, array_like=True, frozen=True):
    choices: tuple[Choice, ...]
    stop: int
    most: int
    enough: float | None


class SentRequest(Struct, array_like=True, frozen=True):
    """A request. sampling: without the choices."""

    plan: SentPlan
    sampling: Sampling
    choices: SentChoices | None
    reuse: Reuse
    recomputation: SelectiveRecomputation
    session: str | None
    tenant: str
    module_tenant: str | None
    begun: tuple[int, ...] = ()

    @classmethod
    def of(cls, request: Request) -> "SentRequest":
        """Return the form of a request to send. Raises ValueError for a teacher-forced request."""
        if request.teacher_forced:
            raise ValueError("an engine in another process reads no given answers: use one in this process")
        given = request.sampling.choices
        return cls(
            plan=SentPlan.of(request.plan),
            sampling=replace(request.sampling, choices=None),
            choices=None if given is None else SentChoices(given.choices, given.stop, given.most, given.enough),
            reuse=request.reuse,
            recomputation=request.recomputation,
            session=request.session,
            tenant=request.tenant,
            module_tenant=request.module_tenant,
            begun=request.begun,
        )

    def request(self) -> Request:
        """Return the request that was sent. Raises ValueError for a malformed one."""
        sent = self.choices
        choices = None
        if sent is not None:
            choices = Choices(choices=sent.choices, stop=sent.stop, most=sent.most, enough=sent.enough)
        return Request(
            plan=self.plan.plan(),
            sampling=replace(self.sampling, choices=choices),
            reuse=self.reuse,
            recomputation=self.recomputation,
            session=self.session,
            tenant=self.tenant,
            module_tenant=self.module_tenant,
            begun=self.begun,
        )


class SentError(Struct, array_like=True, frozen=True):
    """A CacheError by the name of its class. where, line, column, source: of a PMLError."""

    kind: str
    message: str
    where: Where | None = None
    line: int | None = None
    column: int | None = None
    source: str | None = None

    @classmethod
    def of(cls, error: CacheError) -> "SentError":
        if isinstance(error, PMLError):
            return cls("PMLError", error.message, error.where, error.line, error.column, error.source)
        return cls(type(error).__name__, str(error))

    def error(self) -> CacheError:
        """Return the error that was sent; a CacheError for an unknown class."""
        if self.where is not None:
            error = PMLError(self.message, where=self.where, line=self.line, column=self.column)
            error.source = self.source
            return error
        kinds = {kind.__name__: kind for kind in CacheError.__subclasses__() if kind is not PMLError}
        return kinds.get(self.kind, CacheError)(self.message)


class SentEncoded(Struct, array_like=True, frozen=True):
    """Result of encoding. failed: errors by index among the requested segments."""

    computed: int
    failed: list[tuple[int, SentError]]

    @classmethod
    def of(cls, encoded: Encoded, asked: Sequence[Segment]) -> "SentEncoded":
        return cls(encoded.computed, [(asked.index(one), SentError.of(why)) for one, why in encoded.failed.items()])

    def encoded(self, asked: Sequence[Segment]) -> Encoded:
        return Encoded(self.computed, {asked[number]: sent.error() for number, sent in self.failed})


class EngineSpec(Struct, frozen=True, kw_only=True):
    """Parameters of an engine. model, device, converted, adapter, weights, dtype: see `load_model`. disk: bytes on disk
    in `modules`; 0: no disk tier. disk_floor: bytes that stay free there, see `free_space`. shared: folder or fsspec
    URL of a disk tier that engines share. threads: CPU threads; None: PyTorch's choice, within the CPU limit of the
    process. log_format, log_level: of a separate process. Others: see `Engine`.
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
    dtype: torch.dtype | None = None
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
"""Methods of `EngineInterface` that are called with values and return one."""


class Begin(Struct, tag=True, frozen=True):
    """The first message to the process."""

    spec: EngineSpec


class Submit(Struct, tag=True, frozen=True):
    """A request. is_idle: compute it only while the engine is idle."""

    number: int
    request: SentRequest
    is_idle: bool


class Cancel(Struct, tag=True, frozen=True):
    """Cancel an answer or a prefetch."""

    number: int


class Encode(Struct, tag=True, frozen=True):
    """Modules to encode: indices in the table of segments."""

    number: int
    segments: list[SentSegment]
    asked: list[int]
    tenant: str


class Foresee(Struct, tag=True, frozen=True):
    """Modules to prefetch: indices in the table of segments. There is no reply."""

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
    """Ask for the state; answered at once."""

    number: int


class Begun(Struct, tag=True, frozen=True):
    """The model is loaded and requests are accepted. fingerprint: of modules, with their stored form."""

    info: ModelInfo
    fingerprint: str
    module_room: int


class Piece(Struct, tag=True, frozen=True):
    number: int
    text: str


class Ended(Struct, tag=True, frozen=True):
    number: int
    completion: Completion


class Failed(Struct, tag=True, frozen=True):
    """The request with this number has failed; 0: the start has."""

    number: int
    error: SentError


class EncodingEnded(Struct, tag=True, frozen=True):
    number: int
    encoded: SentEncoded


class Returned(Struct, tag=True, frozen=True):
    number: int
    value: Raw


class State(Struct, tag=True, frozen=True):
    """See the properties of `EngineInterface` and `Engine.hangs`."""

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
    """Return the type of a method's arguments."""
    hints = get_type_hints(getattr(EngineInterface, name))
    return tuple[tuple(hint for argument, hint in hints.items() if argument != "return")]  # type: ignore[misc]


def result_of(name: CallName) -> Any:
    return get_type_hints(getattr(EngineInterface, name))["return"]


def encoded(value: Any) -> bytes:
    """Return the bytes of a message or of a value in it. Raises NotImplementedError for a tensor."""
    return msgpack.encode(value, enc_hook=_plain)


def decoded(data: bytes | Raw, kind: Any) -> Any:
    """Return the message or value. Raises msgspec.ValidationError for another type."""
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
    decoder = msgpack.Decoder(kind, dec_hook=_rebuilt)
    return (decoder.decode(frame) for frame in frames)
