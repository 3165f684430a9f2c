"""The engine: one thread that answers requests and encodes modules in packed forward passes.

Requests enter by a queue, pieces of text leave by a queue per request. `step` is the whole of it: admit, schedule,
forward, sample, deliver. Everything that touches KV memory happens on the engine thread; other threads ask it to
run a function between two steps (`call`).

Not covered: tokenising and placing prompts (`layout`), what a prompt should say (`app`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from cache.engine.admission import Running, Waiting, admit, milliseconds
from cache.engine.encoder import Encoder
from cache.engine.recomputation import RowSelector
from cache.engine.request import FinishReason, Generation, Request
from cache.engine.sampling import loop_length
from cache.engine.scheduler import ScheduledChunk, schedule
from cache.errors import CacheError, CapacityError, EngineStopped, PromptError
from cache.memory.arena import Arena
from cache.memory.disk import DiskTier
from cache.memory.keys import PUBLIC_TENANT, check_tenant
from cache.memory.store import Store
from cache.model.language_model import Model
from cache.prompt.arrangement import Placement, arrange, module_segment
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Plan, Segment
from cache.prompt.tokenizer import CachingTokenizer

T = TypeVar("T")
FindKeys = Callable[[Store], Set[str]]
"""Which modules to forget, asked when nothing runs that may still add some."""
log = logging.getLogger(__name__)

MAX_RUNNING = 16
MAX_WAITING = 64
PREFILL_ROWS = 64
"""Passes of fewer rows say little about what computing a module costs."""
REMEMBERED_RUNS = 1024
"""Texts whose tokens are remembered: some 20 KiB each for passages."""


@dataclass(slots=True, eq=False)
class EncodeJob:
    """Modules to be encoded ahead of use; `done` gets the number that had to be computed."""

    segments: deque[tuple[Segment, str]]
    done: Future[int]
    encoded: int = 0
    started: set[str] = field(default_factory=set)


class Engine:
    """Answers prompts from one model and one store.

    memory: bytes of the device arena. disk: the tier behind it, or None. placement, slot: how prompts are arranged
    unless `arrange` is told otherwise. Call `start` before use, `close` after.
    """

    def __init__(
        self,
        model: Model,
        *,
        memory: int,
        disk: DiskTier | None = None,
        placement: Placement = "contiguous",
        slot: int = 256,
    ) -> None:
        slots = max(1, memory // model.info.kv.bytes_per_token)
        self.model = model
        self.placement, self.slot = placement, slot
        self._tokenizer = CachingTokenizer(model.tokenizer, REMEMBERED_RUNS)
        self.store = Store(Arena(model.info.kv, slots, model.device), model.info.fingerprint, disk)
        self._encoder = Encoder(self.store)
        self._row_selector = RowSelector()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Waiting] = deque()
        self._running: list[Running] = []
        self._jobs: deque[EncodeJob] = deque()
        self._forgetting: tuple[FindKeys, Future[int]] | None = None
        self._later: list[Callable[[], None]] = []
        self._stopped: str | None = "the engine was not started"
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="warmdesk-engine", daemon=True)

    # --- for other threads ---------------------------------------------------------------------------------

    def start(self) -> Engine:
        """Begin to serve; returns the engine."""
        self._stopped = None
        self._thread.start()
        return self

    def close(self) -> None:
        """Finish writing modules to disk and stop; requests in flight end with EngineStopped."""
        if self._thread.is_alive():
            self._calls.put(lambda: self._stop("the engine was shut down"))
            self._thread.join()
        self.store.close()

    def arrange(
        self, parts: Sequence[TextModule | Text], placement: Placement | None = None, slot: int | None = None
    ) -> Plan:
        """Tokenise modules and texts and place them in this order; see `arrangement`. None: as the engine was told.

        Models that cannot place modules compute everything, one after another. Raises PromptError.
        """
        info = self.model.info
        return arrange(
            parts,
            self._tokenizer,
            position_independent=info.is_position_independent,
            max_positions=info.max_positions,
            placement=(placement or self.placement) if info.places_modules else "contiguous",
            slot=slot or self.slot,
        )

    def segment(self, module: TextModule) -> Segment:
        """The encoding segment of a module that is arranged (position-independent models: independent of where)."""
        info = self.model.info
        return module_segment(module, self._tokenizer, room=info.max_positions if info.is_position_independent else 0)

    def submit(self, request: Request) -> Generation:
        """Queue a request. Raises EngineStopped; other refusals arrive through the generation."""
        generation = Generation()
        waiting = Waiting(request, generation, time.perf_counter(), self.model.info.places_modules)
        self._post_in_order(lambda: self._enqueue(waiting))
        return generation

    def encode(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Future[int]:
        """Encode modules ahead of use, when no request needs the engine more. The result is how many were not in
        the arena or on disk yet; none are encoded for a model that cannot place modules. Raises EngineStopped,
        PromptError for a segment beyond the model's positions and ValueError for a bad tenant.
        """
        check_tenant(tenant)
        info = self.model.info
        for segment in segments:
            # a prefix needs no place in a prompt, but a left context may be long
            needed = segment.end - segment.left_context_positions.start if info.is_position_independent else segment.end
            if needed > info.max_positions:
                raise PromptError(f"module {segment.name!r} ends beyond the model's {info.max_positions} positions")
        useful = [segment for segment in segments if segment.tokens and info.places_modules]
        job = EncodeJob(deque((segment, tenant) for segment in useful), Future())
        job.done.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        self._post_in_order(lambda: self._jobs.append(job))
        return job.done

    def call(self, function: Callable[[Store], T]) -> T:
        """Run a function of the store on the engine thread between two steps. Raises what it raises."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function(self.store))
            except Exception as error:
                future.set_exception(error)

        self._post(run)
        return future.result()

    def forget(self, find: FindKeys) -> int:
        """Remove modules from every tier and everything computed with them. What was submitted or to be encoded before
        ends first, what comes after waits. Returns how many modules were there. Raises EngineStopped.
        """
        done: Future[int] = Future()
        self._post_in_order(lambda: self._begin_forgetting(find, done))
        return done.result()

    def _post_in_order(self, function: Callable[[], None]) -> None:
        """For what a forgetting must not overtake, nor be overtaken by."""
        self._post(lambda: self._do_in_order(function))

    def _post(self, function: Callable[[], None]) -> None:
        with self._lock:
            if self._stopped is not None:
                raise EngineStopped(self._stopped)
            self._calls.put(function)

    # --- on the engine thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._stopped is None:
                self._take_calls()
                if self._stopped is None and self._has_work:
                    self.step()
        except Exception:
            log.exception("the engine failed")
            self._stop("the engine failed, see the log; restart the program")

    def _take_calls(self) -> None:
        """Run what other threads asked for; with nothing to do, check the books and wait for it."""
        if not self._has_work and self._calls.empty():
            self.store.check_integrity()
            self._calls.get()()
        while not self._calls.empty():
            self._calls.get()()

    @property
    def _has_work(self) -> bool:
        return bool(
            self._waiting or self._running or self._jobs or self._encoder.running or self._forgetting is not None
        )

    def step(self) -> None:
        """Admit what can run, compute one packed pass, hand out its tokens."""
        self._drop_cancelled()
        self._admit()
        self._forget_when_quiet()
        scheduled = schedule(
            [*(r.sequence for r in self._running), *(e.sequence for e in self._encoder.running.values())]
        )
        if scheduled:
            logits, rows_of = self._forward(scheduled)
            self._encoder.collect()
            self._deliver(logits, rows_of)

    def _enqueue(self, waiting: Waiting) -> None:
        needed, limit = waiting.request.plan.next_position, self.model.info.max_positions
        if needed > limit:
            waiting.generation.deliver(PromptError(f"the prompt needs {needed} positions, the model has {limit}"))
        elif len(self._waiting) >= MAX_WAITING:
            waiting.generation.deliver(
                CapacityError("the desk is busy: too many questions are waiting, try again soon")
            )
        else:
            self._waiting.append(waiting)

    def _admit(self) -> None:
        """Move requests from waiting to running, first come, first served; then prepare modules ahead of use."""
        while self._waiting and len(self._running) < MAX_RUNNING:
            waiting = self._waiting[0]
            try:
                if not waiting.find_modules(self._encoder):
                    return
                waiting.select_rows(self._row_selector, self.store, self.model)
                running = admit(waiting, self.store, self.model.tokenizer, self.model.info.max_positions)
            except CapacityError as error:
                waiting.give_up(self.store)
                if self._running or self._encoder.running:
                    return  # memory comes back when they end
                self._waiting.popleft()
                waiting.generation.deliver(error)
            else:
                self._waiting.popleft()
                self._running.append(running)
        while not self._waiting and self._jobs and self._advance(self._jobs[0]):
            self._jobs.popleft()

    def _do_in_order(self, function: Callable[[], None]) -> None:
        if self._forgetting is None:
            function()
        else:
            self._later.append(function)

    def _begin_forgetting(self, find: FindKeys, done: Future[int]) -> None:
        self._forgetting = find, done

    def _forget_when_quiet(self) -> None:
        if self._forgetting is None or self._running or self._waiting or self._jobs or self._encoder.running:
            return
        find, done = self._forgetting
        self._tokenizer.clear()
        self._row_selector.clear()
        self.store.flush()
        done.set_result(self.store.forget(find(self.store)))
        self._end_forgetting()

    def _end_forgetting(self) -> None:
        self._forgetting = None
        later, self._later = self._later, []
        for function in later:
            self._do_in_order(function)

    def _advance(self, job: EncodeJob) -> bool:
        """Start encodings of a job while a pass has room; True when the job is done."""
        while job.segments and len(self._encoder.running) < MAX_RUNNING:
            segment, tenant = job.segments[0]
            key = self.store.key(segment, tenant)
            if key in self._encoder.running:
                break
            if not self.store.has(key):
                try:
                    found = self._encoder.find(segment, tenant)
                except CapacityError as error:
                    if self._running or self._encoder.running:
                        return False
                    job.done.set_exception(error)
                    return True
                assert found.entry is None, "a module the store does not have was found"
                if key not in self._encoder.running:
                    break  # its conditioning prefix comes first
                job.started.add(key)
            job.segments.popleft()
        if job.segments or any(key in self._encoder.running for key in job.started):
            return False
        job.done.set_result(len(job.started))
        return True

    def _forward(self, scheduled: list[ScheduledChunk]) -> tuple[Tensor, dict[int, slice]]:
        """Run the pass. Returns logits and, for each sequence (by identity) of which some are wanted, its rows."""
        started = time.perf_counter()
        tokens: list[int] = []
        positions: list[int] = []
        outputs: list[int] = []
        rows_of: dict[int, slice] = {}
        wanted = {id(running.sequence): running.wanted for running in self._running}
        for chunk in scheduled:
            sequence, end = chunk.sequence, chunk.sequence.computed + chunk.rows
            tokens.extend(sequence.tokens[sequence.computed : end])
            positions.extend(sequence.positions[sequence.computed : end])
            first = max(sequence.computed, len(sequence.tokens) - wanted.get(id(sequence), 0))
            if first < end:
                rows_of[id(sequence)] = slice(len(outputs), len(outputs) + end - first)
                outputs.extend(range(len(tokens) - (end - first), len(tokens)))
        chunks = [chunk.sequence.chunk(chunk.rows) for chunk in scheduled]
        logits = self.model.forward(tokens, positions, chunks, self.store.arena, outputs)
        for chunk in scheduled:
            chunk.sequence.computed += chunk.rows
        if len(tokens) >= PREFILL_ROWS:
            self.store.costs.measured_compute(time.perf_counter() - started, len(tokens))
        return logits, rows_of

    def _deliver(self, logits: Tensor, rows_of: dict[int, slice]) -> None:
        for running in [r for r in self._running if id(r.sequence) in rows_of]:
            rows = logits[rows_of[id(running.sequence)]]
            if running.request.teacher_forced:
                self._keep_logits(running, rows)
            else:
                self._sample(running, rows[0])

    def _keep_logits(self, running: Running, rows: Tensor) -> None:
        """Keep the logits along an answer that was given."""
        running.forced_logits.append(rows.cpu())
        if not running.sequence.pending:
            running.timings.first_token(milliseconds(running.submitted))
            self._finish(running, "scored")

    def _sample(self, running: Running, logits: Tensor) -> None:
        """Choose the next token, hand out what is certain of the text."""
        if not running.answer:
            running.timings.first_token(milliseconds(running.submitted))
        token: int | None = running.sampler.choose(logits, running.answer)
        reason = None
        while token is not None and reason is None:
            reason = self._take(running, token)
            token = running.sampler.forced(running.answer)  # what must follow needs no pass of its own
        piece = running.stream.update(running.answer, final=reason is not None)
        if piece:
            running.generation.deliver(piece)
        if running.stream.stopped:
            reason = "stop"
        if reason is not None:
            self._finish(running, reason)

    def _take(self, running: Running, token: int) -> FinishReason | None:
        """Add a sampled token to the answer; the reason why it is the end, if it is."""
        if token in self.model.info.stop_tokens:
            return "stop"
        running.answer.append(token)
        if running.request.sampling.choices is None and loop_length(running.answer):
            return "repeated"
        if running.sequence.is_full:
            return "length"
        running.sequence.append(token)
        return None

    def _finish(self, running: Running, reason: FinishReason) -> None:
        self._running.remove(running)
        running.generation.deliver(running.finish(self.store, reason))

    def _drop_cancelled(self) -> None:
        for running in [r for r in self._running if r.generation.is_cancelled]:
            if piece := running.stream.update(running.answer, final=True):
                running.generation.deliver(piece)
            self._finish(running, "cancelled")
        for waiting in [w for w in self._waiting if w.generation.is_cancelled]:
            waiting.give_up(self.store)
            self._waiting.remove(waiting)
            waiting.generation.deliver(CacheError("the request was cancelled before it started"))

    def _stop(self, why: str) -> None:
        with self._lock:
            if self._stopped is not None:
                return
            self._stopped = why
        while not self._calls.empty():  # what slipped in before: callers wait for their answers
            self._calls.get()()
        error = EngineStopped(why)
        while self._forgetting is not None:
            self._forgetting[1].set_exception(error)
            self._end_forgetting()
        for generation in [*(r.generation for r in self._running), *(w.generation for w in self._waiting)]:
            generation.deliver(error)
        for job in self._jobs:
            job.done.set_exception(error)
