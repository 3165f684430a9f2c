"""What an engine whose model runs elsewhere has of modules and prefixes: nothing. Its server may keep what it wants,
and nobody can look.

Only files are left that an engine of this machine wrote before: they are not used, but what has to be forgotten goes.
"""

from collections.abc import Sequence, Set
from concurrent.futures import Future

from cache.engine.encoder import Encoded
from cache.errors import CacheError
from cache.memory.contents import ModuleCheck, TierContents
from cache.memory.disk import DiskTier
from cache.memory.keys import PUBLIC_TENANT, digest
from cache.memory.store import PrefixUse
from cache.prompt.plan import Segment
from cache.serving.interface import Cancellable

ELSEWHERE = "the language model runs elsewhere"
NOT_HERE = f"{ELSEWHERE}: its memory is its server's own"


class NothingBegun:
    """What was never begun needs not be dropped."""

    def cancel(self) -> None:
        """Nothing to do."""


class WithoutModules:
    """That half of `cache.serving.interface.EngineInterface`."""

    num_restarts, num_shortages, module_room, seconds_per_token = 0, 0, 0, 0.0

    def __init__(self, left_over: DiskTier | None) -> None:
        """left_over: files of modules of an engine that ran here before."""
        self._left_over = left_over

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        return digest("elsewhere", tenant, segment.name, repr(segment.tokens))

    def encode(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Future[Encoded]:
        """Nothing is encoded, and nothing failed."""
        done: Future[Encoded] = Future()
        done.set_result(Encoded(0, {}))
        return done

    def prefetch(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Cancellable:
        return NothingBegun()

    def forget(self, keys: Set[str]) -> int:
        """Remove the files of modules; gives how many there were. What a server keeps, it forgets by itself."""
        if self._left_over is None:
            return 0
        return sum(self._left_over.remove(key) for key in keys if key in self._left_over)

    def keep(self, keys: Set[str]) -> None:
        pass

    def drop_prefixes(self, tenant: str) -> bool:
        return True

    def modules(self, tenant: str) -> frozenset[str]:
        """Those of which there are files."""
        headers = [] if self._left_over is None else self._left_over.headers()
        return frozenset(header.key for header in headers if header.tenant == tenant)

    def modules_of_prefixes(self) -> frozenset[str]:
        return frozenset()

    def bring_to_device(self, segment: Segment) -> None:
        raise CacheError(NOT_HERE)

    def evict(self, key: str) -> bool:
        return True

    def verify(self, segment: Segment) -> ModuleCheck:
        raise CacheError(NOT_HERE)

    def contents(self, with_modules: bool = True) -> TierContents:
        return TierContents()

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        return []

    def flush(self) -> None:
        pass
