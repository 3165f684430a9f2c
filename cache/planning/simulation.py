"""Simulated replicas and their router, with a virtual clock, one heap of events, seeded randomness and no threads.

As in the engine, a request waits until all its modules are in memory. A missing module is loaded or computed once for
all waiting requests. Limits, order and passes are the same as in the engine. Two things are simpler: a request gets
memory for its whole answer when it starts, so none is preempted; consecutive passes that only generate are one event.

Replicas of one machine share its compute. The device memory of a replica is the engine's own bookkeeping
(`cache.memory.device`) without data in the slots. Documents are modules identified by numbers. The rows of a
conversation are one path of the prefix tree, regardless of its documents. Out of scope: network, search, server.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import log, log2

from cache.engine.device_memory import PREFILL_ROWS
from cache.engine.engine_core import LOOKED_AT, PATIENCE_S
from cache.engine.request import Limits
from cache.engine.scheduler import schedule, schedule_alone
from cache.errors import CapacityError, PlanError
from cache.memory.arena import Extent, total_length
from cache.memory.device import CacheEntry, DeviceMemory, Owner
from cache.memory.disk import nameless
from cache.memory.eviction import LONG, SHORT
from cache.memory.keys import Source
from cache.memory.prefix_tree import PathStep, PrefixNode
from cache.memory.store import FIRST_COMPUTE_S, Cost
from cache.planning.costs import PassCosts
from cache.planning.traffic import RoutingPolicy, SimulatedRequest
from cache.routing import Wanted

NOTHING, LIMITS = Extent(0, 0), Limits()


@dataclass(slots=True, eq=False)
class SimulatedRows:
    """Rows to compute after `seen` tokens. document: the module to encode, in `extent`; None: rows of a request."""

    pending: int
    arrived: float
    seen: int = 0
    document: int | None = None
    extent: Extent = NOTHING


@dataclass(slots=True, eq=False)
class Job:
    """A request at a replica. past: tokens of earlier turns. left: remaining tokens of the answer. modules: its pinned
    modules. sources: where each document was found first. prefix: pinned prefix, with `reused` tokens of `past`. own:
    memory for its own rows. first_token, ended: times in seconds.
    """

    name: str
    request: SimulatedRequest
    submitted: float
    past: int
    left: int
    modules: dict[int, CacheEntry] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)
    prefix: PrefixNode | None = None
    reused: int = 0
    own: list[Extent] = field(default_factory=list)
    first_token: float | None = None
    ended: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens outside modules."""
        return self.past + self.request.question_tokens


@dataclass(slots=True)
class Passes:
    """`count` consecutive passes; the first starts at `began`. rows: computed in each pass. seconds: of one pass."""

    rows: dict[SimulatedRows, int]
    began: float
    seconds: float
    count: int

    @property
    def end(self) -> float:
        return self.began + self.seconds * self.count

    def documents(self) -> list[int]:
        return [
            rows.document for rows, count in self.rows.items() if rows.document is not None and rows.pending == count
        ]

    def cut(self, now: float) -> None:
        done = int((now - self.began) / self.seconds) + 1
        self.count = max(1, min(self.count, done))


class SimulatedReplica:
    """Simulates one replica. size: returns a document's length in tokens. is_on_disk: returns whether a document can be
    loaded from disk.
    """

    def __init__(
        self,
        name: str,
        costs: PassCosts,
        memory_tokens: int,
        size: Callable[[int], int],
        is_on_disk: Callable[[int], bool],
    ) -> None:
        self.name, self.memory = name, SimulatedMemory(memory_tokens, self._cost)
        self.passes: Passes | None = None
        self.busy_s = 0.0
        self.loads: dict[int, tuple[float, Extent]] = {}  # time at which each module is loaded, and its memory
        self._costs, self._size, self._is_on_disk = costs, size, is_on_disk
        self._disk_free_at = 0.0
        self._waiting: deque[Job] = deque()
        self._running: dict[SimulatedRows, Job] = {}
        self._encoding: dict[int, SimulatedRows] = {}
        self._had_prompts_alone = False
        self._row_cost = Cost(FIRST_COMPUTE_S)  # learned as in the engine; includes the fixed cost of each pass

    @property
    def num_requests(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def is_full(self) -> bool:
        return self.num_requests >= LIMITS.running + LIMITS.waiting

    def jobs(self) -> list[Job]:
        return [*self._running.values(), *self._waiting]

    def submit(self, job: Job) -> None:
        self._waiting.append(job)

    def begin_passes(self, now: float, slowdown: float, *, one_by_one: bool = False) -> None:
        """Admit requests and start the next passes, if any. one_by_one: start a single pass, as slowdown may change."""
        for document in [document for document, (ready, _) in self.loads.items() if ready <= now]:
            self._put(document, self.loads.pop(document)[1])
        self._admit(now)
        if self._waiting and not (self._running or self._encoding or self.loads):
            for job in self._waiting:  # a deadlock: each job holds memory that another job needs
                self._release(job)
            self._admit(now)
        needed = [*self._running, *self._encoding.values()]
        if self._waiting and not (needed or self.loads):
            capacity = self.memory.device.allocator.capacity
            raise PlanError(f"a request does not fit in a replica's {capacity} tokens: raise --replica-memory")
        if not needed:
            return
        row_seconds = self._row_cost.mean
        rows = {} if self._had_prompts_alone else schedule_alone(needed, row_seconds)
        self._had_prompts_alone = bool(rows)
        rows = rows or schedule(needed, row_seconds)
        is_answers_alone = len(rows) == len(needed) and all(one in self._running and one.pending == 1 for one in rows)
        is_one = one_by_one or self.loads or not is_answers_alone
        count = 1 if is_one else min(self._running[one].left for one in rows)
        seconds = self._seconds(rows, count) * slowdown
        self.passes = Passes(rows, now, seconds, count)

    def end_passes(self) -> list[Job]:
        """Finish the running passes. Returns the requests whose answers ended."""
        assert self.passes is not None
        passes, self.passes = self.passes, None
        self.busy_s += passes.end - passes.began
        if (computed := sum(passes.rows.values())) >= PREFILL_ROWS:
            self._row_cost.measured(passes.seconds, computed)
        told: list[Job] = []
        for rows, count in passes.rows.items():
            rows.pending -= count
            rows.seen += count + passes.count - 1
            if rows.pending:
                continue
            if rows.document is not None:
                del self._encoding[rows.document]
                self._put(rows.document, rows.extent)
            elif self._answer(rows, passes):
                told.append(self._finish(rows))
        return told

    def _answer(self, rows: SimulatedRows, passes: Passes) -> bool:
        """Count the new tokens of a request's answer. Returns whether the answer has ended."""
        job = self._running[rows]
        if job.first_token is None:
            job.first_token = passes.began + passes.seconds
        job.left -= passes.count
        rows.pending = 1
        if not job.left:
            job.ended = passes.end
        return not job.left

    def _finish(self, rows: SimulatedRows) -> Job:
        job = self._running.pop(rows)
        self._release(job)
        assert job.prefix is not None
        self.memory.keep_rows(job.prefix, job.reused, job.own, total_length(job.own))
        return job

    def _seconds(self, rows: dict[SimulatedRows, int], count: int) -> float:
        prefill = decode = 0
        read = pairs = 0.0
        shared: dict[int, int] = {}  # tokens by document; each document is read once for all rows
        for one, number in rows.items():
            pairs += number * (one.seen + (number + count) / 2)
            read += one.seen + number + (count - 1) / 2
            if (job := self._running.get(one)) is not None:
                tokens = {document: entry.extent.length for document, entry in job.modules.items()}
                shared |= tokens
                read -= sum(tokens.values())
            if number == 1 and one.document is None:
                decode += 1
            else:
                prefill += number
        return self._costs.pass_seconds(prefill, decode, read + sum(shared.values()), pairs)

    def _cost(self, document: int | None) -> float:
        """Return the seconds to restore a token of a document; None: of a conversation's rows."""
        compute, load = self._row_cost.mean, self._costs.load_token_s
        return min(load, compute) if document is not None and self._is_on_disk(document) else compute

    # --- admission -----------------------------------------------------------------------------------------------

    def _admit(self, now: float) -> None:
        for job in [*islice(self._waiting, LOOKED_AT)]:
            if len(self._running) >= LIMITS.running:
                return
            try:
                if self._find_modules(job, now):
                    self._start(job)
                    self._waiting.remove(job)
            except CapacityError:
                self._release(job)
                if now - job.submitted > PATIENCE_S:
                    return

    def _find_modules(self, job: Job, now: float) -> bool:
        """Pin available modules, load or encode the others. Returns whether all are available. Raises CapacityError."""
        for document in job.request.documents:
            if document in job.modules:
                continue
            if (entry := self.memory.find(document)) is not None:
                job.modules[document] = entry
                job.sources.setdefault(document, "device")
            else:
                if document not in self.loads and document not in self._encoding:
                    self._get(document, now)
                job.sources.setdefault(document, "disk" if document in self.loads else "computed")
        return len(job.modules) == len(job.request.documents)

    def _get(self, document: int, now: float) -> None:
        size = self._size(document)
        extent = self.memory.device.reserve(size)
        if self._is_on_disk(document) and self._costs.load_token_s < self._row_cost.mean:
            self._disk_free_at = max(self._disk_free_at, now) + size * self._costs.load_token_s
            self.loads[document] = self._disk_free_at, extent
        else:
            self._encoding[document] = SimulatedRows(size, now, document=document, extent=extent)

    def _put(self, document: int, extent: Extent) -> None:
        self.memory.device.release(self.memory.put(document, extent))

    def _release(self, job: Job) -> None:
        for entry in job.modules.values():
            self.memory.device.release(entry)
        job.modules.clear()

    def _start(self, job: Job) -> None:
        device = self.memory.device
        prefix, reused = self.memory.find_rows(job.request.session or job.name, job.past)
        fresh = job.prompt_tokens - reused
        try:
            own = device.reserve_rows(fresh + job.left)
        except CapacityError:
            device.release_prefix(prefix)
            raise
        job.prefix, job.reused, job.own = prefix, reused, own
        device.count_use(entry for document, entry in job.modules.items() if job.sources[document] != "computed")
        seen = reused + sum(entry.extent.length for entry in job.modules.values())
        self._running[SimulatedRows(fresh, job.submitted, seen)] = job


REPORT_S = 1.0  # seconds between reports of replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Engines to simulate. memory: bytes of each replica for keys and values. per_machine: replicas per machine."""

    replicas: int
    memory: int
    per_machine: int = 1


class DiskContents:
    """Documents on disk that all replicas can load, at most `capacity`: the first `popular` ones, and written ones."""

    def __init__(self, capacity: int, popular: int = 0) -> None:
        self._popular = min(capacity, popular)
        self._left = capacity - self._popular
        self._written: set[int] = set()

    def __contains__(self, document: int) -> bool:
        return document < self._popular or document in self._written

    def write(self, document: int) -> None:
        if document >= self._popular and len(self._written) < self._left:
            self._written.add(document)


class Simulation:
    """Simulates a fleet. size: returns a document's length. ended: called with each answered or refused request."""

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
            f"replica-{number}": SimulatedReplica(f"replica-{number}", costs, tokens, size, disk.__contains__)
            for number in range(fleet.replicas)
        }
        self._machine = {name: number // fleet.per_machine for number, name in enumerate(self.replicas)}
        self._beside: dict[int, list[SimulatedReplica]] = {}
        for name, replica in self.replicas.items():
            self._beside.setdefault(self._machine[name], []).append(replica)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._random = itertools.count(), random.Random(0)
        self._versions: dict[str, int] = {}  # number of the event at which each replica continues
        self._reported = dict.fromkeys(self.replicas, (0, 0.0))  # evictions, time
        self._past: dict[str, int] = {}  # tokens of each conversation
        self._requests: Iterator[SimulatedRequest] = iter(())
        router.set_replicas([*self.replicas])

    def fill(self, documents: Mapping[str, Sequence[tuple[int, float]]]) -> None:
        """Fill replicas as after a long time. documents: (document, uses per round) by replica, least used first."""
        for name, held in documents.items():
            for document, uses in held:
                self.replicas[name].memory.fill(document, self._size(document), uses)
            self._router.report(name, {str(document) for document, _ in held}, 0)

    def run(self, requests: Iterator[SimulatedRequest]) -> None:
        self._requests = requests
        self._ask_next()
        while self._events:
            at, _, act = heapq.heappop(self._events)
            assert at >= self.now, (at, self.now)
            self.now = at
            act()

    def _at(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(at, self.now), next(self._numbers), act))

    def _ask_next(self) -> None:
        if (request := next(self._requests, None)) is not None:
            self._at(request.at, partial(self._arrive, request))

    def _arrive(self, request: SimulatedRequest) -> None:
        self._ask_next()
        past = 0
        if request.session is not None:
            past = self._past.get(request.session, 0)
            self._past[request.session] = past + request.question_tokens + request.answer_tokens
        name = str(next(self._numbers))
        self._send(Job(name, request, self.now, past, request.answer_tokens))

    def _send(self, job: Job) -> None:
        modules = {str(document): self._size(document) for document in job.request.documents}
        wanted = Wanted(modules=modules, own_tokens=job.prompt_tokens, session=job.request.session)
        replica = self.replicas[self._router.choose(job.name, wanted)]
        if replica.is_full:
            self._ended(job)
            return
        replica.submit(job)
        if replica.passes is None:
            self._go_on(replica)
        elif replica.passes.count > 1:
            self._cut(replica)

    def _cut(self, replica: SimulatedReplica) -> None:
        """End a series of passes after the running one, so that the replica checks for other work."""
        assert replica.passes is not None
        replica.passes.cut(self.now)
        self._wake_at(replica, replica.passes.end)

    def _wake_at(self, replica: SimulatedReplica, at: float) -> None:
        version = self._versions[replica.name] = self._versions.get(replica.name, 0) + 1
        self._at(at, partial(self._wake, replica, version))

    def _wake(self, replica: SimulatedReplica, version: int) -> None:
        if self._versions.get(replica.name) != version:
            return
        if replica.passes is not None:
            for document in replica.passes.documents():
                self._disk.write(document)
            for job in replica.end_passes():
                self._router.ended(job.name)
                self._ended(job)
        self._report(replica)
        self._go_on(replica)

    def _go_on(self, replica: SimulatedReplica) -> None:
        beside = self._beside[self._machine[replica.name]]
        busy = 1 + sum(one.passes is not None for one in beside if one is not replica)
        slowdown = self._costs.slowdown(busy, self._random.random())
        replica.begin_passes(self.now, slowdown, one_by_one=self._costs.shares_cores(busy))
        if replica.passes is not None:
            self._wake_at(replica, replica.passes.end)
            for one in beside:  # their next pass has a different slowdown
                if one is not replica and one.passes is not None and one.passes.count > 1:
                    self._cut(one)
        elif replica.loads:
            self._wake_at(replica, min(ready for ready, _ in replica.loads.values()))

    def _report(self, replica: SimulatedReplica) -> None:
        """Report a replica's contents, if a report is due and a document was evicted."""
        evictions, at = self._reported[replica.name]
        evicted = replica.memory.device.evictions["module"]
        if evicted > evictions and self.now - at >= REPORT_S:
            self._reported[replica.name] = evicted, self.now
            self._router.report(replica.name, {*replica.memory.documents}, replica.num_requests)


class SimulatedMemory:
    """Memory of `slots` slots. cost: seconds to restore a token of a document; None: of a conversation's rows. It
    remembers evicted documents until their next use.
    """

    def __init__(self, slots: int, cost: Callable[[int | None], float]) -> None:
        self.device = DeviceMemory(slots, self._seconds, self._note_evicted)
        self._cost = cost
        self._evicted: dict[int, CacheEntry] = {}

    @property
    def documents(self) -> Collection[str]:
        return self.device.entries.keys()

    def find(self, document: int) -> CacheEntry | None:
        entry = self.device.entries.get(str(document))
        return None if entry is None else self.device.pin(entry)

    def put(self, document: int, extent: Extent) -> CacheEntry:
        header = replace(nameless(str(document)), name=str(document), num_tokens=extent.length)
        return self.device.admit(header, extent, self._evicted.pop(document, None))

    def fill(self, document: int, tokens: int, uses: float) -> None:
        """Add a document as if it had been used for a long time. uses: per round (`cache.memory.eviction`)."""
        entry = self.put(document, self.device.reserve(tokens))
        short, long = (log2(uses * half_life / log(2)) for half_life in (SHORT, LONG))
        entry.marks = short, long
        self.device.release(entry)

    def find_rows(self, conversation: str, tokens: int) -> tuple[PrefixNode, int]:
        """Pin the available rows among a conversation's first `tokens`. Returns them and their number."""
        prefix = self.device.pin_prefix(conversation, [step_of(0, tokens)])
        return prefix, sum(len(node.step.tokens) for node in prefix.path())

    def keep_rows(self, prefix: PrefixNode, first: int, own: list[Extent], tokens: int) -> None:
        """Store the rows that a request computed after a prefix, and unpin the prefix. first: index of the first."""
        self.device.put_prefix(prefix, [(step_of(first, tokens), own)], None)
        self.device.release_prefix(prefix)

    def _seconds(self, owner: Owner) -> float:
        return self._cost(int(owner.header.name) if isinstance(owner, CacheEntry) else None)

    def _note_evicted(self, entry: CacheEntry) -> None:
        self._evicted[int(entry.header.name)] = entry


def step_of(first: int, tokens: int) -> PathStep:
    """Return a step of a conversation, with arbitrary token ids."""
    return PathStep(start=first, tokens=(0,) * tokens)
