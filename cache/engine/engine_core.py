"""The work of the engine thread: schedule, forward, sample, deliver. No other thread may use it.

An error ends only the request that caused it. If a forward pass fails, each sequence is computed in a pass of its own,
and the failing one ends with an error. If device memory runs out, passes become smaller first (`device_memory`).

Modules are deleted when all earlier requests, which may still store them, have ended. Later requests do not wait. They
continue, but nothing computed with the modules is stored, and requests that have not started look the modules up again.
An encoding that no open request or job needs is dropped.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Set
from collections.abc import Sequence as Many
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from cache.attention.forward_pass import PassGivenUp
from cache.attention.items import Chunk
from cache.engine.device_memory import RowLimit, note_costs, timer_for
from cache.engine.encoder import EncodeJob, Encoder, Encoding, PrefetchQueue, keys_of
from cache.engine.recomputation import RowSelector
from cache.engine.request import FinishReason, Limits, Request
from cache.engine.running import PAGE, Running, admit, next_tokens, pack_pass
from cache.engine.scheduler import Sequence, schedule, schedule_alone
from cache.engine.text_delivery import TextDelivery
from cache.engine.waiting import RowScoring, Waiting
from cache.errors import CacheError, CapacityError, EngineFull, PromptError, failure_of
from cache.memory.store import Store
from cache.model.info import ModelInfo
from cache.model.language_model import Model

LOOKED_AT, PATIENCE_S = 16, 1.0
"""Number of waiting requests to look at; later ones may start before earlier ones that still need modules or memory.
Seconds since its arrival after which no later request overtakes one that waits for memory.
"""
AHEAD_S, AHEAD_SHARE = 0.25, 0.1
"""Maximum seconds of a pass that only encodes modules in advance; a new question stops it. Share of the time for such
passes while there is other work, so that an ingestion also ends on a server that is always busy.
"""
MOST_STEPS, STEPS_S = 16, 0.06
"""Maximum number of tokens that a model chooses by itself in one call, and seconds after which it starts no further
token, so that text arrives evenly. New work also ends the call.
"""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """Modules to remove. find: returns them, called when all earlier work has ended. done: gets the number found.
    is_urgent: does not wait for earlier work.
    """

    find: Callable[[Store], Set[str]]
    done: Future[int]
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of a pass. logits: float32 `[rows, vocabulary]`. outputs: each request's slice of the rows. tokens:
    chosen by the model itself; then there are no logits.
    """

    logits: Tensor
    outputs: dict[Running, slice]
    tokens: Mapping[Running, list[int] | Exception] = field(default_factory=dict)


class EngineCore:
    """The state of the engine thread. inbox: new work, in order. give_up: returns whether everything must end; then
    `step` raises PassGivenUp, and the core is not used again. demand: set from any thread when a request is submitted
    or a module is loaded; it stops a pass that encodes in advance. awaits_loads: the last step could only wait for a
    module to be loaded or written. texts: makes the text; None: this thread does.
    """

    def __init__(
        self,
        model: Model,
        store: Store,
        give_up: Callable[[], bool],
        limits: Limits | None = None,
        row_limit: RowLimit | None = None,
        texts: TextDelivery | None = None,
    ) -> None:
        self.model, self.store, self._give_up, self._limits = model, store, give_up, limits or Limits()
        self._row_limit, self._texts = row_limit or RowLimit(model.device), texts or TextDelivery()
        self.demand = threading.Event()
        self._timer = timer_for(model.device)
        self.row_selector = RowSelector()
        self.inbox: deque[Waiting | EncodeJob | ForgetJob] = deque()
        self._encoder = Encoder(store)
        self.prefetches = PrefetchQueue(self._encoder)
        self._waiting: deque[Waiting] = deque()
        self._running: list[Running] = []
        self._paused: dict[Waiting, Running] = {}  # also in _waiting
        self._jobs: deque[EncodeJob] = deque()
        self._to_forget: deque[tuple[ForgetJob, frozenset[Waiting | EncodeJob]]] = deque()  # with earlier open work
        self._suspects: list[Sequence] = []  # sequences of a failed pass that are still to be tried alone
        self._had_prompts_alone = False  # whether the last pass computed prompts while answers waited
        self._ahead_due = 0.0  # next time to encode in advance despite other work, of `time.perf_counter`
        self.awaits_loads = False

    @property
    def has_work(self) -> bool:
        asked = self.inbox or self._running or self._waiting or self._jobs
        begun = self._encoder.running or self.prefetches or self.store.is_loading
        return bool(asked or begun or self._to_forget)

    @property
    def load(self) -> tuple[int, int]:
        return len(self._running), len(self._waiting) + len(self.inbox)

    def _asked(self) -> list[Waiting | EncodeJob]:
        return [*(running.admitted for running in self._running), *self._waiting, *self._jobs]

    def _ends_pass(self) -> bool:
        """Return whether to stop the running pass, because its result is not needed or other work is more urgent."""
        requests = [*(running.admitted for running in self._running), *self._waiting]
        is_unwanted = bool(requests) and all(one.generation.is_cancelled for one in requests)
        return self._give_up() or is_unwanted or (self.demand.is_set() and not self._needed())

    def step(self) -> None:
        """Accept new work, admit what fits, and compute one packed pass for everything that can run."""
        self.store.collect_loads()
        self._take_in()
        self._drop_cancelled()
        self._drop_late()
        self._admit()
        self._make_room()
        scheduled = self._row_limit.fit(self._schedule())
        self.awaits_loads = not scheduled and (self.store.is_loading or self.store.is_behind)
        if not scheduled:
            self.store.arena.begin_copies()
            return
        is_ahead, began = scheduled.keys().isdisjoint(self._needed()), time.perf_counter()
        if (computed := self._compute(scheduled)) is None:
            return
        if is_ahead:
            self._ahead_due = began + (time.perf_counter() - began) / AHEAD_SHARE
        note_costs(self._timer, self.store.compute_cost)  # for the values of modules collected next
        self._encoder.collect()
        self._advance(computed, sum(scheduled.values()))

    def _take_in(self) -> None:
        while self.inbox:
            arrived = self.inbox.popleft()
            if isinstance(arrived, ForgetJob):
                self._to_forget.append((arrived, frozenset(() if arrived.is_urgent else self._asked())))
            elif isinstance(arrived, EncodeJob):
                self._jobs.append(arrived)
            else:
                self._enqueue(arrived)
        while self._to_forget and self._to_forget[0][1].isdisjoint(self._asked()):
            self._forget(self._to_forget.popleft()[0])

    def _forget(self, job: ForgetJob) -> None:
        try:
            self._texts.flush()  # ended requests have also ended for their readers
            self.row_selector.clear()
            self.prefetches.clear()  # their started modules are dropped below
            job.done.set_result(self._remove(job.find(self.store)))
        except Exception as error:
            job.done.set_exception(error)

    def _remove(self, keys: Set[str]) -> int:
        store, jobs = self.store, self._jobs
        for answer in self._running:
            answer.keeps_rows &= not answer.admitted.uses(keys, store)
        for request in self._waiting:
            if request.uses(keys, store):
                request.release(store)
        for key, encoding in [*self._encoder.running.items()]:
            is_wanted = any(w.uses({key}, store) for w in self._waiting) or any(job.wants(key, store) for job in jobs)
            if is_wanted and keys.isdisjoint(keys_of(encoding.segment, encoding.tenant, store)):
                continue
            self._encoder.fail(key)  # requests start it again, and so does its job
            for job in jobs:
                if key in job.started:
                    job.segments.appendleft((job.started.pop(key), encoding.tenant))
        return store.forget(keys)

    def _enqueue(self, waiting: Waiting) -> None:
        if (problem := problem_of_prompt(waiting.request, self.model.info)) is not None:
            waiting.generation.deliver(PromptError(problem))
        elif len(self._waiting) + len(self._running) >= self._limits.waiting + self._limits.running:
            busy = "the server is busy: too many questions are waiting, try again soon"
            waiting.generation.deliver(EngineFull(busy))
        else:
            self._waiting.append(waiting)

    def _drop_cancelled(self) -> None:
        for running in [r for r in self._running if r.admitted.generation.is_cancelled]:
            self._running.remove(running)
            running.finish(self.store, "cancelled")
        for waiting in [w for w in self._waiting if w.generation.is_cancelled]:
            waiting.release(self.store)
            self._waiting.remove(waiting)
            if paused := self._paused.pop(waiting, None):
                paused.finish(self.store, "cancelled")
            else:
                waiting.end_cancelled()

    def _drop_late(self) -> None:
        """End requests that have taken too long. A started answer ends with its text so far."""
        if self._limits.seconds is None:
            return
        deadline = time.perf_counter() - self._limits.seconds
        busy = f"the question has waited {self._limits.seconds:g} s: the server is busy, try again soon"
        for running in [r for r in self._running if r.admitted.submitted < deadline]:
            self._running.remove(running)
            if running.answer:
                running.finish(self.store, "timeout")
            else:
                running.fail(self.store, EngineFull(busy))
        for waiting in [w for w in self._waiting if w.submitted < deadline]:
            waiting.release(self.store)
            self._refuse(waiting, EngineFull(busy), "timeout")

    def _admit(self) -> None:
        """Start waiting requests in order of arrival, except those that still need modules or memory. Then prefetch
        modules, then encode others in advance.
        """
        for waiting in list(islice(self._waiting, LOOKED_AT)):
            if len(self._running) >= self._limits.running:
                break
            try:
                if not waiting.find_modules(self._encoder):
                    continue
                if waiting.select_rows(self.row_selector, self.store, self.model.info):
                    self._running.append(self._start(waiting))
                    self._waiting.remove(waiting)
            except CapacityError as error:
                waiting.release(self.store)
                if self._is_hopeless(waiting):
                    self._refuse(waiting, error)
                elif time.perf_counter() - waiting.submitted > PATIENCE_S:
                    break
            except Exception as error:
                waiting.release(self.store)
                self._refuse(waiting, failure_of("the answer", error))
        if not (self._waiting or self._running):
            self.prefetches.advance(self.demand.is_set)
        is_due = self._is_ahead_due or not (self._waiting or self._running)
        while self._jobs and (is_due or self._is_job_awaited):
            if not self._encoder.advance(self._jobs[0]):
                return
            self._jobs.popleft()

    @property
    def _is_job_awaited(self) -> bool:
        return bool(self._jobs) and any(self._jobs[0] in earlier for _, earlier in self._to_forget)

    def _is_hopeless(self, waiting: Waiting) -> bool:
        """Return whether no memory will be released for a waiting request."""
        if self._running or self._encoder.running or self.store.is_loading or waiting is not self._waiting[0]:
            return False
        return not self._take_back()

    def _take_back(self) -> bool:
        holding = [waiting for waiting in self._waiting if waiting.entries]
        for waiting in holding:
            waiting.release(self.store)
        return bool(holding)

    def _refuse(self, waiting: Waiting, error: CacheError, reason: FinishReason = "length") -> None:
        self._waiting.remove(waiting)
        paused = self._paused.pop(waiting, None)
        if paused is not None and paused.answer:
            paused.finish(self.store, reason)
        else:
            waiting.generation.deliver(error)

    def _start(self, waiting: Waiting) -> Running:
        spare = PAGE * len(self._running)
        paused = self._paused.get(waiting)
        if paused is None:
            return admit(waiting, self.store, self.model, spare, self._texts)
        paused.resume(self.store, spare)
        return self._paused.pop(waiting)

    def _make_room(self) -> None:
        """Reserve a slot for every next token. If memory is short, preempt the latest request."""
        for running in [*self._running]:
            while running in self._running and running.sequence.missing_slots:
                try:
                    running.extend(self.store)
                except CapacityError:
                    self._pause_for(running)

    def _pause_for(self, needy: Running) -> None:
        """Free memory for a request: preempt the latest one, possibly itself. If no other request runs or holds memory,
        it ends with its text so far.
        """
        if len(self._running) == 1 and not (self._encoder.running or self.store.is_loading):
            if not self._take_back():
                self._running.remove(needy)
                needy.finish(self.store, "length")
            return
        # A request with logits to return needs one pass, and is not preempted.
        last = max((r for r in self._running if not r.is_read), key=lambda r: r.admitted.submitted)
        self._running.remove(last)
        last.pause(self.store)
        self._paused[last.admitted] = last
        self._waiting.appendleft(last.admitted)

    def _schedule(self) -> dict[Sequence, int]:
        """Divide the next pass among requests, and the modules and scores that they wait for. Encoding in advance gets
        separate passes, few and short ones while there is other work: on a CPU it makes answers ten times slower.
        """
        row_seconds = self.store.compute_cost.mean
        if suspect := self._next_suspect():
            return schedule([suspect], row_seconds)
        ahead = [(key, e.sequence) for key, e in self._encoder.running.items() if e.is_ahead]
        if (needed := self._needed()) and not (ahead and self._is_ahead_due):
            alone = {} if self._had_prompts_alone else schedule_alone(needed, row_seconds)
            self._had_prompts_alone = bool(alone)
            return alone or schedule(needed, row_seconds)
        prefetched = [sequence for key, sequence in ahead if self.prefetches.wants(key)]
        return schedule(prefetched or [sequence for _, sequence in ahead], row_seconds, 0 if needed else AHEAD_S)

    @property
    def _is_ahead_due(self) -> bool:
        return time.perf_counter() >= self._ahead_due

    def _needed(self) -> list[Sequence]:
        encodings = self._encoder.running.values()
        return [
            *(r.sequence for r in self._running),
            *(sequence for sequence in self._scorings() if sequence.pending),
            *(e.sequence for e in encodings if self._is_job_awaited or not e.is_ahead),
        ]

    def _scorings(self) -> dict[Sequence, RowScoring]:
        return {w.scoring.sequence: w.scoring for w in self._waiting if w.scoring is not None}

    def _compute(self, scheduled: dict[Sequence, int]) -> PassResult | None:
        """Return the result of `_forward`; None if the pass was stopped or failed: its rows are not computed."""
        try:
            computed = self._row_limit.attempt(sum(scheduled.values()), partial(self._forward, scheduled))
            if computed is not None:
                return computed
        except PassGivenUp:
            if self._give_up():
                raise
        except Exception as error:
            self._suspect([*scheduled], error)
        return None

    def _forward(self, scheduled: dict[Sequence, int]) -> PassResult:
        self._timer.start()
        running, scorings = {r.sequence: r for r in self._running}, self._scorings()
        packed = pack_pass(scheduled, {s: r.num_outputs for s, r in running.items()}, scorings)
        outputs = {running[sequence]: rows for sequence, rows in packed.rows_of.items()}
        arena = self.store.arena
        waits_for_copies = arena.has_copies
        arena.begin_copies()
        if (tokens := self._decode(packed.chunks, [*outputs])) is not None:
            return PassResult(torch.empty(0), outputs, tokens)
        logits = self.model.forward(packed.chunks, arena, packed.outputs, self._ends_pass, packed.scored)
        # the time of a pass that waits does not show the cost of rows
        self._timer.launched(0 if waits_for_copies else packed.num_rows)
        for sequence, rows in scheduled.items():
            sequence.computed += rows
            if sequence in scorings:
                scorings[sequence].add_pass()
        return PassResult(logits, outputs)

    def _decode(self, chunks: Many[Chunk], answers: Many[Running]) -> dict[Running, list[int] | Exception] | None:
        """Let the model choose several tokens of every answer by itself. Returns None if the engine must choose a
        token, or if the pass has other work. answers: answers with outputs in the pass.
        """
        steps = min((answer.most_steps for answer in answers), default=0)
        if steps < 2 or len(answers) < len(chunks):
            return None
        end = time.perf_counter() + STEPS_S
        arena, is_late = self.store.arena, lambda: bool(self.inbox) or time.perf_counter() >= end
        if (chosen := self.model.decode(chunks, arena, min(steps, MOST_STEPS), is_late)) is None:
            return None
        for answer in answers:
            answer.sequence.computed += len(chosen)
        return {answer: [*tokens] for answer, *tokens in zip(answers, *chosen, strict=True)}

    def _advance(self, result: PassResult, num_rows: int) -> None:
        """Continue answers with the result of a pass."""
        logits, outputs, tokens, finished = result.logits, result.outputs, result.tokens, self._timer.finished
        if not tokens:
            starts = {r: rows.start for r, rows in outputs.items() if not r.is_read}
            tokens = next_tokens(logits, starts, self._timer.to_host, partial(self._row_limit.note_shortage, num_rows))
        for running, rows in outputs.items():
            try:
                read, advance = running.read, running.advance
                reason = read(logits[rows], finished) if running.is_read else advance(tokens[running], finished)
            except Exception as error:
                self._fail_running(running, error)
                continue
            if reason is not None:
                self._running.remove(running)
                running.finish(self.store, reason)

    def _next_suspect(self) -> Sequence | None:
        """Return the next sequence to try alone, if it still has pending rows."""
        alive = {r.sequence for r in self._running} | {e.sequence for e in self._encoder.running.values()}
        alive |= self._scorings().keys()
        while self._suspects:
            suspect = self._suspects.pop()
            if suspect in alive and suspect.pending:
                return suspect
        return None

    def _suspect(self, sequences: list[Sequence], error: Exception) -> None:
        """After a failed pass, try its sequences one by one. If there is only one, end its request or module."""
        if len(sequences) > 1:
            log.warning("a forward pass of %d sequences failed; each is tried alone: %s", len(sequences), error)
            self._suspects = sequences[::-1]
            return
        for running in [r for r in self._running if r.sequence in sequences]:
            self._fail_running(running, error)
        for waiting in [w for w in self._waiting if w.scoring is not None and w.scoring.sequence in sequences]:
            waiting.release(self.store)
            self._refuse(waiting, failure_of("the answer", error))
        for key, encoding in [*self._encoder.running.items()]:
            if encoding.sequence in sequences:
                self._fail_encoding(key, encoding, error)

    def _fail_running(self, running: Running, error: Exception) -> None:
        self._running.remove(running)
        running.fail(self.store, failure_of("the answer", error))

    def _fail_encoding(self, key: str, encoding: Encoding, error: Exception) -> None:
        self._encoder.fail(key)
        failure = failure_of(f"module {encoding.segment.name!r}", error)
        for waiting in [w for w in self._waiting if w.uses({key}, self.store)]:
            waiting.release(self.store)
            self._refuse(waiting, failure)
        for job in self._jobs:
            if key in job.started:
                job.failed[job.started.pop(key)] = failure
            elif job.needs_next(key, self.store):
                job.fail_next(failure)
        self.prefetches.give_up(key)


def problem_of_prompt(request: Request, info: ModelInfo) -> str | None:
    needed = request.plan.next_position
    runs = (*(span.tokens for span in request.plan.spans), request.begun, request.teacher_forced)
    strange = next((token for run in runs for token in run if not 0 <= token < info.vocabulary), None)
    if strange is not None:
        return f"the prompt contains token {strange}, but the model has only {info.vocabulary} tokens"
    if needed > info.max_positions:
        return f"the prompt needs {needed} positions, the model has {info.max_positions}"
    return None
