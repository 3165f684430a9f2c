"""Input and output of the engine: limits, requests, answers as they are generated, and completions with the source of
each prompt token. PyTorch is not needed. Out of scope: making an answer's text (`text_delivery`).
"""

import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cache.decoding.sampling import Sampling, TokenLogprob
from cache.engine.recomputation import SelectiveRecomputation
from cache.errors import CacheError
from cache.memory.disk import MissReason
from cache.memory.keys import PUBLIC_TENANT, Source, check_tenant
from cache.prompt.plan import Plan, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The engine's load limits. running: requests answered at the same time. waiting: further requests. seconds:
    maximum time of a request, waiting included. hang_s: seconds without progress after which an engine with work hangs.
    """

    running: int = 64
    waiting: int = 64
    seconds: float | None = None
    hang_s: float = 60.0


Reuse = Literal["on", "prefix", "off"]
"""on: modules and exact prefixes. prefix: exact prefixes only. off: everything is computed and nothing is stored."""

FinishReason = Literal["stop", "length", "repeated", "cancelled", "timeout", "scored"]
"""repeated: the answer repeated itself. timeout: it took too long. scored: it was teacher-forced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to answer. recomputation: rows of placed modules to compute again. session: its conversation. tenant:
    the owner of its computed prefix. module_tenant: the owner of its modules; None: the same. begun: answer tokens
    already delivered by a lost engine, as `delivered` characters. teacher_forced: a given answer; the completion has
    the logits that predict it. Raises ValueError for a bad tenant.
    """

    plan: Plan
    sampling: Sampling = field(default_factory=Sampling)
    reuse: Reuse = "on"
    recomputation: SelectiveRecomputation = field(default_factory=SelectiveRecomputation)
    session: str | None = None
    tenant: str = PUBLIC_TENANT
    module_tenant: str | None = None
    begun: tuple[int, ...] = ()
    delivered: int = 0
    teacher_forced: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_tenant(self.tenant)
        check_tenant(self.tenant_of_modules)

    @property
    def tenant_of_modules(self) -> str:
        return self.tenant if self.module_tenant is None else self.module_tenant


@dataclass(slots=True, kw_only=True)
class Usage:
    """Sources of prompt tokens. computed: by this request. session, prefix: computed by earlier requests of the same
    conversation, or of others. module: encoded before. recomputed: computed although a module could supply them.
    prompt_tokens = computed + session + prefix + module, except for a remote model that does not report its reuse.
    """

    prompt_tokens: int
    computed: int = 0
    recomputed: int = 0
    session: int = 0
    prefix: int = 0
    module: int = 0
    completion_tokens: int = 0

    @property
    def cached_tokens(self) -> int:
        return self.session + self.prefix + self.module

    @property
    def is_reuse_known(self) -> bool:
        return self.computed + self.cached_tokens == self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleUse:
    """One module of a prompt. key: empty for a remote model. position: id of its first token. miss_reason: why it was
    computed, if it was.
    """

    key: str = ""
    name: str
    tokens: int
    position: int
    source: Source
    miss_reason: MissReason | None = None


@dataclass(slots=True, kw_only=True)
class Timings:
    """Milliseconds. queue: waiting to start. load: finding modules, and loading them from disk. prefill: the rest up to
    the first token, with encoding. ttft, total: from submission to the first token, and to the end.
    """

    queue: float = 0.0
    load: float = 0.0
    prefill: float = 0.0
    ttft: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished answer. tokens: the exact ids of `text`; None if a stop string ended inside a token. exact: the answer
    is the same as with full attention. logits: a float32 tensor `[answer tokens, vocabulary]` on the host, if
    teacher-forced. silence: why a remote model returned no text, in one line; else empty.
    """

    text: str
    tokens: tuple[int, ...] | None = None
    finish_reason: FinishReason
    usage: Usage
    modules: tuple[ModuleUse, ...] = ()
    timings: Timings = field(default_factory=Timings)
    exact: bool = True
    logits: Any = None
    logprobs: tuple[TokenLogprob, ...] = ()
    silence: str = ""


class Generation:
    """An answer being generated: iterate for its text, then read `completion`. Any number of threads may read. tokens:
    token ids of the text so far, if the engine is in this process; read it in `deliver`.
    """

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[str | Completion | CacheError] = queue.SimpleQueue()
        self.is_cancelled = False  # whether the rest is not needed
        self.is_over = False  # whether its end was delivered
        self._end: Completion | CacheError | None = None
        self.tokens: Sequence[int] = ()

    def __iter__(self) -> Iterator[str]:
        """Return pieces of the answer as they are generated. Raises CacheError if the request failed."""
        while self._end is None:
            event = self._events.get()
            if isinstance(event, str):
                yield event
            else:
                self._end = event
                self._events.put(event)  # for other readers
        if isinstance(self._end, CacheError):
            raise self._end

    @property
    def completion(self) -> Completion:
        """Wait for the whole answer and return it. Raises CacheError if the request failed."""
        for _ in self:
            pass
        assert isinstance(self._end, Completion)
        return self._end

    @property
    def has_ended(self) -> bool:
        """Return whether a reader has reached the end, so that `completion` does not wait."""
        return self._end is not None

    def cancel(self) -> None:
        """Stop generating. The text so far still arrives as the completion."""
        self.is_cancelled = True

    def deliver(self, event: str | Completion | CacheError) -> None:
        """Add a piece of text, the completion, or the error that ended the request. Called by the engine."""
        self.is_over = not isinstance(event, str)
        self._events.put(event)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Result of encoding in advance. computed: number of computed modules. failed: errors of failed modules. All other
    modules are available.
    """

    computed: int
    failed: Mapping[Segment, CacheError]

    def raise_failed(self) -> None:
        for error in self.failed.values():
            raise error
