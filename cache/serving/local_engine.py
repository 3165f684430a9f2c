"""An engine in a thread of this program, with the interface `EngineInterface`."""

from cache.engine.engine import Engine
from cache.errors import CacheError
from cache.memory.disk import DiskTier, LoadFailed, TierContents
from cache.memory.keys import ModuleCheck, PrefixUse
from cache.memory.store import contents_of, largest_difference, module_room
from cache.model.language_model import Model
from cache.prompt.plan import Segment
from cache.serving.interface import CONTENTS_S
from cache.serving.messages import EngineSpec

VERIFYING = "verifying"  # tenant of modules that are computed only for comparison


class LocalEngine(Engine):
    """An `EngineInterface` in this process."""

    def modules(self, tenant: str) -> frozenset[str]:
        return self.call(lambda store: store.keys_of(tenant))

    def modules_of_prefixes(self) -> frozenset[str]:
        return self.call(lambda store: store.device.prefixes.modules())

    def bring_to_device(self, segment: Segment) -> None:
        self.encode([segment], into_memory=True).result().raise_failed()

    def evict(self, key: str) -> bool:
        return self.call(lambda store: store.device.evict(key) or key not in store.device.entries)

    def verify(self, segment: Segment) -> ModuleCheck:
        key, anew = self.key(segment), self.key(segment, VERIFYING)
        try:
            stored = self.call(lambda store: store.rows(key))
        except LoadFailed as error:
            return ModuleCheck(largest_difference=None, problem=str(error))
        try:
            self.encode([segment], VERIFYING).result().raise_failed()
            computed = self.call(lambda store: store.rows(anew))
        except LoadFailed as error:
            raise CacheError(f"the passage could not be computed again: {error}") from error
        finally:
            self.call(lambda store: [store.remove(one) for one in store.keys_of(VERIFYING)])
        return ModuleCheck(largest_difference=largest_difference(stored, computed))

    def contents(self, with_modules: bool = True) -> TierContents:
        return self.call(lambda store: contents_of(store, with_modules=with_modules), CONTENTS_S)

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        return self.call(lambda store: store.prefix_uses(limit), CONTENTS_S)

    def flush(self) -> None:
        self.store.flush()

    @property
    def module_room(self) -> int:
        return module_room(self.store)

    @property
    def seconds_per_token(self) -> float:
        return self.store.compute_cost.mean


def start_engine(model: Model, spec: EngineSpec) -> LocalEngine:
    disk: DiskTier | None = None
    if spec.disk and spec.shared is not None:
        from cache.memory.shared import SharedTier  # fsspec is installed only for several engines

        disk = SharedTier(spec.shared, spec.disk, spec.disk_floor)
    elif spec.disk:
        disk = DiskTier(spec.modules, spec.disk, spec.disk_floor)
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
