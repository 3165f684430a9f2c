"""The tiers of modules: device memory, which also holds exact prefixes, host memory and disk.

The store knows the tier of each module, and the reason for a miss. Owned by the engine thread; other threads read and
write files. `contents_of` returns its contents as plain values.
"""

import heapq
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from cache.errors import CapacityError
from cache.memory.arena import Arena, Extent
from cache.memory.background import DiskWriter, Loader, ModuleLoad
from cache.memory.device import CacheEntry, DeviceMemory, Owner
from cache.memory.disk import DiskTier, LoadFailed, MissReason, ModuleHeader, TierContents, Unreachable
from cache.memory.host import HostTier, PinnedTier
from cache.memory.keys import PUBLIC_TENANT, PrefixUse, Source, digest, segment_key
from cache.memory.kv_format import kept_bytes_per_token, rounded, unpack
from cache.memory.kv_shape import KVStorage
from cache.prompt.plan import Segment

FIRST_COMPUTE_S = 1e-3  # assumed seconds per token before passes are measured
NOISE_S = 0.05  # loading may take these seconds longer than computing: noise of a busy machine
TRIED_ANYWAY = 16
"""If loading is slower than computing, one module out of this number is still loaded, to measure again."""
REMEMBERED_EVICTIONS, REMEMBERED_NAMES = 10_000, 100_000
"""Number of evictions and names to remember, to know why a module is missing and how often it was used."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Result of `Store.find`. entry: the module, pinned. Without entry, it is being loaded from `source` (call again
    after `loading`), or is missing for `reason`.
    """

    entry: CacheEntry | None = None
    source: Source = "computed"
    loading: Future[None] | None = None
    reason: MissReason | None = None


@dataclass(slots=True)
class Cost:
    """Seconds per token, as a running mean."""

    mean: float

    def measured(self, seconds: float, tokens: int) -> None:
        self.mean += 0.1 * (seconds / tokens - self.mean)


class Store:
    """Modules and prefixes of one model. host_memory: bytes for modules evicted from the device. kv_storage: stored
    form in every tier; 8-bit modules have their own keys. on_load: called on any thread when a load ends. compute_cost,
    load_cost, host_cost: cost of computing a token, of reading it from disk, and of copying it from host memory.
    """

    def __init__(
        self,
        arena: Arena,
        fingerprint: str,
        disk: DiskTier | None = None,
        host_memory: int = 0,
        kv_storage: KVStorage = "model",
        on_load: Callable[[], None] = lambda: None,
    ) -> None:
        self.fingerprint = fingerprint if kv_storage == "model" else digest(fingerprint, "kv", kv_storage)
        self.arena, self.kv_storage, self.disk = arena, kv_storage, disk
        self.device = DeviceMemory(arena.slots, self._cost, self._evicted_from_device)
        self._copies, host = arena.copies, (arena, kv_storage, host_memory, self._cost_of, self.device.half_life)
        self._pinned = None if arena.copies is None else PinnedTier(*host, arena.copies)
        self.host = self._pinned or HostTier(*host)
        self.compute_cost, self.load_cost, self.host_cost = Cost(FIRST_COMPUTE_S), Cost(1e-5), Cost(1e-6)
        self._loader = Loader(arena, on_load)
        self._not_loaded: dict[str, MissReason] = {}  # modules to compute although they were or are on disk, and why
        self._bypassed = 0
        self._evicted: OrderedDict[str, CacheEntry] = OrderedDict()  # by key, the oldest first
        self._known_names: OrderedDict[tuple[str, str], ModuleHeader] = OrderedDict()  # the newest header of each
        for header in () if disk is None else disk.headers():
            self._remember_name(header)
        self.writer = None if disk is None else DiskWriter(disk, kv_storage)

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        return segment_key(segment, fingerprint=self.fingerprint, tenant=tenant)

    def has(self, key: str) -> bool:
        return self.tier(key) is not None

    def tier(self, key: str) -> Literal["device", "host", "disk"] | None:
        """Return the fastest tier with a module, or the tier from which it is being loaded. Any thread may call it."""
        if key in self.device.entries:
            return "device"
        if (load := self._loader.running.get(key)) is not None:
            return load.source
        if key in self.host.entries:
            return "host"
        return "disk" if self._is_on_disk(key) else None

    @property
    def is_loading(self) -> bool:
        return bool(self._loader)

    def find(self, segment: Segment, tenant: str) -> Lookup:
        """Find a module and pin it, or start to load it. On a GPU, a module in host memory is returned before it is
        copied: passes wait for it (`Arena.await_layer`). Raises CapacityError if the pool has no space for it.
        """
        self.collect_loads()
        key = self.key(segment, tenant)
        if (entry := self.device.entries.get(key)) is not None:
            return Lookup(entry=self.device.pin(entry), source="device")
        if (load := self._loader.running.get(key)) is not None:
            return Lookup(source=load.source, loading=load.ended)
        header = ModuleHeader.of(segment, fingerprint=self.fingerprint, tenant=tenant)
        return self._load(header, segment.positions) or Lookup(reason=self._why_missing(header))

    def collect_loads(self) -> None:
        for load in self._loader.collect():
            if load.is_dropped:
                self.device.free([load.extent])
            elif load.error is not None:
                self._fail_load(load)
            else:
                cost = self.load_cost if load.source == "disk" else self.host_cost
                cost.measured(load.seconds, load.extent.length)
                self.device.release(self._admit(load.header, load.extent))
        for seconds, tokens in () if self._copies is None else self._copies.measured():
            self.host_cost.measured(seconds, tokens)

    def put(self, segment: Segment, tenant: str, extent: Extent) -> CacheEntry:
        """Admit a module whose rows are in `extent`, pinned, and queue it for the disk unless it is already there or
        the disk is too slow.
        """
        header = ModuleHeader.of(segment, fingerprint=self.fingerprint, tenant=tenant)
        is_stored = self._is_on_disk(header.key)
        entry = self._admit(header, extent)
        if self.kv_storage != "model":  # so that answers do not depend on a module's tier
            self.arena.write(extent, rounded(self.arena.read(extent), self.kv_storage))
        if self.writer is not None and not is_stored:
            self.writer.submit(entry.header, self.arena.read(extent))
        return entry

    def keys_of(self, tenant: str) -> frozenset[str]:
        headers = [entry.header for entry in self.device.entries.values()]
        headers += [load.header for load in self._loader.running.values()]
        headers += [entry.header for entry in self.host.entries.values()]
        headers += [] if self.writer is None else [header for header, _ in [*self.writer.pending.values()]]
        headers += [] if self.disk is None else self.disk.headers()
        return frozenset(header.key for header in headers if header.tenant == tenant)

    def forget(self, keys: Set[str]) -> int:
        """Remove modules from every tier, and all prefixes computed with them. Requests in flight still read them, but
        no new request finds them. Returns the number of modules found.
        """
        self.device.free(self.device.prefixes.forget(keys))
        self.device.half_life.forget(keys)
        found = sum(self.has(key) for key in keys)
        for key in keys:
            self._remove(key)
            self._evicted.pop(key, None)
        return found

    def keep(self, keys: Set[str]) -> None:
        self.device.keep(keys)
        self.host.keep(keys)
        if self.disk is not None:
            self.disk.kept = keys

    def remove(self, key: str) -> bool:
        """Remove a module from every tier unless a request uses it. Returns whether it is gone."""
        entry = self.device.entries.get(key)
        return (entry is None or not entry.refs) and self._remove(key)

    def _remove(self, key: str) -> bool:
        if self.writer is not None:
            self.writer.drop(key)
        self._loader.drop(key)
        self.host.remove(key)
        self._not_loaded.pop(key, None)
        if (entry := self.device.entries.get(key)) is not None:
            self.device.drop(entry)
        return self.disk is None or self.disk.remove(key)

    def rows(self, key: str) -> Tensor:
        """Return the stored rows of a module, `[2, layers, length, kv_heads, head_dim]` on the host: from memory, else
        from its checked file. Raises LoadFailed, also if no tier has it.
        """
        if (entry := self.device.entries.get(key)) is not None:
            return self.arena.read(entry.extent)
        if (kept := self.host.entries.get(key)) is not None:
            return self.host.rows(kept)
        return self._read(key)

    def flush(self) -> None:
        if self.writer is not None:
            self.writer.wait()

    @property
    def is_behind(self) -> bool:
        return self.writer is not None and self.writer.is_behind

    def close(self) -> None:
        """Finish writing, end loads and stop the threads. After it returns, nothing writes into the pool."""
        self._loader.close()
        if self._copies is not None:
            self._copies.drop()
        self.host.close()
        if self.writer is not None:
            self.writer.close()

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        """Return the prefixes that saved most tokens. A prefix that extends another counts only its own tokens."""
        used = (
            PrefixUse(tokens=node.step.tokens, num_tokens=sum(len(n.step.tokens) for n in node.path()), hits=node.hits)
            for node in self.device.prefixes.nodes()
            if node.hits and node.step.key is None
        )
        return heapq.nlargest(limit, used, key=lambda use: use.saved)

    def check_integrity(self) -> None:
        self.device.check_integrity(self._loader.extents())
        self.host.check_integrity()

    def _admit(self, header: ModuleHeader, extent: Extent) -> CacheEntry:
        self._remember_name(header)
        self._not_loaded.pop(header.key, None)
        self.host.remove(header.key)  # if it was computed although a tier had it
        return self.device.admit(header, extent, self._evicted.get(header.key))

    def _why_missing(self, header: ModuleHeader) -> MissReason:
        if header.key in self._not_loaded:
            return self._not_loaded[header.key]
        if header.key in self._evicted:
            return "evicted"
        return header.why_missing(self._known_names.get((header.tenant, header.name)))

    def _load(self, header: ModuleHeader, positions: Sequence[int]) -> Lookup | None:
        """Start to load a module; None if no tier has it or loading is not worth it. Raises CapacityError."""
        key, is_kept = header.key, header.key in self.host.entries
        if not (is_kept or self._is_on_disk(key)) or not self._is_worth_loading(header, is_kept=is_kept):
            return None
        kept = self.host.take(key) if is_kept else None  # so that a module evicted for it does not take its place
        try:
            extent = self.device.reserve(header.num_tokens)
        except CapacityError:
            if kept is not None:
                self.host.put_back(kept)
            raise
        if kept is not None and self._pinned is not None:
            self.arena.place(extent, positions)
            self._pinned.load(kept, extent)
            return Lookup(entry=self._admit(header, extent), source="host")
        load = ModuleLoad(header, "disk" if kept is None else "host", extent, positions)
        dtype = self.arena.dtype
        self._loader.start(load, partial(self._read, key) if kept is None else partial(unpack, kept.tensors, dtype))
        if kept is not None:
            self.host.free(kept)
        return Lookup(source=load.source, loading=load.ended)

    def _is_worth_loading(self, header: ModuleHeader, *, is_kept: bool) -> bool:
        """Return whether loading is expected to be faster than computing, by recent measurements. is_kept: from host
        memory, else from disk.
        """
        if header.key in self._not_loaded:
            return False
        if not is_kept and self._is_being_written(header.key):  # it is also in host memory
            return True
        cost = self.host_cost if is_kept else self.load_cost
        seconds = cost.mean - self.compute_cost.mean
        if self._copies is not None and not is_kept:
            seconds += self.host_cost.mean  # it is then also copied
        noise = 0.0 if self._pinned is not None and is_kept else NOISE_S
        if seconds * header.num_tokens <= noise:
            return True
        self._bypassed += 1
        if self._bypassed % TRIED_ANYWAY == 0:
            cost.mean = self.compute_cost.mean  # measurements under load may be outdated
            return True
        self._not_loaded[header.key] = "bypassed"
        return False

    def _fail_load(self, load: ModuleLoad) -> None:
        key, name = load.header.key, load.header.name
        self.device.free([load.extent])
        if self.disk is not None and isinstance(load.error, LoadFailed) and not isinstance(load.error, Unreachable):
            self.disk.remove(key)
        self._not_loaded[key] = "load failed"
        log.warning("module %s (%s): %s; it is encoded again", name, key, load.error)

    def _read(self, key: str) -> Tensor:
        """Return the rows of a module, from the write queue or its file. Any thread may call it. Raises LoadFailed."""
        if self.disk is None or self.writer is None:
            raise LoadFailed("it is in no tier")
        job = self.writer.pending.get(key)
        return self.disk.read(key) if job is None else job[1]

    def _cost(self, victim: Owner) -> float:
        return self._cost_of(victim.header.key) if isinstance(victim, CacheEntry) else self.compute_cost.mean

    def _cost_of(self, key: str) -> float:
        compute, load = self.compute_cost.mean, self.load_cost.mean
        return min(load, compute) if self._is_on_disk(key) else compute

    def _remember_name(self, header: ModuleHeader) -> None:
        self._known_names[header.tenant, header.name] = header
        if len(self._known_names) > REMEMBERED_NAMES:
            self._known_names.popitem(last=False)

    def _evicted_from_device(self, entry: CacheEntry) -> None:
        if self.host.capacity:
            self.host.put(entry.header, entry.extent, entry.marks)
        self._evicted.pop(entry.header.key, None)
        self._evicted[entry.header.key] = entry
        if len(self._evicted) > REMEMBERED_EVICTIONS:
            self._evicted.popitem(last=False)

    def _is_on_disk(self, key: str) -> bool:
        # in this order: a file appears before its write stops being pending
        return self._is_being_written(key) or (self.disk is not None and key in self.disk)

    def _is_being_written(self, key: str) -> bool:
        return self.writer is not None and key in self.writer.pending


def contents_of(store: Store, *, with_modules: bool) -> TierContents:
    device, host, disk, shape = store.device, store.host, store.disk, store.arena.shape
    per_token, per_kept = shape.bytes_per_token, kept_bytes_per_token(shape, store.kv_storage)
    sizes = {"device": per_token, "host": per_kept, "disk": per_kept}
    held = [("device", entry.header) for entry in device.entries.values()]
    num_bytes = {"device": (device.allocator.capacity - device.allocator.free_slots) * per_token}
    capacity, evictions = {"device": device.allocator.capacity * per_token}, dict(device.evictions)
    if host.capacity:
        held = [("host", entry.header) for entry in host.entries.values()] + held
        num_bytes["host"], capacity["host"], evictions["host"] = host.num_bytes, host.capacity, host.evictions
    if disk is not None:
        held = [("disk", header) for header in disk.headers()] + held
        num_bytes["disk"], capacity["disk"], evictions["disk"] = disk.num_bytes, disk.capacity, disk.evictions
    return TierContents(
        modules=tuple((tier, header, header.num_tokens * sizes[tier]) for tier, header in held if with_modules),
        num_bytes=num_bytes,
        capacity=capacity,
        evictions=evictions,
        space=None if disk is None else disk.space,
        failed_writes=0 if store.writer is None else store.writer.failures,
        skipped_writes=0 if store.writer is None else store.writer.skipped,
    )


def module_room(store: Store) -> int:
    per_token = kept_bytes_per_token(store.arena.shape, store.kv_storage)
    on_disk = 0 if store.disk is None else store.disk.capacity // per_token
    return max(on_disk, store.device.allocator.capacity)


def largest_difference(stored: Tensor, computed: Tensor) -> float:
    largest = stored.abs().max().item() or 1.0
    return float((stored - computed).to(torch.float32).abs().max().item() / largest)
