"""What is sent to an engine and back, as values of plain types: plans, requests, what became of modules, errors.

A plan is sent with each of its segments once, and its spans name them by number, because after the way equal segments
must be one object again (`Span.continues`). Choices are rebuilt from their values. Not carried: answers to be read
instead of generated (`Request.teacher_forced`, `Completion.logits`), which only measurements use, and the traceback of
an error. Not covered: messages and their bytes (`messages`).

What an engine needs to begin, as values: which model, where its files are, how much memory, how many requests.

Messages between a program and the process of its engine: their types, and their bytes (MessagePack).

Each message is told by its name and checked against its type when it is read. Nothing that is read can run code.
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
    """A segment. prefix: the number of its conditioning prefix, which stands before it in the table."""

    name: str
    tokens: tuple[int, ...]
    start: int
    gaps: tuple[tuple[int, int], ...]
    prefix: int | None
    left_context: tuple[int, ...]


class SentSpan(Struct, array_like=True, frozen=True):
    """A span. tokens: how many, if they are those of its segment's rows."""

    start: int
    tokens: tuple[int, ...] | int
    segment: int | None
    row: int


class SegmentTable:
    """Segments by number, each once, behind its conditioning prefix."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.rows: list[SentSegment] = []
        self._numbers: dict[Segment, int] = {}
        for segment in segments:
            self.add(segment)

    def add(self, segment: Segment) -> int:
        """The number of a segment."""
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
    """The segments of a table. Raises ValueError for a wrong one."""
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
    """A plan and its segments."""

    segments: list[SentSegment]
    spans: list[SentSpan]

    @classmethod
    def of(cls, plan: Plan) -> "SentPlan":
        """A plan to be sent."""
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
        """The plan that was sent. Raises ValueError for a wrong one."""
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
    """What an answer may consist of."""

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
        """A request to be sent. Raises ValueError for an answer to be read instead of generated."""
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
        """The request that was sent. Raises ValueError for a wrong one."""
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
        """An error to be sent."""
        if isinstance(error, PMLError):
            return cls("PMLError", error.message, error.where, error.line, error.column, error.source)
        return cls(type(error).__name__, str(error))

    def error(self) -> CacheError:
        """The error that was sent; one of an unknown class is a CacheError."""
        if self.where is not None:
            error = PMLError(self.message, where=self.where, line=self.line, column=self.column)
            error.source = self.source
            return error
        kinds = {kind.__name__: kind for kind in CacheError.__subclasses__() if kind is not PMLError}
        return kinds.get(self.kind, CacheError)(self.message)


class SentEncoded(Struct, array_like=True, frozen=True):
    """What became of modules that were to be encoded; those that failed by their number among what was asked for."""

    computed: int
    failed: list[tuple[int, SentError]]

    @classmethod
    def of(cls, encoded: Encoded, asked: Sequence[Segment]) -> "SentEncoded":
        """A result to be sent."""
        return cls(encoded.computed, [(asked.index(one), SentError.of(why)) for one, why in encoded.failed.items()])

    def encoded(self, asked: Sequence[Segment]) -> Encoded:
        """The result that was sent."""
        return Encoded(self.computed, {asked[number]: sent.error() for number, sent in self.failed})


class EngineSpec(Struct, frozen=True, kw_only=True):
    """What an engine needs to begin. model, device, converted, adapter, weights, dtype: see `load_model`. disk: bytes
    on disk in `modules`; 0: no disk tier. disk_floor: bytes that stay free there, see `cache.memory.free_space`.
    shared: where the disk tier is instead, if engines share it: a folder or a URL of fsspec. threads: CPU threads of
    computing; None: PyTorch's own choice, but no more than the process may use processors. log_format, log_level: of a
    process of its own. The others: see `Engine`.
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
