"""The tiers that modules are kept in: device memory, with exact prefixes beside them, and disk behind it. Where a
module is, and why one is missing. Owned by the engine thread; files are written by a thread of their own, from a copy.
"""

import heapq
import logging
import time
from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cache.memory.allocator import Extent
from cache.memory.arena import Arena
from cache.memory.device import CacheEntry, DeviceMemory, Owner
from cache.memory.disk import DiskTier, LoadFailed
from cache.memory.disk_writer import DiskWriter
from cache.memory.keys import PUBLIC_TENANT, segment_key
from cache.memory.module_header import MissReason, ModuleHeader
from cache.prompt.plan import Segment

Source = Literal["device", "host", "disk", "computed"]
REMEMBERED_EVICTIONS, REMEMBERED_NAMES = 10_000, 100_000
"""To say why a module is missing, and how often it was used."""
log = logging.getLogger(__name__)


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
    """Modules and prefixes of one model."""

    def __init__(self, arena: Arena, fingerprint: str, disk: DiskTier | None = None) -> None:
        self.fingerprint, self.disk = fingerprint, disk
        self.device = DeviceMemory(arena, self._cost, self._remember_eviction)
        self.compute_cost, self.load_cost = Cost(1e-3), Cost(1e-5)
        self._evicted: OrderedDict[str, CacheEntry] = OrderedDict()  # by key, the oldest first
        self._known_names: OrderedDict[tuple[str, str], ModuleHeader] = OrderedDict()  # the newest header of each
        for header in () if disk is None else disk.headers():
            self._remember_name(header)
        self._writer = None if disk is None else DiskWriter(disk)

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        """Content address of a segment for this store's model."""
        return segment_key(segment, fingerprint=self.fingerprint, tenant=tenant)

    def has(self, key: str) -> bool:
        """Whether a module is in any tier."""
        return self.tier(key) is not None

    def tier(self, key: str) -> Literal["device", "disk"] | None:
        """The fastest tier that has a module or is about to. From any thread; it may have moved when this returns."""
        if key in self.device.entries:
            return "device"
        # in this order: a file appears before its write stops being pending
        return "disk" if self._is_being_written(key) or (self.disk is not None and key in self.disk) else None

    def find(self, segment: Segment, tenant: str) -> Lookup:
        """Find a module in any tier and pin it. Raises CapacityError if it is on disk and the arena has no room now."""
        key = self.key(segment, tenant)
        tier = self.tier(key)
        if tier == "device":
            return Lookup(entry=self.device.pin(self.device.entries[key]), source=tier)
        if tier == "disk":
            self.flush(key)
            extent = self.device.reserve(len(segment.tokens))
            try:
                self._load(key, segment, extent)
            except Exception as error:
                self.device.free([extent])
                if not isinstance(error, LoadFailed):
                    raise
                log.warning("module %s (%s): %s; it is computed again", segment.name, key, error)
                return Lookup(reason="load failed")
            return Lookup(entry=self._admit(segment, tenant, extent), source=tier)
        if key in self._evicted:
            return Lookup(reason="evicted")
        wanted = ModuleHeader.of(segment, fingerprint=self.fingerprint, tenant=tenant)
        return Lookup(reason=wanted.why_missing(self._known_names.get((tenant, segment.name))))

    def put(self, segment: Segment, tenant: str, extent: Extent) -> CacheEntry:
        """Admit a module whose rows are in `extent`, pinned, and have it written to disk in the background."""
        entry = self._admit(segment, tenant, extent)
        if self._writer is not None:
            self._writer.submit(entry.header, self.device.arena.read(extent))
        return entry

    def keys_of(self, tenant: str) -> frozenset[str]:
        """Every module of a tenant, in any tier."""
        headers = [entry.header for entry in self.device.entries.values()]
        headers += [] if self.disk is None else self.disk.headers()
        return frozenset(header.key for header in headers if header.tenant == tenant)

    def forget(self, keys: Set[str]) -> int:
        """Remove modules from every tier, and every prefix that was computed with them. What requests in flight read
        is found by nobody else from now on, and gone when they end. Returns how many modules were there.
        """
        self.device.free(self.device.prefixes.forget(keys))
        self.device.forget_uses(keys)
        found = 0
        for key in keys:
            self.flush(key)
            found += self.has(key)
            if (entry := self.device.entries.get(key)) is not None:
                self.device.drop(entry)
            if self.disk is not None:
                self.disk.remove(key)
            self._evicted.pop(key, None)
        return found

    def keep(self, keys: Set[str]) -> None:
        """From now on evict these modules only when nothing else may be evicted, in memory and on disk."""
        self.device.keep(keys)
        if self.disk is not None:
            self.disk.kept = keys

    def remove(self, key: str) -> bool:
        """Remove a module that no request uses from every tier. Gives whether it is gone."""
        entry = self.device.entries.get(key)
        if entry is not None and entry.refs:
            return False
        self.flush(key)
        if entry is not None:
            self.device.drop(entry)
        return self.disk is None or self.disk.remove(key)

    def rows(self, key: str) -> Tensor:
        """What is stored of a module, `[2, layers, length, kv_heads, head_dim]` on the host: from memory, else from its
        file, whose checksum is checked. Raises LoadFailed, also if it is in no tier.
        """
        if (entry := self.device.entries.get(key)) is not None:
            return self.device.arena.read(entry.extent)
        self.flush(key)
        if self.disk is None:
            raise LoadFailed("it is in no tier")
        return self.disk.read(key)

    def flush(self, key: str | None = None) -> None:
        """Wait until `key` (default: everything) is on disk."""
        if self._writer is not None and (key is None or self._is_being_written(key)):
            self._writer.wait()

    def close(self) -> None:
        """Finish writing and stop the writer."""
        if self._writer is not None:
            self._writer.close()

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        """The prefixes that have saved most, first: where several continue one another, each counts its own tokens."""
        used = (
            PrefixUse(tokens=node.step.tokens, num_tokens=sum(len(n.step.tokens) for n in node.path()), hits=node.hits)
            for node in self.device.prefixes.nodes()
            if node.hits and node.step.key is None
        )
        return heapq.nlargest(limit, used, key=lambda use: use.saved)

    def check_integrity(self) -> None:
        """Assert that nothing leaked: see `DeviceMemory.check_integrity`."""
        self.device.check_integrity()

    def _admit(self, segment: Segment, tenant: str, extent: Extent) -> CacheEntry:
        header = ModuleHeader.of(segment, fingerprint=self.fingerprint, tenant=tenant)
        self._remember_name(header)
        return self.device.admit(header, extent, self._evicted.get(header.key))

    def _load(self, key: str, segment: Segment, extent: Extent) -> None:
        assert self.disk is not None
        started = time.perf_counter()
        rows = self.disk.read(key)
        shape = self.device.arena.shape
        if rows.shape != (2, shape.layers, extent.length, shape.kv_heads, shape.head_dim) or rows.dtype != shape.dtype:
            self.disk.remove(key)
            raise LoadFailed(f"shape {tuple(rows.shape)} {rows.dtype} is not this model's")
        self.device.arena.write(extent, rows)
        self.device.arena.positions[extent.start : extent.end] = torch.tensor(segment.positions)
        self.load_cost.measured(time.perf_counter() - started, extent.length)

    def _cost(self, victim: Owner) -> float:
        """Seconds per token to get it back: from disk, or by computing it."""
        if isinstance(victim, CacheEntry) and self.disk is not None:
            key = victim.header.key
            if key in self.disk.entries or self._is_being_written(key):
                return self.load_cost.mean
        return self.compute_cost.mean

    def _remember_name(self, header: ModuleHeader) -> None:
        self._known_names[header.tenant, header.name] = header
        if len(self._known_names) > REMEMBERED_NAMES:
            self._known_names.popitem(last=False)

    def _remember_eviction(self, entry: CacheEntry) -> None:
        self._evicted.pop(entry.header.key, None)
        self._evicted[entry.header.key] = entry
        if len(self._evicted) > REMEMBERED_EVICTIONS:
            self._evicted.popitem(last=False)

    def _is_being_written(self, key: str) -> bool:
        return self._writer is not None and key in self._writer.pending
