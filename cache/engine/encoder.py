"""Encoding of missing modules: each alone behind its conditioning prefix, as a sequence of the common passes. A lead is
computed in front of its unit, in rows that are given back when the unit's own are admitted.

A module asked for by several requests at once is encoded once. The encoder decides what must be computed and admits
the result to the store; it does not run passes itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from cache.attention.items import View
from cache.engine.sequence import Sequence
from cache.memory.store import Found, MissReason, Resident, Store
from cache.prompt.plan import Unit


@dataclass(slots=True, eq=False)
class Encoding:
    """A module being encoded."""

    unit: Unit
    tenant: str
    sequence: Sequence
    prefixes: list[Resident]
    reason: MissReason | None


class Encoder:
    """Modules on their way into a store, by key."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.running: dict[str, Encoding] = {}

    def find(self, unit: Unit, tenant: str) -> Found:
        """The module, pinned, if the store has it; else it is being encoded from now on: ask again later.

        Raises CapacityError if there is no memory for it now.
        """
        key = self.store.key(unit, tenant)
        if key in self.running:
            return Found(resident=None, source="computed", reason=self.running[key].reason)
        found = self.store.find(unit, tenant)
        if found.resident is None:
            self._start(key, unit, tenant, found.reason)
        return found

    def _start(self, key: str, unit: Unit, tenant: str, reason: MissReason | None) -> None:
        prefixes: list[Resident] = []
        try:
            for ancestor in list(unit.with_ancestors())[:-1]:
                found = self.find(ancestor, tenant)
                if found.resident is None:  # the ancestor first
                    return
                prefixes.append(found.resident)
            own = self.store.reserve(len(unit.lead) + len(unit.tokens))
            views = [View(resident.extent) for resident in prefixes]
            positions = [*unit.lead_positions, *unit.positions]
            sequence = Sequence([*unit.lead, *unit.tokens], positions, own, views)
            self.running[key] = Encoding(unit, tenant, sequence, prefixes, reason)
            prefixes = []  # the encoding holds them now
        finally:
            self._release(prefixes)

    def _release(self, residents: list[Resident]) -> None:
        while residents:
            self.store.release(residents.pop())

    def collect(self) -> int:
        """Admit what is fully computed; returns how many modules that was."""
        finished = [key for key, encoding in self.running.items() if not encoding.sequence.pending]
        for key in finished:
            encoding = self.running.pop(key)
            unit, own = encoding.unit, encoding.sequence.own
            self.store.allocator.free(own.part(0, len(unit.lead)))
            self.store.release(self.store.put(unit, encoding.tenant, own.part(len(unit.lead), own.length)))
            self._release(encoding.prefixes)
        return len(finished)
