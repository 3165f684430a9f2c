"""Where KV lives: encoded modules and exact prefixes in the device arena, modules on disk behind it.

What no request uses may be evicted, in the order of GDSF (greedy dual size frequency, Cherkasova 1998): the entry of
lowest value goes first, those that are to be kept last. An entry's value is `age + (1 + hits) * seconds`. age: the
clock when it was last used; seconds: what it costs now to get one of its tokens back, by loading it if it is on disk,
else by computing it. (GDSF divides by the size; here every token has the same size.) The clock is the value of the last
victim, so that old entries fall behind. Hits are requests that began with the entry; that it was encoded is none.
Owned by the engine thread. Files are written by a thread of their own, from a copy.
"""

import heapq
import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from cache.errors import CapacityError
from cache.memory.allocator import Extent, ExtentAllocator, join_extents
from cache.memory.arena import Arena
from cache.memory.disk import DiskTier, LoadFailed
from cache.memory.disk_writer import DiskWriter
from cache.memory.keys import PUBLIC_TENANT, segment_key
from cache.memory.module_header import MissReason, ModuleHeader
from cache.memory.prefix_tree import PrefixNode, PrefixTree
from cache.prompt.plan import Segment

Source = Literal["device", "host", "disk", "computed"]
REMEMBERED_EVICTIONS = 10_000
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class CacheEntry:
    """An encoded module in the arena. refs: how many requests and encodings use it (pins). age: the clock at its last
    use.
    """

    header: ModuleHeader
    extent: Extent
    refs: int = 0
    hits: int = 0
    age: float = 0.0
    last_used: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Answer of `Store.find`. `entry` is pinned; it is None on a miss, and then `reason` says why."""

    entry: CacheEntry | None = None
    source: Source = "computed"
    reason: MissReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixUse:
    """A computed prefix that later requests found. tokens: its last run; num_tokens: from the prompt's beginning on."""

    tokens: tuple[int, ...]
    num_tokens: int
    hits: int

    @property
    def saved(self) -> int:
        """Tokens that were not computed again because of the last run."""
        return self.hits * len(self.tokens)


@dataclass(slots=True)
class Cost:
    """Seconds per token, as a running mean of what was measured."""

    mean: float

    def measured(self, seconds: float, tokens: int) -> None:
        """Include one forward pass, or one read from disk."""
        self.mean += 0.1 * (seconds / tokens - self.mean)


class Store:
    """Modules and prefixes of one model. kept: see `keep`."""

    def __init__(self, arena: Arena, fingerprint: str, disk: DiskTier | None = None) -> None:
        self.arena, self.fingerprint, self.disk = arena, fingerprint, disk
        self.allocator = ExtentAllocator(arena.slots)
        self.prefixes = PrefixTree()
        self.entries: dict[str, CacheEntry] = {}
        self.compute_cost, self.load_cost = Cost(1e-3), Cost(1e-5)
        self.evictions: Counter[str] = Counter()
        self.kept = frozenset[str]()
        self._clock = 0.0
        self._evicted: deque[str] = deque(maxlen=REMEMBERED_EVICTIONS)
        self._known_names = {(h.tenant, h.name): h for h in (disk.headers() if disk is not None else ())}
        self._writer = None if disk is None else DiskWriter(disk)

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        """Content address of a segment for this store's model."""
        return segment_key(segment, fingerprint=self.fingerprint, tenant=tenant)

    def has(self, key: str) -> bool:
        """Whether a module is in any tier."""
        return self.tier(key) is not None

    def tier(self, key: str) -> Literal["device", "disk"] | None:
        """The fastest tier that has a module or is about to. From any thread; it may have moved when this returns."""
        if key in self.entries:
            return "device"
        # in this order: a file appears before its write stops being pending
        return "disk" if self._is_being_written(key) or (self.disk is not None and key in self.disk) else None

    def find(self, segment: Segment, tenant: str) -> Lookup:
        """Find a module in any tier and pin it. Raises CapacityError if it is on disk and the arena has no room now."""
        key = self.key(segment, tenant)
        tier = self.tier(key)
        if tier == "device":
            return Lookup(entry=self._pin(self.entries[key]), source=tier)
        if tier == "disk":
            self.flush(key)
            extent = self.reserve(len(segment.tokens))
            try:
                self._load(key, segment, extent)
                return Lookup(entry=self._admit(segment, tenant, extent), source=tier)
            except LoadFailed as error:
                self.allocator.free(extent)
                log.warning("module %s (%s): %s; it is computed again", segment.name, key, error)
                return Lookup(reason="load failed")
        if key in self._evicted:
            return Lookup(reason="evicted")
        wanted = ModuleHeader.of(segment, fingerprint=self.fingerprint, tenant=tenant)
        return Lookup(reason=wanted.why_missing(self._known_names.get((tenant, segment.name))))

    def put(self, segment: Segment, tenant: str, extent: Extent) -> CacheEntry:
        """Admit a module whose rows are in `extent`, pinned, and have it written to disk in the background."""
        entry = self._admit(segment, tenant, extent)
        if self._writer is not None:
            self._writer.submit(entry.header, self.arena.read(extent))
        return entry

    def keys_of(self, tenant: str) -> frozenset[str]:
        """Every module of a tenant, in any tier."""
        headers = [entry.header for entry in self.entries.values()]
        headers += [] if self.disk is None else self.disk.headers()
        return frozenset(header.key for header in headers if header.tenant == tenant)

    def release(self, entry: CacheEntry) -> None:
        """Undo one pin."""
        assert entry.refs > 0, entry
        entry.refs -= 1

    def forget(self, keys: Set[str]) -> int:
        """Remove modules from every tier, and every prefix, which may have been computed with them. Returns how many
        modules were there. For when no request is in flight.
        """
        self.flush()
        for extent in self.prefixes.clear():
            self.allocator.free(extent)
        found = 0
        for key in keys:
            found += self.has(key)
            entry = self.entries.pop(key, None)
            if entry is not None:
                assert not entry.refs, entry
                self.allocator.free(entry.extent)
            if self.disk is not None:
                self.disk.remove(key)
            if key in self._evicted:
                self._evicted.remove(key)
        return found

    def keep(self, keys: Set[str]) -> None:
        """From now on evict these modules only when nothing else may be evicted, in memory and on disk."""
        self.kept = frozenset(keys)
        if self.disk is not None:
            self.disk.kept = self.kept

    def evict(self, key: str) -> bool:
        """Free the memory of a module that no request uses; its copy on disk stays. Gives whether it was freed."""
        entry = self.entries.get(key)
        if entry is None or entry.refs:
            return False
        self._evict(entry)
        return True

    def remove(self, key: str) -> bool:
        """Remove a module that no request uses from every tier. Gives whether it is gone."""
        entry = self.entries.get(key)
        if entry is not None and entry.refs:
            return False
        self.flush(key)
        if entry is not None:
            del self.entries[key]
            self.allocator.free(entry.extent)
        if self.disk is not None:
            self.disk.remove(key)
        return True

    def rows(self, key: str) -> Tensor:
        """What is stored of a module, `[2, layers, length, kv_heads, head_dim]` on the host: from memory, else from its
        file, whose checksum is checked. Raises LoadFailed, also if it is in no tier.
        """
        if (entry := self.entries.get(key)) is not None:
            return self.arena.read(entry.extent)
        self.flush(key)
        if self.disk is None:
            raise LoadFailed("it is in no tier")
        return self.disk.read(key)

    def drop_prefixes(self, tenant: str) -> bool:
        """Remove what was computed for a tenant, but no modules. Gives whether all of it is gone: what a request in
        flight needs stays.
        """
        for extent in self.prefixes.clear(tenant):
            self.allocator.free(extent)
        return not any(self.prefixes.nodes(tenant))

    def flush(self, key: str | None = None) -> None:
        """Wait until `key` (default: everything) is on disk."""
        if self._writer is not None and (key is None or self._is_being_written(key)):
            self._writer.wait()

    def close(self) -> None:
        """Finish writing and stop the writer."""
        if self._writer is not None:
            self._writer.close()

    def reserve(self, length: int) -> Extent:
        """A free extent, by eviction if need be. Raises CapacityError, evicting nothing, if too much is in use."""
        extent = self.allocator.allocate(length)
        if extent is None and (largest := self._largest_possible()) < length:
            raise CapacityError(
                f"{length} tokens of KV memory are needed in one piece, {largest} can be had and the rest of "
                f"{self.allocator.capacity} is in use: raise --memory or ask for less at once"
            )
        while extent is None:
            self._evict_one()
            extent = self.allocator.allocate(length)
        return extent

    def count_use(self, entries: Iterable[CacheEntry]) -> None:
        """Count a request that begins to run with modules that it found."""
        for entry in entries:
            entry.hits += 1
            entry.age, entry.last_used = self._clock, time.time()

    def touch(self, node: PrefixNode, *, is_use: bool = True) -> None:
        """Renew the age of a prefix path; is_use: count a request that found it, not the one that made it."""
        for step in node.path():
            step.hits += is_use
            step.age = self._clock

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        """The prefixes that have saved most, first: where several continue one another, each counts its own tokens."""
        used = (
            PrefixUse(tokens=node.step.tokens, num_tokens=sum(len(n.step.tokens) for n in node.path()), hits=node.hits)
            for node in self.prefixes.nodes()
            if node.hits and node.step.key is None
        )
        return heapq.nlargest(limit, used, key=lambda use: use.saved)

    def check_integrity(self) -> None:
        """Assert that extents tile the arena and that nothing is pinned. For when no request is in flight."""
        for owner in self._owners():
            assert owner.refs == 0, ("pinned while idle", owner)
        self.allocator.check_integrity(owner.extent for owner in self._owners())

    def _owners(self) -> Iterator[CacheEntry | PrefixNode]:
        """Everything that owns slots of the arena while no request is in flight."""
        yield from self.entries.values()
        yield from self.prefixes.nodes()

    def _pin(self, entry: CacheEntry) -> CacheEntry:
        entry.refs += 1
        return entry

    def _admit(self, segment: Segment, tenant: str, extent: Extent) -> CacheEntry:
        header = ModuleHeader.of(segment, fingerprint=self.fingerprint, tenant=tenant)
        assert header.key not in self.entries, header
        entry = self.entries[header.key] = CacheEntry(header, extent, age=self._clock)
        self._known_names[tenant, header.name] = header
        return self._pin(entry)

    def _load(self, key: str, segment: Segment, extent: Extent) -> None:
        assert self.disk is not None
        started = time.perf_counter()
        rows = self.disk.read(key)
        shape = self.arena.shape
        if rows.shape != (2, shape.layers, extent.length, shape.kv_heads, shape.head_dim) or rows.dtype != shape.dtype:
            self.disk.remove(key)
            raise LoadFailed(f"shape {tuple(rows.shape)} {rows.dtype} is not this model's")
        self.arena.write(extent, rows)
        self.arena.positions[extent.start : extent.end] = torch.tensor(segment.positions)
        self.load_cost.measured(time.perf_counter() - started, extent.length)

    def _largest_possible(self) -> int:
        """Length of the largest free extent there would be if everything that may be evicted were."""
        extents = [owner.extent for owner in self._owners() if not owner.refs]
        return max((one.length for one in join_extents(sorted([*extents, *self.allocator.holes]))), default=0)

    def _evict_one(self) -> None:
        """Evict the entry of lowest value; there is one."""
        victims: list[CacheEntry | PrefixNode] = [entry for entry in self.entries.values() if not entry.refs]
        victims.extend(self.prefixes.leaves())
        self._evict(min(victims, key=lambda victim: (self._is_kept(victim), self._value(victim))))

    def _value(self, victim: CacheEntry | PrefixNode) -> float:
        disk = self.disk
        is_on_disk = isinstance(victim, CacheEntry) and disk is not None and victim.header.key in disk.entries
        return victim.age + (1 + victim.hits) * (self.load_cost if is_on_disk else self.compute_cost).mean

    def _is_kept(self, victim: CacheEntry | PrefixNode) -> bool:
        return isinstance(victim, CacheEntry) and victim.header.key in self.kept

    def _evict(self, victim: CacheEntry | PrefixNode) -> None:
        self._clock = max(self._clock, self._value(victim))
        self.allocator.free(victim.extent)
        if isinstance(victim, CacheEntry):
            del self.entries[victim.header.key]
            self._evicted.append(victim.header.key)
            self.evictions["module"] += 1
        else:
            self.prefixes.evict(victim)
            self.evictions["prefix"] += 1

    def _is_being_written(self, key: str) -> bool:
        return self._writer is not None and key in self._writer.pending
