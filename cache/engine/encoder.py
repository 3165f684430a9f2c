"""Encoding of missing modules: each alone behind its conditioning prefix, as a sequence of the common passes. A left
context is computed in front of its segment, in rows that are given back when the segment's own are admitted.

A module asked for by several requests at once is encoded once. The encoder decides what must be computed and admits
the result to the store; it does not run passes itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from cache.attention.items import View
from cache.engine.sequence import Sequence
from cache.memory.store import CacheEntry, Found, MissReason, Store
from cache.prompt.plan import Segment


@dataclass(slots=True, eq=False)
class Encoding:
    """A module being encoded."""

    segment: Segment
    tenant: str
    sequence: Sequence
    prefixes: list[CacheEntry]
    reason: MissReason | None


class Encoder:
    """Modules on their way into a store, by key."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.running: dict[str, Encoding] = {}

    def find(self, segment: Segment, tenant: str) -> Found:
        """The module, pinned, if the store has it; else it is being encoded from now on: ask again later.

        Raises CapacityError if there is no memory for it now.
        """
        key = self.store.key(segment, tenant)
        if key in self.running:
            return Found(entry=None, source="computed", reason=self.running[key].reason)
        found = self.store.find(segment, tenant)
        if found.entry is None:
            self._start(key, segment, tenant, found.reason)
        return found

    def _start(self, key: str, segment: Segment, tenant: str, reason: MissReason | None) -> None:
        prefixes: list[CacheEntry] = []
        try:
            for ancestor in list(segment.with_ancestors())[:-1]:
                found = self.find(ancestor, tenant)
                if found.entry is None:  # the ancestor first
                    return
                prefixes.append(found.entry)
            own = self.store.reserve(len(segment.left_context) + len(segment.tokens))
            views = [View(entry.extent) for entry in prefixes]
            positions = [*segment.left_context_positions, *segment.positions]
            sequence = Sequence([*segment.left_context, *segment.tokens], positions, own, views)
            self.running[key] = Encoding(segment, tenant, sequence, prefixes, reason)
            prefixes = []  # the encoding holds them now
        finally:
            self._release(prefixes)

    def _release(self, entries: list[CacheEntry]) -> None:
        while entries:
            self.store.release(entries.pop())

    def collect(self) -> int:
        """Admit what is fully computed; returns how many modules that was."""
        finished = [key for key, encoding in self.running.items() if not encoding.sequence.pending]
        for key in finished:
            encoding = self.running.pop(key)
            segment, own = encoding.segment, encoding.sequence.own
            self.store.allocator.free(own.part(0, len(segment.left_context)))
            self.store.release(
                self.store.put(segment, encoding.tenant, own.part(len(segment.left_context), own.length))
            )
            self._release(encoding.prefixes)
        return len(finished)
