"""What happens on the engine thread: schedule, forward, sample, deliver. Not to be used from another thread."""

import time
from collections import deque
from collections.abc import Callable, Set
from concurrent.futures import Future
from dataclasses import dataclass

from torch import Tensor

from cache.attention.forward_pass import PassGivenUp
from cache.engine.encoder import EncodeJob, Encoder
from cache.engine.recomputation import RowSelector
from cache.engine.running import Running, admit
from cache.engine.scheduler import schedule
from cache.engine.sequence import Sequence
from cache.engine.waiting import Waiting
from cache.errors import CacheError, CapacityError, PromptError
from cache.memory.store import Store
from cache.model.language_model import Model

MAX_RUNNING = 16
MAX_WAITING = 64
AHEAD_S, MIN_ROWS_AHEAD = 0.25, 128
"""How long a pass may take that encodes only modules nobody waits for, since a question that arrives waits for its end;
and how many rows it has at least, since shorter passes waste time.
"""
PREFILL_ROWS = 64
"""Passes of fewer rows say little about what computing a module costs."""


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """Modules to be removed. find: which ones, called when nothing runs. done: gets how many were there."""

    find: Callable[[Store], Set[str]]
    done: Future[int]


class EngineCore:
    """The state of the engine thread. inbox: what has arrived, in order; nothing overtakes a ForgetJob. give_up: if all
    of it shall end; then `step` raises PassGivenUp at the next layer of a pass, and only `fail` may follow.
    """

    def __init__(self, model: Model, store: Store, give_up: Callable[[], bool]) -> None:
        self.model, self.store, self._give_up = model, store, give_up
        self.row_selector = RowSelector()
        self.inbox: deque[Waiting | EncodeJob | ForgetJob] = deque()
        self._encoder = Encoder(store)
        self._waiting: deque[Waiting] = deque()
        self._running: list[Running] = []
        self._jobs: deque[EncodeJob] = deque()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.inbox) or self._is_busy

    @property
    def load(self) -> tuple[int, int]:
        """How many requests are running, and how many are waiting. From any thread; it may be old when it returns."""
        return len(self._running), len(self._waiting) + len(self.inbox)

    @property
    def _is_busy(self) -> bool:
        return bool(self._waiting or self._running or self._jobs or self._encoder.running)

    @property
    def _is_unwanted(self) -> bool:
        """Whether there are requests, and nobody waits for any of them."""
        requests = [*(running.admitted for running in self._running), *self._waiting]
        return bool(requests) and all(one.generation.is_cancelled for one in requests)

    def step(self) -> None:
        """Take in what has arrived, admit what fits, and compute one packed pass for everything that can run."""
        self._take_in()
        self._drop_cancelled()
        self._admit()
        scheduled = self._schedule()
        if not scheduled:
            return
        try:
            outputs = self._forward(scheduled)
        except PassGivenUp:  # its rows count as not computed
            if self._give_up():
                raise
            return
        self._encoder.collect()
        for running, logits in outputs:
            reason = running.advance(logits)  # samples and delivers
            if reason is not None:
                self._running.remove(running)
                running.finish(self.store, reason)

    def fail(self, error: CacheError) -> None:
        """End everything that was asked for with an error."""
        for asked in [*(r.admitted for r in self._running), *self._waiting, *self._jobs, *self.inbox]:
            if isinstance(asked, Waiting):
                asked.generation.deliver(error)
            else:
                asked.done.set_exception(error)

    def _take_in(self) -> None:
        while self.inbox:
            arrived = self.inbox[0]
            if isinstance(arrived, ForgetJob):
                if self._is_busy:
                    return
                self.row_selector.clear()
                self.store.flush()
                arrived.done.set_result(self.store.forget(arrived.find(self.store)))
            elif isinstance(arrived, EncodeJob):
                self._jobs.append(arrived)
            else:
                self._enqueue(arrived)
            self.inbox.popleft()

    def _enqueue(self, waiting: Waiting) -> None:
        needed, limit = waiting.request.plan.next_position, self.model.info.max_positions
        if needed > limit:
            waiting.generation.deliver(PromptError(f"the prompt needs {needed} positions, the model has {limit}"))
        elif len(self._waiting) >= MAX_WAITING:
            busy = "the desk is busy: too many questions are waiting, try again soon"
            waiting.generation.deliver(CapacityError(busy))
        else:
            self._waiting.append(waiting)

    def _drop_cancelled(self) -> None:
        for running in [r for r in self._running if r.admitted.generation.is_cancelled]:
            self._running.remove(running)
            running.finish(self.store, "cancelled")
        for waiting in [w for w in self._waiting if w.generation.is_cancelled]:
            waiting.release(self.store)
            self._waiting.remove(waiting)
            waiting.generation.deliver(CacheError("the request was cancelled before it started"))

    def _admit(self) -> None:
        """Move requests from waiting to running, first come, first served; then encode modules ahead of use."""
        while self._waiting and len(self._running) < MAX_RUNNING:
            waiting = self._waiting[0]
            try:
                if not waiting.find_modules(self._encoder):
                    return
                waiting.select_rows(self.row_selector, self.store, self.model)
                self._running.append(admit(waiting, self.store, self.model))
            except CapacityError as error:
                waiting.release(self.store)
                if self._running or self._encoder.running:
                    return  # memory comes back when they end
                waiting.generation.deliver(error)
            self._waiting.popleft()
        if not self._waiting and not self._running:
            while self._jobs and self._encoder.advance(self._jobs[0]):
                self._jobs.popleft()

    def _schedule(self) -> dict[Sequence, int]:
        """Divide the next pass: requests and the modules they wait for. Modules that nobody waits for get short passes,
        and only when there is nothing else: on a processor they would make every token of an answer ten times slower.
        """
        encodings = self._encoder.running.values()
        needed = [*(r.sequence for r in self._running), *(e.sequence for e in encodings if not e.is_ahead)]
        if needed:
            return schedule(needed)
        rows = int(AHEAD_S / self.store.compute_cost.mean)
        return schedule([e.sequence for e in encodings], max(MIN_ROWS_AHEAD, rows))

    def _forward(self, scheduled: dict[Sequence, int]) -> list[tuple[Running, Tensor]]:
        """Run the pass. Returns the requests that want logits of it, each with its `[rows, vocabulary]`."""
        started = time.perf_counter()
        num_outputs = {r.sequence: max(1, len(r.admitted.request.teacher_forced)) for r in self._running}
        outputs: list[int] = []
        rows_of: dict[Sequence, slice] = {}
        num_rows = 0
        for sequence, rows in scheduled.items():
            num_rows += rows
            rows_behind = sequence.pending - rows
            wanted = min(rows, num_outputs.get(sequence, 0) - rows_behind)
            if wanted > 0:
                rows_of[sequence] = slice(len(outputs), len(outputs) + wanted)
                outputs.extend(range(num_rows - wanted, num_rows))
        chunks = [sequence.chunk(rows) for sequence, rows in scheduled.items()]
        logits = self.model.forward(chunks, self.store.arena, outputs, lambda: self._give_up() or self._is_unwanted)
        for sequence, rows in scheduled.items():
            sequence.computed += rows
        if num_rows >= PREFILL_ROWS:
            self.store.compute_cost.measured(time.perf_counter() - started, num_rows)
        return [(r, logits[rows_of[r.sequence]]) for r in self._running if r.sequence in rows_of]
