"""How much the engine takes on at once.

What goes into the engine and what comes out: requests, completions and where their tokens came from.
"""

import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from cache.decoding.sampling import Sampling
from cache.engine.recomputation import SelectiveRecomputation
from cache.errors import CacheError
from cache.memory.disk import MissReason
from cache.memory.keys import PUBLIC_TENANT, check_tenant
from cache.memory.store import Source
from cache.prompt.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """running: requests that are answered at the same time. waiting: that may wait for it; one more is refused.
    seconds: after which a request ends with what it has, waiting included; None: it may take as long as it wants.
    hang_s: an engine that has work and does not get on with it for so many seconds counts as one that hangs.
    """

    running: int = 64
    waiting: int = 64
    seconds: float | None = None
    hang_s: float = 60.0


Reuse = Literal["on", "prefix", "off"]
"""on: modules and exact prefixes. prefix: exact prefixes only. off: everything is computed and nothing kept."""

FinishReason = Literal["stop", "length", "repeated", "cancelled", "timeout", "scored"]
"""repeated: ended because the answer began to repeat itself. timeout: it took too long. scored: it was
given (`Request.teacher_forced`).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be answered. recomputation: which rows of placed modules are computed again. session: the
    conversation it belongs to: its own past is counted apart, and its selected rows are kept. tenant: who may find what
    it computes. module_tenant: who may share its modules; None: the same. begun: tokens of the answer that were given
    out before, by an engine that is gone: it goes on behind them, and only their text does not come again.
    teacher_forced: an answer to be read instead of generated: the completion has the logits that predict its tokens.
    Raises ValueError for a bad tenant.
    """

    plan: Plan
    sampling: Sampling = field(default_factory=Sampling)
    reuse: Reuse = "on"
    recomputation: SelectiveRecomputation = field(default_factory=SelectiveRecomputation)
    session: str | None = None
    tenant: str = PUBLIC_TENANT
    module_tenant: str | None = None
    begun: tuple[int, ...] = ()
    teacher_forced: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_tenant(self.tenant)
        check_tenant(self.tenant_of_modules)

    @property
    def tenant_of_modules(self) -> str:
        """Under which its modules are kept and found."""
        return self.tenant if self.module_tenant is None else self.module_tenant


@dataclass(slots=True, kw_only=True)
class Usage:
    """Where every prompt token came from: computed now; session, prefix: rows computed by earlier requests of the same
    conversation or of others; module: encoded ahead. recomputed: computed tokens that a module could have supplied.
    prompt_tokens = computed + session + prefix + module, counted from what the request really read; less, where a
    server of somebody else does not say what it reused.
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
        """Prompt tokens that were not computed."""
        return self.session + self.prefix + self.module

    @property
    def is_reuse_known(self) -> bool:
        """Whether it is known what was reused."""
        return self.computed + self.cached_tokens == self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleUse:
    """One module of a prompt. position: id of its first token. miss_reason: why it was computed, if it was."""

    key: str
    name: str
    tokens: int
    position: int
    source: Source
    miss_reason: MissReason | None


@dataclass(slots=True, kw_only=True)
class Timings:
    """Milliseconds. queue: waiting for its turn; load: finding modules, and waiting for those on disk to be read;
    prefill: the rest up to the first token, encoding of missing modules included; ttft, total: from submission.
    """

    queue: float = 0.0
    load: float = 0.0
    prefill: float = 0.0
    ttft: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished answer. tokens: the exact ids of `text`, None if a stop string cut inside a token. exact: every token
    saw what full attention shows. logits: float32 `[answer tokens, vocabulary]` on the host, if teacher-forced.
    silence: of a model that runs elsewhere, why it said nothing, in one line; empty if it did.
    """

    text: str
    tokens: tuple[int, ...] | None
    finish_reason: FinishReason
    usage: Usage
    modules: tuple[ModuleUse, ...]
    timings: Timings
    exact: bool
    logits: Tensor | None = None
    silence: str = ""


class Generation:
    """An answer being generated: iterate for its text, then read `completion`. From any thread, by several readers.
    tokens: of which the text so far was made, where the engine runs in this process; read it in `deliver`.
    """

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[str | Completion | CacheError] = queue.SimpleQueue()
        self.is_cancelled = False  # whether nobody wants the rest
        self.is_over = False  # whether its end was delivered
        self._end: Completion | CacheError | None = None
        self.tokens: Sequence[int] = ()

    def __iter__(self) -> Iterator[str]:
        """Pieces of the answer as they are generated. Raises CacheError if the request failed."""
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
        """The whole answer; waits for it. Raises CacheError if the request failed."""
        for _ in self:
            pass
        assert isinstance(self._end, Completion)
        return self._end

    @property
    def has_ended(self) -> bool:
        """Whether somebody has read it to its end, so that `completion` does not wait."""
        return self._end is not None

    def cancel(self) -> None:
        """Stop generating; what was generated so far still arrives as the completion."""
        self.is_cancelled = True

    def deliver(self, event: str | Completion | CacheError) -> None:
        """For the engine: add a piece of text, the completion, or the error that ended the request."""
        self.is_over = not isinstance(event, str)
        self._events.put(event)
