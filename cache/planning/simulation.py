"""Replicas behind a router over a virtual clock: one heap of events, no thread, no sleep, chance with a seed.

Requests come when they are asked (`clients` None), or so many clients each ask the next one when they have their
answer. Replicas of one machine share what it computes. Not covered: the network, search, the desk.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from cache.engine.limits import Limits
from cache.planning.costs import PassCosts
from cache.planning.replica import Job, SimulatedReplica
from cache.planning.routers import RoutingPolicy
from cache.planning.traffic import SimulatedRequest
from cache.routing.affinity import Wanted

REPORT_S = 1.0
"""How often replicas say what they hold."""
START_EVERY_S = 0.1
"""Between the first requests of two clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """replicas: how many. memory: bytes for keys and values of each. per_machine: replicas that share a machine."""

    replicas: int
    memory: int
    per_machine: int = 1
    limits: Limits = field(default_factory=Limits)


class DiskContents:
    """Which documents all replicas can load: the `popular` first ones, and what is written, up to `capacity` in all."""

    def __init__(self, capacity: int, popular: int = 0) -> None:
        self._popular = min(capacity, popular)
        self._left = capacity - self._popular
        self._written: set[int] = set()

    def __contains__(self, document: int) -> bool:
        """Whether a document can be loaded."""
        return document < self._popular or document in self._written

    def write(self, document: int) -> None:
        """It was computed."""
        if document >= self._popular and len(self._written) < self._left:
            self._written.add(document)


class Simulation:
    """A fleet with a router. size: tokens of a document. ended: called with each request that has its answer, and with
    those that were refused.
    """

    def __init__(
        self,
        fleet: Fleet,
        costs: PassCosts,
        router: RoutingPolicy,
        size: Callable[[int], int],
        disk: DiskContents,
        ended: Callable[[Job], None],
    ) -> None:
        self.now = 0.0
        self._fleet, self._costs, self._router, self._size, self._disk = fleet, costs, router, size, disk
        self._ended = ended
        tokens = fleet.memory // costs.bytes_per_token
        self.replicas = {
            f"replica-{number}": SimulatedReplica(
                f"replica-{number}", costs, tokens, size, disk.__contains__, fleet.limits
            )
            for number in range(fleet.replicas)
        }
        self._machine = {name: number // fleet.per_machine for number, name in enumerate(self.replicas)}
        self._beside: dict[int, list[SimulatedReplica]] = {}
        for name, replica in self.replicas.items():
            self._beside.setdefault(self._machine[name], []).append(replica)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._random = count(), random.Random(0)
        self._versions: dict[str, int] = {}  # of the event at which each replica goes on
        self._reported = dict.fromkeys(self.replicas, (0, 0.0))  # evictions, time
        self._past: dict[str, int] = {}  # tokens of each conversation
        self._requests: Iterator[SimulatedRequest] = iter(())
        self._clients: int | None = None
        router.set_replicas([*self.replicas])

    def fill(self, documents: Mapping[str, Sequence[tuple[int, float]]]) -> None:
        """Begin with what replicas hold after a long time: documents, the least used first, with their uses."""
        for name, held in documents.items():
            for document, uses in held:
                self.replicas[name].memory.fill(document, self._size(document), uses)
            self._router.report(name, {str(document) for document, _ in held}, 0)

    def run(self, requests: Iterator[SimulatedRequest], clients: int | None = None) -> None:
        """Answer everything."""
        self._requests, self._clients = requests, clients
        if clients is None:
            self._ask_next()
        else:
            for number in range(clients):
                self._ask_next(START_EVERY_S * number)
        while self._events:
            at, _, act = heapq.heappop(self._events)
            assert at >= self.now, (at, self.now)
            self.now = at
            act()

    def vanish_at(self, at: float, name: str) -> None:
        """A replica ends at a time; others go on with its requests."""
        self._at(at, partial(self._vanish, name))

    def _at(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(at, self.now), next(self._numbers), act))

    def _ask_next(self, at: float | None = None) -> None:
        """Let the next request arrive, at its own time if none is given."""
        if (request := next(self._requests, None)) is not None:
            self._at(request.at if at is None else at, partial(self._arrive, request))

    def _arrive(self, request: SimulatedRequest) -> None:
        if self._clients is None:
            self._ask_next()
        past = 0
        if request.session is not None:
            past = self._past.get(request.session, 0)
            self._past[request.session] = past + request.question_tokens + request.answer_tokens
        name = str(next(self._numbers))
        self._send(Job(name, request, self.now, past, request.answer_tokens))

    def _send(self, job: Job) -> None:
        """Give a request to the replica that the router chooses."""
        modules = {str(document): self._size(document) for document in job.request.documents}
        wanted = Wanted(modules=modules, own_tokens=job.prompt_tokens, session=job.request.session)
        replica = self.replicas[self._router.choose(job.name, wanted)]
        if replica.is_full:
            self._end(job)
            return
        replica.submit(job)
        if replica.passes is None:
            self._go_on(replica)
        elif replica.passes.count > 1:
            self._cut(replica)

    def _cut(self, replica: SimulatedReplica) -> None:
        """Let a replica look for other work after the pass that runs."""
        assert replica.passes is not None
        replica.passes.cut(self.now)
        self._wake_at(replica, replica.passes.end)

    def _wake_at(self, replica: SimulatedReplica, at: float) -> None:
        version = self._versions[replica.name] = self._versions.get(replica.name, 0) + 1
        self._at(at, partial(self._wake, replica, version))

    def _wake(self, replica: SimulatedReplica, version: int) -> None:
        if self._versions.get(replica.name) != version or replica.name not in self.replicas:
            return
        if replica.passes is not None:
            for document in replica.passes.documents():
                self._disk.write(document)
            for job in replica.end_passes():
                self._router.ended(job.name)
                self._end(job)
        self._report(replica)
        self._go_on(replica)

    def _go_on(self, replica: SimulatedReplica) -> None:
        """Begin the next passes of a replica that computes nothing."""
        beside = self._beside[self._machine[replica.name]]
        busy = 1 + sum(one.passes is not None for one in beside if one is not replica)
        slowdown = self._costs.slowdown(busy, self._random.random())
        replica.begin_passes(self.now, slowdown, one_by_one=self._costs.shares_cores(busy))
        if replica.passes is not None:
            self._wake_at(replica, replica.passes.end)
            for one in beside:  # they are slower, or faster, from their next pass on
                if one is not replica and one.passes is not None and one.passes.count > 1:
                    self._cut(one)
        elif replica.loads:
            self._wake_at(replica, min(ready for ready, _ in replica.loads.values()))

    def _report(self, replica: SimulatedReplica) -> None:
        """Say what a replica holds, if that is due and something has left it."""
        evictions, at = self._reported[replica.name]
        evicted = replica.memory.device.evictions["module"]
        if evicted > evictions and self.now - at >= REPORT_S:
            self._reported[replica.name] = evicted, self.now
            self._router.report(replica.name, {*replica.memory.documents}, replica.num_requests)

    def _end(self, job: Job) -> None:
        self._ended(job)
        if self._clients is not None:
            self._ask_next(self.now)

    def _vanish(self, name: str) -> None:
        replica = self.replicas.pop(name)
        self._beside[self._machine[name]].remove(replica)
        self._router.set_replicas([*self.replicas])
        for job in replica.jobs():
            said = job.request.answer_tokens - job.left
            again = Job(job.name, job.request, job.submitted, job.past + said, job.left, first_token=job.first_token)
            self._send(again)
