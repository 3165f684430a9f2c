"""The interface of an engine, in a thread or in another process.

All arguments and results can be sent to another process. Out of scope: additional methods of an engine in a thread,
for tests and measurements.
"""

from collections.abc import Sequence, Set
from concurrent.futures import Future
from typing import Protocol

from cache.engine.request import Encoded, Generation, Request
from cache.memory.disk import TierContents
from cache.memory.keys import PUBLIC_TENANT, ModuleCheck, PrefixUse
from cache.model.info import ModelInfo
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Placement, Plan, Segment
from cache.prompt.tokenizer import ChatTokenizer

CONTENTS_S = 10.0  # maximum seconds to wait for the contents of tiers, which may be large


class Cancellable(Protocol):
    """Work that may be cancelled."""

    def cancel(self) -> None:
        """Cancel the rest of the work. May be called from any thread at any time."""


class EngineInterface(Protocol):
    """The interface of all engines. Any thread may call methods. They raise EngineStopped if the engine has stopped,
    and CacheError if it fails or hangs, so that no caller waits forever.
    """

    @property
    def info(self) -> ModelInfo:
        """Properties of the model."""

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""

    @property
    def is_running(self) -> bool:
        """True if requests are accepted and computed."""

    @property
    def is_idle(self) -> bool:
        """True if there are neither requests nor modules to compute. It may change at any time."""

    @property
    def num_restarts(self) -> int:
        """Number of restarts after errors."""

    @property
    def num_shortages(self) -> int:
        """Number of forward passes that ran out of device memory and were retried with fewer tokens."""

    @property
    def module_room(self) -> int:
        """Capacity of the largest tier, in tokens."""

    @property
    def seconds_per_token(self) -> float:
        """Measured cost of computing one token of a module."""

    def load(self) -> tuple[int, int]:
        """Return the numbers of running and waiting requests."""

    # --- prompts ---------------------------------------------------------------------------------------------

    def arrange(
        self, parts: Sequence[TextModule | Text], placement: Placement | None = None, slot: int | None = None
    ) -> Plan:
        """Tokenise and place modules and texts in order. placement, slot: None: the default. Raises PromptError."""

    def segment(self, module: TextModule) -> Segment:
        """Return the segment that `arrange` makes of a module. Without position independence, its place differs."""

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        """Return the content address of a segment's module for this model."""

    # --- computing -------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Generation:
        """Queue a request. Errors arrive through the generation, except EngineStopped, which is raised."""

    def compute_idle(self, request: Request) -> Generation:
        """Compute a request without reuse while the engine is idle. The generation ends with EngineBusy if there is
        other work.
        """

    def encode(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Future[Encoded]:
        """Encode modules in advance. The result lists failed ones. Raises ValueError for an invalid tenant."""

    def prefetch(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Cancellable:
        """Bring modules to device memory while no request runs. segments: most likely ones first. Raises ValueError for
        an invalid tenant.
        """

    # --- modules ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until all earlier requests and encodings have ended and are on disk."""

    def forget(self, keys: Set[str]) -> int:
        """Remove modules from every tier, and everything computed with them. Returns the number of modules found. Open
        requests continue and encode the modules again if needed, but nothing computed with them is stored. So call
        `settle` first, and submit nothing later with their text.
        """

    def keep(self, keys: Set[str]) -> None:
        """Replace the set of pinned modules, which are evicted last."""

    def drop_prefixes(self, tenant: str) -> bool:
        """Remove everything computed for a tenant except modules. Returns False if open requests still need a part of
        it, which remains until the next call.
        """

    def modules(self, tenant: str) -> frozenset[str]:
        """Return the keys of a tenant's modules in all tiers."""

    def modules_of_prefixes(self) -> frozenset[str]:
        """Return the keys of modules from which prefixes in memory were computed, including evicted modules."""

    def bring_to_device(self, segment: Segment) -> None:
        """Bring a module to device memory, from another tier or by encoding. Raises CacheError."""

    def evict(self, key: str) -> bool:
        """Remove a module from device memory. Returns False if an answer uses it."""

    def verify(self, segment: Segment) -> ModuleCheck:
        """Recompute a module and compare it with the stored one. An unreadable file is removed. Raises CacheError."""

    def contents(self, with_modules: bool = True) -> TierContents:
        """Return the contents of the tiers. with_modules: list each module, possibly tens of thousands. Raises
        CacheError after CONTENTS_S.
        """

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        """Return the prefixes that saved most tokens, at most `limit`. Raises CacheError after CONTENTS_S."""

    def flush(self) -> None:
        """Wait until everything is on disk."""

    def close(self) -> None:
        """Finish writing modules and stop. Open requests end with EngineStopped."""
