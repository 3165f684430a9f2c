"""Device memory: owners of the KV pool's slots, pins, and eviction.

A module is one run of slots, so that attention reads it in one piece. If no free run is long enough, adjacent owners
are evicted together. Rows of a request may be in several runs. Owned by the engine thread. Out of scope: contents of
the slots (`arena`), disk and reasons for misses (`store`), and the choice of the victim (`eviction`).
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from cache.errors import CapacityError
from cache.memory.arena import Extent, ExtentAllocator, join_extents, total_length
from cache.memory.disk import ModuleHeader
from cache.memory.eviction import EvictionQueue, Marks
from cache.memory.prefix_tree import PathStep, PrefixNode, PrefixTree

TRIED_RUNS = 8  # runs of neighbours to compare when a module needs memory in one piece
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class CacheEntry:
    """An encoded module in the KV pool. refs: number of requests and encodings that use it (pins). marks: see
    `eviction`. is_forgotten: deleted; its memory is freed after its last use.
    """

    header: ModuleHeader
    extent: Extent
    refs: int = 0
    hits: int = 0
    marks: Marks | None = None
    last_used: float = field(default_factory=time.time)
    is_forgotten: bool = False


Owner = CacheEntry | PrefixNode  # owner of slots while no request is in flight


class DeviceMemory:
    """Manages modules and prefixes in a pool of `slots`. cost: seconds per token to restore an evicted one. evictions:
    number so far, of "module" and "prefix". on_eviction: called with an evicted module while its rows are still there.
    """

    def __init__(self, slots: int, cost: Callable[[Owner], float], on_eviction: Callable[[CacheEntry], None]) -> None:
        self._on_eviction = on_eviction
        self.allocator = ExtentAllocator(slots)
        self.entries: dict[str, CacheEntry] = {}
        self.evictions: Counter[str] = Counter()
        self.kept: Set[str] = frozenset()
        self._queue = EvictionQueue[Owner](self._is_evictable, cost, self._is_kept)
        self.half_life = self._queue.half_life
        self.prefixes = PrefixTree(self._queue.add)
        self._by_start: dict[int, CacheEntry] = {}
        self._by_end: dict[int, CacheEntry] = {}
        self._evictable_slots = 0  # of modules

    @property
    def evictable_slots(self) -> int:
        return self._evictable_slots + self.prefixes.evictable_slots

    def reserve(self, length: int) -> Extent:
        """Return a free extent, evicting if necessary. Raises CapacityError if too much is in use, and then evicts
        nothing.
        """
        while (extent := self.allocator.allocate(length)) is None:
            victims = self._cheapest_run(length)
            if not victims and self._largest_possible() >= length:
                victims = self._queue.lowest(1)  # until there is such a run
            if not victims:
                raise CapacityError(
                    f"{length} tokens of KV memory are needed in one piece, {self._largest_possible()} are free and "
                    f"the rest of {self.allocator.capacity} is in use: raise --memory, or send fewer or shorter prompts"
                )
            for victim in victims:
                self._evict(victim)
        return extent

    def reserve_rows(self, length: int, spare: int = 0) -> list[Extent]:
        """Return free extents for rows of a request, evicting if necessary. spare: further slots that must remain
        available. Raises CapacityError.
        """
        available = self.allocator.free_slots + self.evictable_slots
        if length + spare > available:
            raise self._shortage(length, available)
        while (pieces := self.allocator.allocate_pieces(length)) is None:
            if not (victims := self._queue.lowest(1)):
                if (pieces := self.allocator.allocate_pieces(length, least=1)) is not None:
                    return pieces
                log.error("%d slots are counted as evictable but cannot be evicted", self.evictable_slots)
                raise self._shortage(length, self.allocator.free_slots)  # one request ends, not the engine
            self._evict(victims[0])
        return pieces

    def extend_rows(self, extents: list[Extent], length: int) -> None:
        """Add `length` slots to a request's extents, directly after them if possible. Raises CapacityError."""
        if extents:
            longer = self.allocator.extend(extents[-1], length)
            length -= longer.length - extents[-1].length
            extents[-1] = longer
        if length:
            extents[:] = join_extents([*extents, *self.reserve_rows(length)])

    def free(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            self.allocator.free(extent)

    def admit(self, header: ModuleHeader, extent: Extent, evicted: CacheEntry | None = None) -> CacheEntry:
        """Add a module whose rows are in an extent, and pin it. evicted: its earlier entry, if any."""
        assert header.key not in self.entries, header
        entry = self.entries[header.key] = CacheEntry(header, extent, refs=1)
        if evicted is not None:
            entry.marks = evicted.marks
        self._count_use(entry)
        self._by_start[extent.start] = self._by_end[extent.end] = entry
        return entry

    def pin(self, entry: CacheEntry) -> CacheEntry:
        if not entry.refs:
            self._evictable_slots -= entry.extent.length
        entry.refs += 1
        return entry

    def release(self, entry: CacheEntry) -> None:
        assert entry.refs > 0, entry
        entry.refs -= 1
        if not entry.refs and entry.is_forgotten:
            self.free([entry.extent])
        elif not entry.refs:
            self._evictable_slots += entry.extent.length
            self._queue.add(entry)

    def drop(self, entry: CacheEntry) -> None:
        del self.entries[entry.header.key], self._by_start[entry.extent.start], self._by_end[entry.extent.end]
        entry.is_forgotten = True
        if not entry.refs:
            self._evictable_slots -= entry.extent.length
            self.free([entry.extent])

    def evict(self, key: str) -> bool:
        """Free the memory of a module that no request uses. Returns whether it was freed."""
        entry = self.entries.get(key)
        if entry is None or entry.refs:
            return False
        self._evict(entry)
        return True

    def keep(self, keys: Set[str]) -> None:
        self.kept = keys
        self._queue.refresh()

    def count_use(self, entries: Iterable[CacheEntry]) -> None:
        for entry in entries:
            entry.hits += 1
            entry.last_used = time.time()
            self._count_use(entry)

    def pin_prefix(self, tenant: str, path: Sequence[PathStep]) -> PrefixNode:
        prefix = self.prefixes.match(tenant, path)
        self.prefixes.pin(prefix)
        return prefix

    def release_prefix(self, prefix: PrefixNode) -> None:
        self.free(self.prefixes.unpin(prefix))

    def count_prefix_use(self, prefix: PrefixNode) -> None:
        for step in prefix.path():
            step.hits += 1
            self._queue.count_use(step)

    def put_prefix(
        self, prefix: PrefixNode, steps: Iterable[tuple[PathStep, Sequence[Extent]]], session: str | None
    ) -> None:
        """Store the rows that a request computed after a prefix. The store owns the extents from now on."""
        last, surplus = self.prefixes.insert(prefix, steps, session)
        self.free(surplus)
        for step in last.path():
            step.marks = step.marks or self.half_life.begin()

    def drop_prefixes(self, tenant: str) -> bool:
        """Remove everything computed for a tenant except modules. Returns False if requests in flight still need some
        of it.
        """
        self.free(self.prefixes.clear(tenant))
        return not any(self.prefixes.nodes(tenant))

    def check_integrity(self, reserved: Iterable[Extent] = ()) -> None:
        """Assert that extents cover the pool, that nothing is pinned, and that all bookkeeping agrees. Call it only
        while no request is in flight. reserved: extents of modules that are being loaded.
        """
        owners: list[Owner] = [*self.entries.values(), *self.prefixes.nodes()]
        for owner in owners:
            assert owner.refs == 0, ("pinned while idle", owner)
            assert owner in self._queue or not self._is_evictable(owner), ("not queued", owner)
        extents = [entry.extent for entry in self.entries.values()]
        assert self._evictable_slots == total_length(extents)
        assert self._by_start == {entry.extent.start: entry for entry in self.entries.values()}
        assert self._by_end == {entry.extent.end: entry for entry in self.entries.values()}
        self.prefixes.check_integrity()
        extents += [extent for node in self.prefixes.nodes() for extent in node.extents]
        self.allocator.check_integrity([*extents, *reserved])

    def _shortage(self, length: int, available: int) -> CapacityError:
        return CapacityError(
            f"{length} tokens of KV memory are needed, {available} are free and the rest of "
            f"{self.allocator.capacity} is in use: raise --memory, or send fewer or shorter prompts"
        )

    def _count_use(self, entry: CacheEntry) -> None:
        self._queue.count_use(entry, entry.header.key, len(self.entries))

    def _largest_possible(self) -> int:
        extents = [entry.extent for entry in self.entries.values() if not entry.refs]
        extents += [extent for node in self.prefixes.nodes() if not node.refs for extent in node.extents]
        return max((one.length for one in join_extents(sorted([*extents, *self.allocator.holes]))), default=0)

    def _cheapest_run(self, length: int) -> list[Owner]:
        """Return the adjacent owners of least value whose eviction frees `length` slots in one piece, among some runs
        that start with a low value. Empty if none is long enough.
        """
        runs = [run for start in self._queue.lowest(TRIED_RUNS) if (run := self._grow_run(start, length))]
        return min(runs, key=self._worth, default=[])

    def _grow_run(self, start: Owner, length: int) -> list[Owner]:
        """Return an owner and adjacent ones, lower value first, until they and the holes between them are long enough;
        empty if slots in use interrupt them.
        """
        run = [start]
        longest = max(extents_of(start), key=lambda extent: extent.length, default=Extent(0, 0))
        first, end = longest.start, longest.end
        while True:
            if (hole := self.allocator.hole_before(first)) is not None and hole.end == first:
                first = hole.start
            if (hole := self.allocator.hole_from(end)) is not None and hole.start == end:
                end = hole.end
            if end - first >= length:
                return run
            beside = [self._evictable_beside(slot, before=before) for slot, before in ((first, True), (end, False))]
            found = [(self._queue.rank(one), i, one) for i, one in enumerate(beside) if one is not None]
            if not found:
                return []
            _, is_behind, neighbour = min(found)
            if neighbour not in run:
                run.append(neighbour)
            for extent in extents_of(neighbour):
                if not is_behind and extent.end == first:
                    first = extent.start
                elif is_behind and extent.start == end:
                    end = extent.end

    def _evictable_beside(self, slot: int, *, before: bool) -> Owner | None:
        entry = (self._by_end if before else self._by_start).get(slot)
        if entry is not None:
            return None if entry.refs else entry
        return self.prefixes.leaf_beside(slot, before=before)

    def _worth(self, run: Iterable[Owner]) -> tuple[int, float, int]:
        sizes = [(total_length(extents_of(one)), *self._queue.rank(one)) for one in run]
        seconds = sum(slots * self._queue.seconds(value) for slots, _, value in sizes)
        return sum(slots for slots, is_kept, _ in sizes if is_kept), seconds, sum(slots for slots, *_ in sizes)

    def _is_evictable(self, victim: Owner) -> bool:
        return victim.is_leaf if isinstance(victim, PrefixNode) else not (victim.refs or victim.is_forgotten)

    def _is_kept(self, victim: Owner) -> bool:
        return isinstance(victim, CacheEntry) and victim.header.key in self.kept

    def _evict(self, victim: Owner) -> None:
        self._queue.evicted()
        if isinstance(victim, CacheEntry):
            self._on_eviction(victim)
            self.drop(victim)
            self.evictions["module"] += 1
        else:
            self.free(self.prefixes.evict(victim))
            self.evictions["prefix"] += 1


def extents_of(owner: Owner) -> Sequence[Extent]:
    return owner.extents if isinstance(owner, PrefixNode) else (owner.extent,)
