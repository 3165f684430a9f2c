"""Encoding of missing modules, for requests or in advance.

A module is encoded after its conditioning prefix and left context only, as a sequence in the shared forward passes,
once for all requests that need it. A prefetch brings modules that a request may need soon to device memory while no
request runs. A prefetch holds no memory between two steps. Out of scope: passes (`engine_core`), predictions.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from cache.attention.items import KVView
from cache.engine.request import Encoded, Generation
from cache.engine.scheduler import Sequence
from cache.errors import CacheError, CapacityError
from cache.memory.device import CacheEntry
from cache.memory.disk import MissReason
from cache.memory.store import Lookup, Store
from cache.model.info import ModelInfo
from cache.prompt.plan import Segment

MAX_ENCODINGS = 16  # maximum number of modules that are encoded in advance at the same time
NOBODY = frozenset[Generation]()


@dataclass(slots=True, eq=False)
class Encoding:
    """A module being encoded. prefixes: its pinned conditioning prefixes. askers: requests that need it; some may have
    ended.
    """

    segment: Segment
    tenant: str
    sequence: Sequence
    prefixes: list[CacheEntry]
    reason: MissReason | None
    askers: frozenset[Generation]

    @property
    def is_ahead(self) -> bool:
        return all(asker.is_over or asker.is_cancelled for asker in self.askers)


@dataclass(slots=True, eq=False)
class EncodeJob:
    """Modules to encode in advance. started: modules started, by key. into_memory: also load modules from disk."""

    segments: deque[tuple[Segment, str]]
    done: Future[Encoded]
    into_memory: bool = False
    started: dict[str, Segment] = field(default_factory=dict)
    failed: dict[Segment, CacheError] = field(default_factory=dict)

    def wants(self, key: str, store: Store) -> bool:
        """Return whether this job started a module, or needs it next, directly or as a conditioning prefix."""
        return key in self.started or self.needs_next(key, store)

    def needs_next(self, key: str, store: Store) -> bool:
        """Return whether a module is the next module of the job, or its conditioning prefix."""
        return any(key in keys_of(segment, tenant, store) for segment, tenant in [*self.segments][:1])

    def has_next(self, key: str, store: Store) -> bool:
        tier = store.tier(key)
        return tier == "device" if self.into_memory else tier is not None

    def fail_next(self, error: CacheError) -> None:
        self.failed[self.segments.popleft()[0]] = error


def problem_of(segment: Segment, info: ModelInfo) -> str | None:
    # where ids can be shifted, ids of prefixes do not count; those of the left context do
    first = segment.left_context_positions.start if info.is_position_independent else 0
    if segment.end - first > info.max_positions:
        return f"module {segment.name!r} ends beyond the model's {info.max_positions} positions"
    tokens = (token for part in segment.with_ancestors() for token in (*part.left_context, *part.tokens))
    if not all(0 <= token < info.vocabulary for token in tokens):
        return f"module {segment.name!r} has tokens that the model does not have"
    return None


def keys_of(segment: Segment, tenant: str, store: Store) -> frozenset[str]:
    return frozenset(store.key(part, tenant) for part in segment.with_ancestors())


class Encoder:
    """Encodes the modules of a store. running: encodings by module key."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.running: dict[str, Encoding] = {}

    def find(self, segment: Segment, tenant: str, askers: frozenset[Generation] = NOBODY) -> Lookup:
        """Look up a module, and pin it if it is found. While it is loaded or encoded, there is no entry: call again.
        askers: requests that wait for it, if any. Raises CapacityError if memory is short.
        """
        key = self.store.key(segment, tenant)
        if key in self.running:
            self.running[key].askers |= askers
            return Lookup(reason=self.running[key].reason)
        lookup = self.store.find(segment, tenant)
        if lookup.entry is None and lookup.loading is None:
            self._start(key, segment, tenant, lookup.reason, askers)
        return lookup

    def advance(self, job: EncodeJob) -> bool:
        """Start encodings, MAX_ENCODINGS at a time, while the disk keeps up. Returns True when the job is done."""
        while job.segments and len(self.running) < MAX_ENCODINGS and not self.store.is_behind:
            segment, tenant = job.segments[0]
            key = self.store.key(segment, tenant)
            if key in self.running:
                break
            if not job.has_next(key, self.store):
                try:
                    lookup = self.find(segment, tenant)
                except CapacityError as error:
                    if self.running or self.store.is_loading:
                        return False
                    job.fail_next(error)
                    continue
                if lookup.entry is not None:  # loaded just now
                    self.store.device.release(lookup.entry)
                elif key in self.running:
                    job.started[key] = segment
                else:
                    break  # it is being loaded, or its conditioning prefix comes first
            job.segments.popleft()
        if job.segments or any(key in self.running for key in job.started):
            return False
        job.done.set_result(Encoded(len(job.started), job.failed))
        return True

    def fail(self, key: str) -> None:
        encoding = self.running.pop(key)
        self.store.device.free(encoding.sequence.own)
        for used in encoding.prefixes:
            self.store.device.release(used)

    def collect(self) -> None:
        for key in [key for key, encoding in self.running.items() if not encoding.sequence.pending]:
            encoding = self.running.pop(key)
            (own,), context = encoding.sequence.own, len(encoding.segment.left_context)
            self.store.device.free([own.part(0, context)])
            entry = self.store.put(encoding.segment, encoding.tenant, own.part(context, own.length))
            for used in (entry, *encoding.prefixes):
                self.store.device.release(used)

    def _start(
        self, key: str, segment: Segment, tenant: str, reason: MissReason | None, askers: frozenset[Generation]
    ) -> None:
        prefixes: list[CacheEntry] = []
        try:
            for ancestor in list(segment.with_ancestors())[:-1]:
                lookup = self.find(ancestor, tenant, askers)
                if lookup.entry is None:  # the ancestor must be encoded or loaded first
                    return
                prefixes.append(lookup.entry)
            own = [self.store.device.reserve(len(segment.left_context) + len(segment.tokens))]
            views = [KVView(entry.extent) for entry in prefixes]
            positions = [*segment.left_context_positions, *segment.positions]
            tokens = [*segment.left_context, *segment.tokens]
            sequence = Sequence(tokens, positions, own, views, arrived=time.perf_counter())
            self.running[key] = Encoding(segment, tenant, sequence, prefixes, reason, askers)
            prefixes = []  # the encoding holds them now
        finally:
            for entry in prefixes:
                self.store.device.release(entry)


MOST_PREFETCHES = 8  # maximum number of prefetches. The oldest are dropped, as they are the least useful
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Prefetch:
    """Modules that may be needed soon. segments: modules not yet found in device memory, most likely first."""

    segments: list[Segment]
    tenant: str
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class PrefetchQueue:
    """Prefetches, oldest first. Owned by the engine thread."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._open: deque[Prefetch] = deque(maxlen=MOST_PREFETCHES)

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, prefetch: Prefetch) -> None:
        self._open.append(prefetch)

    def clear(self) -> None:
        self._open.clear()

    def advance(self, ends: Callable[[], bool]) -> None:
        """Look up the modules of the oldest prefetch, and start to load or encode missing ones. ends: returns whether
        to pause, called before each module.
        """
        while self._open:
            oldest = self._open[0]
            try:
                self._look_up(oldest, ends)
            except Exception as error:  # such as a lack of memory: no request waits for it
                log.debug("a prefetch ended early: %s", error)
                oldest.cancel()
            if oldest.segments and not oldest.is_cancelled:
                return
            self._open.popleft()

    def wants(self, key: str) -> bool:
        """Return whether the oldest prefetch waits for a module, directly or as a conditioning prefix."""
        return bool(self._open) and self._waits_for(self._open[0], key)

    def give_up(self, key: str) -> None:
        for prefetch in self._open:
            if self._waits_for(prefetch, key):
                prefetch.cancel()

    def _look_up(self, prefetch: Prefetch, ends: Callable[[], bool]) -> None:
        for segment in [*prefetch.segments]:
            if prefetch.is_cancelled or ends():
                return
            if self._is_there(segment, prefetch.tenant):
                prefetch.segments.remove(segment)

    def _is_there(self, segment: Segment, tenant: str) -> bool:
        """Return whether a module is in device memory. If not, start to fetch it when possible."""
        store, running = self._encoder.store, self._encoder.running
        key = store.key(segment, tenant)
        if key in store.device.entries:
            return True
        if store.tier(key) is None and key not in running and len(running) >= MAX_ENCODINGS:
            return False
        lookup = self._encoder.find(segment, tenant)
        if lookup.entry is not None:
            store.device.release(lookup.entry)
        return lookup.entry is not None

    def _waits_for(self, prefetch: Prefetch, key: str) -> bool:
        return any(key in keys_of(segment, prefetch.tenant, self._encoder.store) for segment in prefetch.segments)
