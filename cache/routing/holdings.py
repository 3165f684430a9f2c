"""Which replica holds which module, found from both sides. Not covered: why one is thought to hold it (`affinity`)."""

from bisect import bisect_left, insort
from collections.abc import Sequence, Set

MOST_HELD = 20_000
"""Modules of one replica; what was added first is left out."""


class Holdings:
    """Module keys by replica, and replicas by module key."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, None]] = {}  # in the order in which they were added
        self._holders: dict[str, list[str]] = {}  # ascending

    def of(self, replica: str) -> Set[str]:
        """What a replica holds."""
        return self._held.get(replica, {}).keys()

    def holders(self, key: str) -> Sequence[str]:
        """Who holds a module."""
        return self._holders.get(key, ())

    def set_held(self, replica: str, keys: Set[str]) -> None:
        """From now on a replica holds these."""
        for key in [key for key in self._held.get(replica, ()) if key not in keys]:
            self._leave(replica, key)
        for key in keys:
            self.add(replica, key)

    def add(self, replica: str, key: str) -> None:
        """One more."""
        held = self._held.setdefault(replica, {})
        if key not in held:
            held[key] = None
            insort(self._holders.setdefault(key, []), replica)
            if len(held) > MOST_HELD:
                self._leave(replica, next(iter(held)))

    def forget(self, keys: Set[str]) -> None:
        """Nobody holds these any more."""
        for key in keys:
            for replica in [*self.holders(key)]:
                self._leave(replica, key)

    def _leave(self, replica: str, key: str) -> None:
        held, holders = self._held[replica], self._holders[key]
        del held[key], holders[bisect_left(holders, replica)]
        if not held:
            del self._held[replica]
        if not holders:
            del self._holders[key]
