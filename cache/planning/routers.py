"""Ways to choose a replica for a request: by modules, as a cluster does, and two for comparison."""

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Set
from itertools import islice

from cache.routing import Affinity, Ring, Wanted


class RoutingPolicy(ABC):
    """The simulation's interface of a router. Requests have unique names."""

    @abstractmethod
    def set_replicas(self, replicas: Collection[str]) -> None:
        """Replace the set of replicas."""

    @abstractmethod
    def choose(self, request: str, wanted: Wanted) -> str:
        """Send a request; there is at least one replica."""

    def ended(self, request: str) -> None:
        """Note the end of a request."""
        return

    def report(self, replica: str, modules: Set[str], queue: int) -> None:
        """Apply a replica's report of its modules and its number of requests."""
        return

    @abstractmethod
    def holders(self, key: str, count: int) -> list[str]:
        """Return a module's replicas after a long time, at most `count`; empty for all of them."""


class RoutingByModules(RoutingPolicy):
    """The routing of a cluster."""

    def __init__(self) -> None:
        self._affinity, self._ring = Affinity(), Ring()

    def set_replicas(self, replicas: Collection[str]) -> None:
        self._affinity.set_replicas(replicas)
        self._ring.set_replicas(replicas)

    def choose(self, request: str, wanted: Wanted) -> str:
        replica = self._affinity.rank(wanted)[0]
        self._affinity.sent(request, replica, wanted)
        return replica

    def ended(self, request: str) -> None:
        self._affinity.ended(request)

    def report(self, replica: str, modules: Set[str], queue: int) -> None:
        self._affinity.report(replica, modules, queue)

    def holders(self, key: str, count: int) -> list[str]:
        return [*islice(self._ring.walk(key), count)]


class RandomRouting(RoutingPolicy):
    """Random routing."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._replicas: list[str] = []

    def set_replicas(self, replicas: Collection[str]) -> None:
        self._replicas = [*replicas]

    def choose(self, request: str, wanted: Wanted) -> str:
        return self._random.choice(self._replicas)

    def holders(self, key: str, count: int) -> list[str]:
        return []


class PrefixHashRouting(RoutingPolicy):
    """Consistent hashing of the first module, as in routers of prefix caches; of the conversation without modules."""

    def __init__(self) -> None:
        self._ring = Ring()

    def set_replicas(self, replicas: Collection[str]) -> None:
        self._ring.set_replicas(replicas)

    def choose(self, request: str, wanted: Wanted) -> str:
        return next(self._ring.walk(next(iter(wanted.modules), wanted.session or request)))

    def holders(self, key: str, count: int) -> list[str]:
        """Return its home first. Later documents of a prompt follow another one's hash, and are here as well."""
        return [*islice(self._ring.walk(key), 1)]


BY_MODULES, BY_CHANCE, BY_PREFIX = "by modules", "by chance", "by first document"
ROUTINGS = (BY_MODULES, BY_PREFIX, BY_CHANCE)


def open_router(routing: str, seed: int) -> RoutingPolicy:
    if routing == BY_CHANCE:
        return RandomRouting(seed)
    return RoutingByModules() if routing == BY_MODULES else PrefixHashRouting()
