"""Consistent hashing: the home of a key among replicas that come and go.

Each replica stands at many places of a ring. A key belongs to the first replica behind its own place, and if that is
busy, to the next one. When a replica leaves, only its keys get another home. Not covered: load (`affinity`).
"""

import hashlib
from bisect import bisect
from collections.abc import Collection, Iterator

PLACES = 64
"""Of one replica: with more of them, shares of the keys are more alike."""


class Ring:
    """Replicas by the places that they have."""

    def __init__(self) -> None:
        self._places: list[tuple[int, str]] = []
        self._replicas: set[str] = set()

    def set_replicas(self, replicas: Collection[str]) -> None:
        """From now on these are there."""
        gone, new = self._replicas.difference(replicas), set(replicas) - self._replicas
        if gone:
            self._places = [place for place in self._places if place[1] not in gone]
        self._places += ((place_of(f"{replica} {number}"), replica) for replica in new for number in range(PLACES))
        self._places.sort()
        self._replicas = set(replicas)

    def walk(self, key: str) -> Iterator[str]:
        """Every replica once, the home of the key first."""
        seen: set[str] = set()
        start = bisect(self._places, (place_of(key), ""))
        for number in range(start, start + len(self._places)):
            replica = self._places[number % len(self._places)][1]
            if replica not in seen:
                seen.add(replica)
                yield replica
            if len(seen) == len(self._replicas):
                return


def place_of(text: str) -> int:
    """A place on the ring, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
