"""What a program may ask of an engine, wherever that runs: in a thread of it, or in a process of its own.

Everything that goes in and comes out is a value, so that it can be sent. Not covered: what an engine in a thread can be
asked besides (its store, functions to be run between two passes), for tests and measurements.
"""

from collections.abc import Sequence, Set
from concurrent.futures import Future
from typing import Protocol

from cache.engine.encoder import Encoded
from cache.engine.request import Generation, Request
from cache.memory.keys import PUBLIC_TENANT
from cache.memory.store import ModuleCheck, PrefixUse, TierContents
from cache.model.language_model import ModelInfo
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Placement, Plan, Segment
from cache.prompt.tokenizer import ChatTokenizer

CONTENTS_S = 10.0
"""How long whoever looks at an engine waits for it, whatever it does: there may be many who look."""


class Cancellable(Protocol):
    """What has been asked for and may not be wanted any more."""

    def cancel(self) -> None:
        """Drop what has not begun. From any thread, at any time."""


class EngineInterface(Protocol):
    """`cache.serving.local_engine.LocalEngine` is one, `cache.remote.remote_engine.RemoteEngine` another one. Every
    method may be called from any thread, and raises EngineStopped where it needs an engine that runs no more, and
    CacheError where it would wait for one that fails or hangs.
    """

    @property
    def info(self) -> ModelInfo:
        """What must be known of the model."""

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""

    @property
    def is_running(self) -> bool:
        """Whether requests are taken and computed."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do, requests and modules alike. It may be old when it returns."""

    @property
    def num_restarts(self) -> int:
        """How often it began anew after an error."""

    @property
    def num_shortages(self) -> int:
        """How often device memory has run out in a pass, which was tried again with fewer rows."""

    @property
    def module_room(self) -> int:
        """Tokens of modules that the largest tier holds."""

    @property
    def seconds_per_token(self) -> float:
        """What computing a token of a module costs, as measured so far."""

    def load(self) -> tuple[int, int]:
        """How many requests are running, and how many are waiting."""

    # --- prompts ---------------------------------------------------------------------------------------------

    def arrange(
        self, parts: Sequence[TextModule | Text], placement: Placement | None = None, slot: int | None = None
    ) -> Plan:
        """Tokenise and place modules and texts in order. placement, slot: the engine's if None. Raises PromptError."""

    def segment(self, module: TextModule) -> Segment:
        """The segment `arrange` makes of a module; for position-independent models the same wherever it stands."""

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        """Content address of a segment's module for this model."""

    # --- computing -------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Generation:
        """Queue a request. Refusals but EngineStopped arrive through the generation."""

    def compute_idle(self, request: Request) -> Generation:
        """Compute a request without reuse while there is nothing else to do; the generation ends with EngineBusy where
        there is something.
        """

    def encode(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Future[Encoded]:
        """Encode modules ahead of use. What fails is named in the result. Raises ValueError for a bad tenant."""

    def prefetch(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Cancellable:
        """Bring modules to device memory while no request runs, the most wanted first: a guess, for which nobody waits.
        Raises ValueError for a bad tenant.
        """

    # --- modules ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until all has ended that was submitted or to be encoded before, and is written to disk. What comes later
        is not waited for.
        """

    def forget(self, keys: Set[str]) -> int:
        """Remove modules from every tier, and everything computed with them; gives how many were there. What is under
        way goes on, but nothing that it computed with them is kept, and it encodes again what it still needs: settle
        first, and submit nothing later that has their text.
        """

    def keep(self, keys: Set[str]) -> None:
        """From now on evict these modules only when nothing else may be evicted."""

    def drop_prefixes(self, tenant: str) -> bool:
        """Remove what was computed for a tenant, but no modules; gives whether all of it is gone."""

    def modules(self, tenant: str) -> frozenset[str]:
        """The modules of a tenant in any tier."""

    def modules_of_prefixes(self) -> frozenset[str]:
        """The modules with which prefixes in memory were computed, also if they were evicted."""

    def bring_to_device(self, segment: Segment) -> None:
        """Have a module in device memory: from another tier, or encoded now. Raises CacheError."""

    def evict(self, key: str) -> bool:
        """Take a module out of device memory; gives whether it is not there now: an answer may use it."""

    def verify(self, segment: Segment) -> ModuleCheck:
        """Compute a module anew and compare it with what is stored. A file that cannot be read is removed. Raises
        CacheError.
        """

    def contents(self, with_modules: bool = True) -> TierContents:
        """What the tiers hold; with_modules: each of them, too, which may be tens of thousands. Raises CacheError after
        CONTENTS_S.
        """

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        """The prefixes that have saved most, first. Raises CacheError after CONTENTS_S."""

    def flush(self) -> None:
        """Wait until everything is on disk."""

    def close(self) -> None:
        """Finish writing modules and stop. Requests in flight end with EngineStopped."""
