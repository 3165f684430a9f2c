"""An engine in a thread of this program, asked for values instead of being given functions of its store."""

from cache.engine.engine import Engine
from cache.errors import CacheError
from cache.memory.disk import DiskTier, LoadFailed
from cache.memory.store import ModuleCheck, PrefixUse, TierContents, contents_of, largest_difference, module_room
from cache.model.language_model import Model
from cache.prompt.plan import Segment
from cache.serving.interface import CONTENTS_S
from cache.serving.messages import EngineSpec

VERIFYING = "verifying"
"""Tenant of what is computed only to be compared."""


class LocalEngine(Engine):
    """An engine as `cache.serving.interface.EngineInterface` wants it."""

    def modules(self, tenant: str) -> frozenset[str]:
        """The modules of a tenant in any tier. Raises EngineStopped."""
        return self.call(lambda store: store.keys_of(tenant))

    def modules_of_prefixes(self) -> frozenset[str]:
        """The modules with which prefixes in memory were computed, also if they were evicted. Raises EngineStopped."""
        return self.call(lambda store: store.device.prefixes.modules())

    def bring_to_device(self, segment: Segment) -> None:
        """Have a module in device memory: from another tier, or encoded now. Raises CacheError."""
        self.encode([segment], into_memory=True).result().raise_failed()

    def evict(self, key: str) -> bool:
        """Take a module out of device memory; gives whether it is not there now: an answer may use it. Raises
        EngineStopped.
        """
        return self.call(lambda store: store.device.evict(key) or key not in store.device.entries)

    def verify(self, segment: Segment) -> ModuleCheck:
        """Compute a module anew and compare it with what is stored, number by number; of a file the checksum, too. A
        file that cannot be read is removed. Raises CacheError.
        """
        key, anew = self.key(segment), self.key(segment, VERIFYING)
        try:
            stored = self.call(lambda store: store.rows(key))
        except LoadFailed as error:
            return ModuleCheck(largest_difference=None, problem=str(error))
        try:
            self.encode([segment], VERIFYING).result().raise_failed()
            computed = self.call(lambda store: store.rows(anew))
        except LoadFailed as error:
            raise CacheError(f"the passage could not be computed anew: {error}") from error
        finally:
            self.call(lambda store: [store.remove(one) for one in store.keys_of(VERIFYING)])
        return ModuleCheck(largest_difference=largest_difference(stored, computed))

    def contents(self, with_modules: bool = True) -> TierContents:
        """What the tiers hold; with_modules: each of them, too, which may be thousands. Raises EngineStopped, and
        CacheError after CONTENTS_S.
        """
        return self.call(lambda store: contents_of(store, with_modules=with_modules), CONTENTS_S)

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        """The prefixes that have saved most, first. Raises EngineStopped, and CacheError after CONTENTS_S."""
        return self.call(lambda store: store.prefix_uses(limit), CONTENTS_S)

    def flush(self) -> None:
        """Wait until everything is on disk. Raises CacheError where the disk hangs."""
        self.store.flush()

    @property
    def module_room(self) -> int:
        """Tokens of modules that the largest tier holds."""
        return module_room(self.store)

    @property
    def seconds_per_token(self) -> float:
        """What computing a token of a module costs, as measured so far."""
        return self.store.compute_cost.mean


def start_engine(model: Model, spec: EngineSpec) -> LocalEngine:
    """A running engine for a model that is loaded already; of the spec all but that is used."""
    disk = open_disk(spec) if spec.disk else None
    if disk is not None:
        disk.clean_up()
    return LocalEngine(
        model,
        memory=spec.memory,
        host_memory=spec.host_memory,
        disk=disk,
        kv_storage=spec.kv_storage,
        placement=spec.placement,
        slot=spec.slot,
        limits=spec.limits,
    ).start()


def open_disk(spec: EngineSpec) -> DiskTier:
    """The disk tier: a folder of the engine's own, or what it shares with others. Raises CacheError."""
    if spec.shared is None:
        return DiskTier(spec.modules, spec.disk, spec.disk_floor)
    from cache.memory.shared import SharedTier  # fsspec comes with several engines

    return SharedTier(spec.shared, spec.disk, spec.disk_floor)
