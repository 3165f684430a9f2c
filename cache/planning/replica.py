"""One simulated replica: its queue, its memory, and the passes that the engine's scheduler would make.

As in the engine, a request waits until all of its modules are in memory; those that are missing are loaded or computed,
once for all that wait for them; limits, order and passes are the engine's own. Simpler than there: a request gets room
for all of its answer when it starts, so none is paused; rows of several passes over answers alone are counted at once.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from cache.engine.engine_core import LOOKED_AT, PATIENCE_S
from cache.engine.limits import Limits
from cache.engine.pass_times import PREFILL_ROWS
from cache.engine.scheduler import schedule, schedule_alone
from cache.errors import CapacityError, PlanError
from cache.memory.allocator import Extent, total_length
from cache.memory.device import CacheEntry
from cache.memory.prefix_tree import PrefixNode
from cache.memory.store import FIRST_COMPUTE_S, Cost, Source
from cache.planning.costs import PassCosts
from cache.planning.memory import SimulatedMemory
from cache.planning.traffic import SimulatedRequest

NOTHING = Extent(0, 0)


@dataclass(slots=True, eq=False)
class SimulatedRows:
    """Rows to be computed behind `seen` tokens. document: of a module, whose memory is `extent`."""

    pending: int
    arrived: float
    seen: int = 0
    document: int | None = None
    extent: Extent = NOTHING


@dataclass(slots=True, eq=False)
class Job:
    """A request at a replica. past: tokens of its conversation's earlier turns. left: of the answer. modules: pinned.
    sources: where each document was first found. prefix: of its conversation, pinned, with `reused` tokens of `past`.
    own: its memory. first_token, ended: times.
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
        """Tokens that modules do not supply."""
        return self.past + self.request.question_tokens


@dataclass(slots=True)
class Passes:
    """Passes that are under way: `count` of them, one after another, since `began`."""

    rows: dict[SimulatedRows, int]
    began: float
    seconds: float
    count: int

    @property
    def end(self) -> float:
        """When the last one ends."""
        return self.began + self.seconds * self.count

    def documents(self) -> list[int]:
        """Modules that they end."""
        return [
            rows.document for rows, count in self.rows.items() if rows.document is not None and rows.pending == count
        ]

    def cut(self, now: float) -> None:
        """End with the pass that runs now."""
        done = int((now - self.began) / self.seconds) + 1
        self.count = max(1, min(self.count, done))


class SimulatedReplica:
    """A replica called `name`. size: tokens of a document. is_on_disk: whether one can be loaded. slowdown: how many
    times longer a pass takes now, with what else its machine computes.
    """

    def __init__(
        self,
        name: str,
        costs: PassCosts,
        memory_tokens: int,
        size: Callable[[int], int],
        is_on_disk: Callable[[int], bool],
        limits: Limits,
    ) -> None:
        self.name, self.memory = name, SimulatedMemory(memory_tokens, self._cost)
        self.passes: Passes | None = None
        self.busy_s = 0.0
        self.loads: dict[int, tuple[float, Extent]] = {}  # when each module is there, and its memory
        self._costs, self._size, self._is_on_disk, self._limits = costs, size, is_on_disk, limits
        self._disk_free_at = 0.0
        self._waiting: deque[Job] = deque()
        self._running: dict[SimulatedRows, Job] = {}
        self._encoding: dict[int, SimulatedRows] = {}
        self._had_prompts_alone = False
        self._row_cost = Cost(FIRST_COMPUTE_S)  # as the engine learns it, with what each pass costs by itself

    @property
    def num_requests(self) -> int:
        """Running or waiting."""
        return len(self._waiting) + len(self._running)

    @property
    def is_full(self) -> bool:
        """Whether one more request is refused."""
        return self.num_requests >= self._limits.running + self._limits.waiting

    def jobs(self) -> list[Job]:
        """All that have not ended."""
        return [*self._running.values(), *self._waiting]

    def submit(self, job: Job) -> None:
        """A request arrives."""
        self._waiting.append(job)

    def begin_passes(self, now: float, slowdown: float, *, one_by_one: bool = False) -> None:
        """Admit what can be admitted and begin what is computed next, if there is anything. one_by_one: the slowdown is
        that of a single pass.
        """
        for document in [document for document, (ready, _) in self.loads.items() if ready <= now]:
            self._put(document, self.loads.pop(document)[1])
        self._admit(now)
        if self._waiting and not (self._running or self._encoding or self.loads):
            for job in self._waiting:  # each holds what another one needs
                self._release(job)
            self._admit(now)
        needed = [*self._running, *self._encoding.values()]
        if self._waiting and not (needed or self.loads):
            capacity = self.memory.device.allocator.capacity
            raise PlanError(f"a request does not fit in the {capacity} tokens of a replica: raise --replica-memory")
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
        """What the passes have computed; gives the requests whose answer has begun or ended with them."""
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
        """Count the tokens that a request has got; gives whether its answer has ended."""
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
        """Of a pass, the mean of so many."""
        prefill = decode = 0
        read = pairs = 0.0
        shared: dict[int, int] = {}  # tokens of documents, which are read once for all
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
        """Seconds to get a token of a document back, or of rows."""
        compute, load = self._row_cost.mean, self._costs.load_token_s
        return min(load, compute) if document is not None and self._is_on_disk(document) else compute

    # --- admission -----------------------------------------------------------------------------------------------

    def _admit(self, now: float) -> None:
        for job in [*islice(self._waiting, LOOKED_AT)]:
            if len(self._running) >= self._limits.running:
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
        """Pin what is there and begin to get what is not; whether all is there. Raises CapacityError."""
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
        """Load a module, or begin to compute it. Raises CapacityError."""
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
        """Begin a request whose modules are all there. Raises CapacityError."""
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
