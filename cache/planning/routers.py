"""Ways of choosing a replica for a request: by modules, which is what a cluster does, and two to compare it with."""

import random
from collections.abc import Collection, Set
from itertools import islice
from typing import Protocol

from cache.routing.affinity import Affinity, Ring, Wanted


class RoutingPolicy(Protocol):
    """What the simulation asks of a router. Requests are known by names of their own."""

    def set_replicas(self, replicas: Collection[str]) -> None:
        """From now on there are these."""

    def choose(self, request: str, wanted: Wanted) -> str:
        """Send a request; there is at least one replica."""

    def ended(self, request: str) -> None:
        """It has its answer."""

    def report(self, replica: str, modules: Set[str], queue: int) -> None:
        """What a replica holds, and how many requests are there."""

    def holders(self, key: str, count: int) -> list[str]:
        """Where a module is after a long time, at most `count` replicas; empty if everywhere."""


class RoutingByModules:
    """The policy of a cluster."""

    def __init__(self) -> None:
        self._affinity, self._ring = Affinity(), Ring()

    def set_replicas(self, replicas: Collection[str]) -> None:
        """See RoutingPolicy."""
        self._affinity.set_replicas(replicas)
        self._ring.set_replicas(replicas)

    def choose(self, request: str, wanted: Wanted) -> str:
        """The best one."""
        replica = self._affinity.rank(wanted)[0]
        self._affinity.sent(request, replica, wanted)
        return replica

    def ended(self, request: str) -> None:
        """See RoutingPolicy."""
        self._affinity.ended(request)

    def report(self, replica: str, modules: Set[str], queue: int) -> None:
        """See RoutingPolicy."""
        self._affinity.report(replica, modules, queue)

    def holders(self, key: str, count: int) -> list[str]:
        """Its home, and the next ones on the ring."""
        return [*islice(self._ring.walk(key), count)]


class RandomRouting:
    """By chance."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._replicas: list[str] = []

    def set_replicas(self, replicas: Collection[str]) -> None:
        """See RoutingPolicy."""
        self._replicas = [*replicas]

    def choose(self, request: str, wanted: Wanted) -> str:
        """Any."""
        return self._random.choice(self._replicas)

    def ended(self, request: str) -> None:
        """Nothing is kept of requests."""

    def report(self, replica: str, modules: Set[str], queue: int) -> None:
        """Nothing is known of replicas."""

    def holders(self, key: str, count: int) -> list[str]:
        """Everywhere."""
        return []


class PrefixHashRouting:
    """By consistent hashing of the first module, as routers of prefix caches do; of the conversation without one."""

    def __init__(self) -> None:
        self._ring = Ring()

    def set_replicas(self, replicas: Collection[str]) -> None:
        """See RoutingPolicy."""
        self._ring.set_replicas(replicas)

    def choose(self, request: str, wanted: Wanted) -> str:
        """The home of the first module."""
        return next(self._ring.walk(next(iter(wanted.modules), wanted.session or request)))

    def ended(self, request: str) -> None:
        """Nothing is kept of requests."""

    def report(self, replica: str, modules: Set[str], queue: int) -> None:
        """Nothing is known of replicas."""

    def holders(self, key: str, count: int) -> list[str]:
        """Its home first; documents that come with it are hashed by another one, and are here, too."""
        return [*islice(self._ring.walk(key), 1)]


BY_MODULES, BY_CHANCE, BY_PREFIX = "by modules", "by chance", "by first document"
ROUTINGS = (BY_MODULES, BY_PREFIX, BY_CHANCE)


def open_router(routing: str, seed: int) -> RoutingPolicy:
    """A new router of one of ROUTINGS."""
    if routing == BY_CHANCE:
        return RandomRouting(seed)
    return RoutingByModules() if routing == BY_MODULES else PrefixHashRouting()
