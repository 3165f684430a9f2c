"""Where KV lives: encoded modules and exact prefixes in the device arena, modules on disk behind it.

`find` answers for one module: in the arena already, promoted from disk now, or missing and why. Extents are
immutable and reference-counted; what no request uses may be evicted by value: when the arena is full the entry
with the lowest `clock + hits * seconds` goes, where seconds is what getting one of its tokens back would cost
(load from disk if it is there, else compute), and the clock rises to the value of the last victim so that old
glory fades (GDSF; per byte the sizes cancel, because every token has the same size).

Owned by the engine thread. Files are written by a thread of their own, from a copy.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from cache.errors import CapacityError
from cache.memory.allocator import Extent, ExtentAllocator
from cache.memory.arena import Arena
from cache.memory.disk import DiskTier, Header, LoadFailed
from cache.memory.keys import PUBLIC_TENANT, digest, segment_key, token_bytes
from cache.memory.prefix_tree import Node, PrefixTree
from cache.prompt.plan import Segment

Source = Literal["device", "host", "disk", "computed"]
MissReason = Literal[
    "never built",
    "evicted",
    "document changed",
    "model or template changed",
    "placement",
    "load failed",
    "bypassed",
]
log = logging.getLogger(__name__)

WRITES_IN_FLIGHT = 8
"""Modules copied and waiting for the disk; the engine waits when there are more."""


@dataclass(slots=True, eq=False)
class CacheEntry:
    """An encoded module in the arena."""

    header: Header
    extent: Extent
    refs: int = 0
    hits: int = 0
    priority: float = 0.0
    last_used: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Answer of `find`. `entry` is pinned; it is None on a miss, and then `reason` says why."""

    entry: CacheEntry | None
    source: Source
    reason: MissReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixUse:
    """A computed prefix that later requests found. tokens: its last run; num_tokens: from the prompt's beginning on;
    saved: tokens that were not computed again because of that run.
    """

    tokens: tuple[int, ...]
    num_tokens: int
    hits: int
    saved: int


@dataclass(slots=True)
class Costs:
    """Seconds per token, measured as the engine runs (running means)."""

    compute: float = 1e-3
    load: float = 1e-5

    def measured_compute(self, seconds: float, tokens: int) -> None:
        """Blend in one forward pass."""
        self.compute += 0.1 * (seconds / tokens - self.compute)

    def measured_load(self, seconds: float, tokens: int) -> None:
        """Blend in one read from disk."""
        self.load += 0.1 * (seconds / tokens - self.load)


class Store:
    """Modules and prefixes of one model."""

    def __init__(self, arena: Arena, fingerprint: str, disk: DiskTier | None = None) -> None:
        self.arena, self.fingerprint, self.disk = arena, fingerprint, disk
        self.allocator = ExtentAllocator(arena.slots)
        self.prefixes = PrefixTree()
        self.entries: dict[str, CacheEntry] = {}
        self.costs = Costs()
        self.evictions: Counter[str] = Counter()
        self._clock = 0.0
        self._evicted: deque[str] = deque(maxlen=10_000)
        self._known_names: dict[tuple[str, str], Header] = {}
        if disk is not None:
            self._known_names.update(((h.tenant, h.name), h) for h in disk.headers())
        self._writer = Writer(disk) if disk is not None else None

    # --- modules -------------------------------------------------------------------------------------------

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        """Content address of a segment for this store's model."""
        return segment_key(segment, fingerprint=self.fingerprint, tenant=tenant)

    def has(self, key: str) -> bool:
        """Whether a module is in any tier."""
        return key in self.entries or self._is_kept(key)

    def tier(self, key: str) -> Literal["device", "disk"] | None:
        """The fastest tier that has a module. From any thread; it may have moved when this returns."""
        if key in self.entries:
            return "device"
        return "disk" if self._is_kept(key) else None

    def find(self, segment: Segment, tenant: str) -> Found:
        """Look a module up, promote it from disk if it is there, and pin it.

        Raises CapacityError if it is on disk and the arena cannot take it now; nothing is pinned then.
        """
        key = self.key(segment, tenant)
        entry = self.entries.get(key)
        if entry is not None:
            return Found(entry=self._pin(entry), source="device")
        failed = False
        if self._is_kept(key):
            self.flush(key)
            extent = self.reserve(len(segment.tokens))
            try:
                self._load(key, segment, extent)
                return Found(entry=self._admit(segment, tenant, extent), source="disk")
            except LoadFailed as error:
                self.allocator.free(extent)
                failed = True
                log.warning("module %s (%s): %s; it is computed again", segment.name, key, error)
        return Found(entry=None, source="computed", reason=self._miss_reason(segment, tenant, key, failed))

    def put(self, segment: Segment, tenant: str, extent: Extent) -> CacheEntry:
        """Admit a module whose rows are in `extent` now; returned pinned. Written to disk in the background."""
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
        """Remove modules from every tier, and every prefix, since any of them may have been computed with their text.
        Returns how many modules were there. For when no request is in flight.
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

    def flush(self, key: str | None = None) -> None:
        """Wait until `key` (default: everything) is on disk."""
        if self._writer is not None and (key is None or self._is_being_written(key)):
            self._writer.wait()

    def close(self) -> None:
        """Finish writing and stop the writer."""
        if self._writer is not None:
            self._writer.close()

    # --- memory --------------------------------------------------------------------------------------------

    def reserve(self, length: int) -> Extent:
        """A free extent, evicting what is worth least. Raises CapacityError, and evicts nothing, if what is in use
        leaves no room.
        """
        extent = self.allocator.allocate(length)
        if extent is None and (room := self._reachable()) < length:
            raise CapacityError(
                f"{length} tokens of KV memory are needed in one piece, {room} can be had and the rest of "
                f"{self.allocator.capacity} is in use: raise --memory or ask for less at once"
            )
        while extent is None:
            self._evict_one()
            extent = self.allocator.allocate(length)
        return extent

    def touch(self, node: Node, *, is_use: bool = True) -> None:
        """Renew the value of a prefix path; is_use: count a request that found it, not the one that made it."""
        for step in node.path():
            step.hits += is_use
            step.priority = self._clock + (1 + step.hits) * self.costs.compute

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        """The prefixes that have saved most, first: where several continue one another, each counts its own tokens."""
        used = sorted((n for n in self.prefixes.nodes() if n.hits and n.step.key is None), key=lambda n: -n.saved)
        return [
            PrefixUse(
                tokens=node.step.tokens,
                num_tokens=sum(len(step.step.tokens) for step in node.path()),
                hits=node.hits,
                saved=node.saved,
            )
            for node in used[:limit]
        ]

    def check_integrity(self) -> None:
        """Assert that extents tile the arena and that nothing is pinned. For when no request is in flight."""
        for entry in self.entries.values():
            assert entry.refs == 0, ("pinned while idle", entry)
        used = [entry.extent for entry in self.entries.values()]
        for node in self.prefixes.nodes():
            assert node.refs == 0, ("pinned while idle", node)
            used.append(node.extent)
        self.allocator.check_integrity(used)

    def _pin(self, entry: CacheEntry) -> CacheEntry:
        entry.refs += 1
        entry.hits += 1
        entry.last_used = time.time()
        cheap = self.disk is not None and entry.header.key in self.disk.entries
        entry.priority = self._clock + entry.hits * (self.costs.load if cheap else self.costs.compute)
        return entry

    def _admit(self, segment: Segment, tenant: str, extent: Extent) -> CacheEntry:
        prefix = "" if segment.prefix is None else self.key(segment.prefix, tenant)
        header = Header(
            key=self.key(segment, tenant),
            name=segment.name,
            tenant=tenant,
            fingerprint=self.fingerprint,
            prefix=prefix,
            tokens=digest(token_bytes(segment.tokens)),
            start=segment.start,
            num_tokens=len(segment.tokens),
            gaps=gaps_of(segment),
            left_context=left_context_digest(segment),
        )
        entry = CacheEntry(header, extent)
        assert header.key not in self.entries, header
        self.entries[header.key] = entry
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
        self.costs.measured_load(time.perf_counter() - started, extent.length)

    def _reachable(self) -> int:
        """Length of the largest extent there would be if everything that may be evicted were."""
        extents = [r.extent for r in self.entries.values() if not r.refs]
        extents += [node.extent for node in self.prefixes.nodes() if not node.refs and node.extent.length]
        longest = length = end = 0
        for extent in sorted([*extents, *self.allocator.holes]):
            length = length + extent.length if extent.start == end else extent.length
            end = extent.end
            longest = max(longest, length)
        return longest

    def _evict_one(self) -> None:
        """Evict the entry of least value; there is one."""
        victims: list[CacheEntry | Node] = [r for r in self.entries.values() if not r.refs]
        victims.extend(self.prefixes.leaves())
        victim = min(victims, key=lambda v: v.priority)
        self._clock = max(self._clock, victim.priority)
        if isinstance(victim, CacheEntry):
            del self.entries[victim.header.key]
            self._evicted.append(victim.header.key)
            self.allocator.free(victim.extent)
            self.evictions["module"] += 1
        else:
            self.allocator.free(self.prefixes.evict(victim))
            self.evictions["prefix"] += 1

    def _miss_reason(self, segment: Segment, tenant: str, key: str, load_failed: bool) -> MissReason:
        if load_failed:
            return "load failed"
        if key in self._evicted:
            return "evicted"
        known = self._known_names.get((tenant, segment.name))
        if known is None or known.key == key:
            return "never built"
        prefix = "" if segment.prefix is None else self.key(segment.prefix, tenant)
        if (known.fingerprint, known.prefix) != (self.fingerprint, prefix):
            return "model or template changed"
        if (known.tokens, known.left_context) != (digest(token_bytes(segment.tokens)), left_context_digest(segment)):
            return "document changed"
        return "placement" if (known.start, known.gaps) != (segment.start, gaps_of(segment)) else "never built"

    def _is_being_written(self, key: str) -> bool:
        return self._writer is not None and key in self._writer.pending

    def _is_kept(self, key: str) -> bool:
        """On disk, or about to be. In this order: a file appears before its write stops being pending."""
        return self._is_being_written(key) or (self.disk is not None and key in self.disk)


def gaps_of(segment: Segment) -> str:
    """A segment's gaps as a header keeps them."""
    return " ".join(f"{row}+{jump}" for row, jump in segment.gaps)


def left_context_digest(segment: Segment) -> str:
    """A segment's left context as a header keeps it: a digest, empty for none."""
    return digest(token_bytes(segment.left_context)) if segment.left_context else ""


class Writer:
    """Writes modules to disk on a thread of its own. A disk that refuses is reported once and then only counted."""

    def __init__(self, disk: DiskTier) -> None:
        self.disk = disk
        self.pending: set[str] = set()
        self.failures = 0
        self._queue: queue.Queue[tuple[Header, Tensor] | None] = queue.Queue(maxsize=WRITES_IN_FLIGHT)
        self._thread = threading.Thread(target=self._run, name="warmdesk-disk", daemon=True)
        self._thread.start()

    def submit(self, header: Header, rows: Tensor) -> None:
        """Queue one module; waits while too many are queued."""
        self.pending.add(header.key)
        self._queue.put((header, rows))

    def wait(self) -> None:
        """Return when everything submitted so far is written or has failed."""
        self._queue.join()

    def close(self) -> None:
        """Finish the queue and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            header, rows = job
            try:
                self.disk.write(header, rows)
            except Exception as error:  # whatever happens, the engine must not wait for a dead thread
                if not self.failures:
                    log.error("modules cannot be kept on disk (%s): they are computed again after a restart", error)
                self.failures += 1
            finally:
                self.pending.discard(header.key)
                self._queue.task_done()
        self._queue.task_done()
