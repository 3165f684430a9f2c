"""The engine as other threads use it: one queue takes requests, and a queue per request returns text.

One thread computes (`engine_core`), and only it accesses KV memory. Other threads run functions between two steps
(`Engine.call`). An unforeseen error may leave that memory in any state. Then every open request ends with an error, and
the thread restarts with empty memory. The disk tier remains.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from typing import Self, TypeVar

from cache.attention.forward_pass import PassGivenUp
from cache.engine.device_memory import RowLimit, allocate_arena
from cache.engine.encoder import EncodeJob, Prefetch, problem_of
from cache.engine.engine_core import EngineCore, ForgetJob
from cache.engine.request import Encoded, Generation, Limits, Request
from cache.engine.restarts import RESTARTED, RESTING, SHUT_DOWN, Arranger, Rests
from cache.engine.text_delivery import TextThread
from cache.engine.waiting import Waiting
from cache.errors import CacheError, EngineBusy, EngineStopped, PromptError
from cache.memory.arena import Arena
from cache.memory.disk import DiskTier
from cache.memory.keys import PUBLIC_TENANT, check_tenant
from cache.memory.kv_shape import ArenaSize, KVStorage
from cache.memory.store import Store
from cache.model.language_model import Model
from cache.prompt.plan import Placement, Segment

log = logging.getLogger(__name__)


class IdleRun:
    """A request that is computed without reuse while the engine has no other work. It has its own engine core and KV
    memory, so it evicts nothing and reuses nothing, and it ends when a request arrives, even during a pass. Owned by
    the engine thread.
    """

    def __init__(
        self, model: Model, request: Request, generation: Generation, give_up: Callable[[], bool], row_limit: RowLimit
    ) -> None:
        """give_up: returns whether other work waits; called at every layer. row_limit: limit of the device."""
        slots = request.plan.num_tokens + max(1, request.sampling.max_tokens)
        store = Store(Arena(model.info.kv, slots, model.device), model.info.fingerprint)
        self._core, self._generation = EngineCore(model, store, give_up, row_limit=row_limit), generation
        self._core.inbox.append(Waiting(request, generation, time.perf_counter(), model.info.places_modules))
        self.has_ended = False

    def step(self) -> None:
        try:
            self._core.step()
        except PassGivenUp:
            self.give_up()
        except Exception as error:
            log.warning("a request could not be computed again: %s", error)
            self.fail(CacheError(f"the request could not be computed again: {error}"))
        self.has_ended = self.has_ended or not self._core.has_work

    def give_up(self) -> None:
        self.fail(EngineBusy("another request arrived"))

    def fail(self, error: CacheError) -> None:
        self.has_ended = True
        if not self._generation.is_over:
            self._generation.deliver(error)


Work = Waiting | EncodeJob | ForgetJob


def _has_ended(work: Work) -> bool:
    return work.generation.is_over if isinstance(work, Waiting) else work.done.done()


T = TypeVar("T")

HANGS = "the engine has made no progress for {:g} s, perhaps because a disk or device does not respond: ask again later"
CLOSE_S = 10.0  # seconds that a step may take to end when the engine is closed
LOOK_AGAIN_S = 0.5
"""Seconds between checks for cancelled and late requests while modules are loaded or written and nothing else runs."""
CHECKED_SHARE = 0.01
"""Share of the engine's time for checks of the store. With 10,000 modules a check delays a question by 0.3 s."""


class Engine(Arranger):
    """Answers prompts with one model and one store, as `cache.serving.interface` describes, between `start` and
    `close`. memory: size of the KV pool, see `device_memory`. host_memory: bytes for modules evicted from it. disk: the
    tier after both, or None. kv_storage: stored form of modules. placement, slot: defaults of `arrange`.
    """

    def __init__(
        self,
        model: Model,
        *,
        memory: ArenaSize,
        host_memory: int = 0,
        disk: DiskTier | None = None,
        kv_storage: KVStorage = "model",
        placement: Placement = "contiguous",
        slot: int = 256,
        limits: Limits | None = None,
    ) -> None:
        """Raise CapacityError if the device has too little memory."""
        super().__init__(model.info, model.tokenizer, placement, slot)
        self.model = model
        self.num_restarts = 0
        self._limits, self._row_limit = limits or Limits(), RowLimit(model.device)
        self._arena = allocate_arena(model, memory, self._limits.running, self._row_limit)
        self._host_memory, self._disk = host_memory, disk
        self._kv_storage = kv_storage
        model.prepare(self._arena)
        self._closing, self._arrived = threading.Event(), threading.Event()
        self._kept: Set[str] = frozenset()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._texts = TextThread()
        self._begin()
        self._next_check = 0.0
        self._open: list[Work] = []  # work that fails if the core fails; some may have ended before
        self._rests = Rests()
        self._is_restarting = False
        self._got_on: float | None = None  # time of the last progress; None: no work
        self._idle_run: IdleRun | None = None
        self._stopped: str | None = "the engine was not started"
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="warmdesk-engine", daemon=True)

    def start(self) -> Self:
        self._stopped = None
        self._thread.start()
        return self

    def close(self) -> None:
        """Write remaining modules to disk and stop. Open requests end with EngineStopped; a running pass stops at its
        next layer. A hanging thread is not stopped.
        """
        if self._thread.is_alive():
            self._closing.set()
            self._arrived.set()
            self._calls.put(lambda: self._stop(SHUT_DOWN))
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                log.error("the engine's thread hangs: some modules may not be on disk")
                return
        self.store.close()
        self.model.release(self._arena)

    @property
    def is_running(self) -> bool:
        return self._stopped is None and not self._is_restarting and not self.hangs

    @property
    def hangs(self) -> bool:
        """Return whether there is work without progress for `Limits.hang_s`."""
        got_on = self._got_on
        return got_on is not None and time.monotonic() - got_on > self._limits.hang_s

    @property
    def num_shortages(self) -> int:
        return self._row_limit.num_shortages

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        return self.store.key(segment, tenant)

    def submit(self, request: Request, generation: Generation | None = None) -> Generation:
        """Queue a request. generation: gets the answer; a new one if None. Raises EngineStopped; other refusals arrive
        through the generation.
        """
        generation = generation or Generation()
        waiting = Waiting(
            request, generation, time.perf_counter(), self.model.info.places_modules, self._kv_storage == "model"
        )
        self._post_work(waiting)
        self._core.demand.set()
        return generation

    def compute_idle(self, request: Request, generation: Generation | None = None) -> Generation:
        """Compute a request without reuse while the engine is idle, in separate KV memory (`IdleRun`). One at a time.
        The generation ends with EngineBusy if there is other work or if other work arrives. Raises EngineStopped.
        """
        request, generation = replace(request, reuse="off"), generation or Generation()
        self._post(lambda: self._begin_idle_run(request, generation))
        return generation

    def encode(
        self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT, *, into_memory: bool = False
    ) -> Future[Encoded]:
        """Encode modules in advance, while no request needs the engine. into_memory: also load modules from disk. A
        module that cannot be encoded is named in the result; the others continue. Raises EngineStopped, and ValueError
        for an invalid tenant.
        """
        check_tenant(tenant)
        useful = [segment for segment in segments if segment.tokens and self.model.info.places_modules]
        problems = {
            segment: problem for segment in useful if (problem := problem_of(segment, self.model.info)) is not None
        }
        sound = deque((segment, tenant) for segment in useful if segment not in problems)
        failed: dict[Segment, CacheError] = {segment: PromptError(why) for segment, why in problems.items()}
        job = EncodeJob(sound, Future(), into_memory, failed=failed)
        job.done.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        self._post_work(job)
        return job.done

    def prefetch(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Prefetch:
        """Load or encode modules into device memory while no request runs, most likely ones first. Modules that cannot
        be encoded are skipped. A prefetch runs before `encode`, and is dropped if memory is short, something fails or a
        module is deleted. Raises EngineStopped, and ValueError for an invalid tenant.
        """
        check_tenant(tenant)
        info = self.model.info
        useful = [segment for segment in dict.fromkeys(segments) if segment.tokens and info.places_modules]
        prefetch = Prefetch([segment for segment in useful if problem_of(segment, info) is None], tenant)
        self._post(lambda: self._core.prefetches.add(prefetch))
        self._arrived.set()
        return prefetch

    def settle(self) -> None:
        self._forget(ForgetJob(lambda _: frozenset(), Future()))
        self.store.flush()

    def forget(self, keys: Set[str]) -> int:
        found = self._forget(ForgetJob(lambda _: keys, Future(), is_urgent=True))
        self.forget_texts()
        return found

    def _forget(self, job: ForgetJob) -> int:
        self._post_work(job)
        return self._awaited(job.done)

    def _awaited(self, future: Future[T], most_s: float = float("inf")) -> T:
        """Return a result of the engine's thread. Raises CacheError after `most_s`, or if the engine hangs."""
        deadline = time.monotonic() + most_s
        while not future.done():
            wait([future], min(LOOK_AGAIN_S, deadline - time.monotonic()))
            if self.hangs:
                raise CacheError(HANGS.format(self._limits.hang_s))
            if time.monotonic() >= deadline:
                raise CacheError(f"the engine was busy for {most_s:g} s: try again")
        return future.result()

    def keep(self, keys: Set[str]) -> None:
        def keep(store: Store) -> None:
            self._kept = keys
            store.keep(keys)

        self.call(keep)

    def drop_prefixes(self, tenant: str) -> bool:
        self.forget_texts()
        return self.call(lambda store: store.device.drop_prefixes(tenant))

    def load(self) -> tuple[int, int]:
        return self._core.load

    @property
    def is_idle(self) -> bool:
        return not self._core.has_work

    def call(self, function: Callable[[Store], T], most_s: float = float("inf")) -> T:
        """Run a function of the store on the engine thread between steps. Raises its errors, and CacheError."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function(self.store))
            except Exception as error:
                future.set_exception(error)

        self._post(run)
        return self._awaited(future, most_s)

    def _post_work(self, work: Work) -> None:
        def take() -> None:
            self._open = [one for one in self._open if not _has_ended(one)] + [work]
            self._core.inbox.append(work)

        self._post(take)
        self._arrived.set()

    def _post(self, function: Callable[[], None]) -> None:
        with self._lock:
            if self._stopped is not None:
                raise EngineStopped(self._stopped)
            self._calls.put(function)

    # --- on the engine thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._stopped is None:
            try:
                self._step()
            except PassGivenUp:
                self._stop(SHUT_DOWN)
            except Exception:
                log.exception("the engine failed")
                self._restart()
        self._texts.close()

    def _step(self) -> None:
        self._core.demand.clear()  # before new work is accepted, so that none is missed
        self._take_calls()
        if self._stopped is None and self._core.has_work:
            self._end_idle_run()
            self._core.step()
        elif self._stopped is None:
            self._step_idle_run()
        if not (self._core.awaits_loads and any(self._core.load)):  # else requests wait: see `_wake`
            self._got_on = time.monotonic()

    def _begin(self) -> None:
        self.store = Store(
            self._arena,
            self.model.info.fingerprint,
            self._disk,
            host_memory=self._host_memory,
            kv_storage=self._kv_storage,
            on_load=self._wake,
        )
        self.store.keep(self._kept)
        self._core = EngineCore(
            self.model, self.store, self._closing.is_set, self._limits, self._row_limit, self._texts
        )

    def _wake(self) -> None:
        self._got_on = time.monotonic()
        self._core.demand.set()
        self._calls.put(lambda: None)

    def _restart(self) -> None:
        """End all open work of the core and restart, after a rest if failures repeat. Then requests are accepted."""
        self._is_restarting = True
        self._fail_all(CacheError(RESTARTED))
        while True:
            self._rest(self._rests.failed())
            if self._stopped is not None:
                return
            try:
                self.store.close()
                self._begin()
            except Exception:
                log.exception("the engine could not restart")
                continue
            self.num_restarts += 1
            self._is_restarting = False
            log.warning("the engine has restarted with empty memory")
            return

    def _rest(self, seconds: float) -> None:
        """Wait until the rest or the engine ends. New requests fail."""
        until = time.monotonic() + seconds
        if seconds:
            log.error("the engine waits %g s before it tries again", seconds)
        while self._stopped is None and (left := until - time.monotonic()) > 0:
            self._got_on = time.monotonic()
            try:
                self._calls.get(timeout=left)()
            except queue.Empty:
                return
            except Exception as error:  # the store has failed
                log.warning("a call to the failed engine has failed: %s", error)
            self._fail_all(CacheError(RESTING))

    def _fail_all(self, error: CacheError) -> None:
        self._texts.flush()  # ended answers keep their end; no text follows an error
        if self._idle_run is not None:
            self._idle_run.fail(error)
            self._idle_run = None
        for work in self._open:
            if _has_ended(work):
                continue
            if isinstance(work, Waiting):
                work.generation.deliver(error)
            else:
                work.done.set_exception(error)
        self._open = []

    def _take_calls(self) -> None:
        """Run other threads' functions. Without work, wait for one (see `_wake`)."""
        if not self._core.has_work and self._idle_run is None and self._calls.empty():
            self._check_store()
            self._got_on = None
            call = self._calls.get()
            self._got_on = time.monotonic()
            call()
        elif self._core.awaits_loads:
            with suppress(queue.Empty):
                self._calls.get(timeout=LOOK_AGAIN_S)()
        while not self._calls.empty():
            self._calls.get()()

    def _check_store(self) -> None:
        """Assert that nothing leaked, unless checked recently."""
        began = time.monotonic()
        if began >= self._next_check:
            self.store.check_integrity()
            now = time.monotonic()
            self._next_check = now + (now - began) / CHECKED_SHARE

    def _begin_idle_run(self, request: Request, generation: Generation) -> None:
        if self._core.has_work or self._idle_run is not None:
            generation.deliver(EngineBusy("the engine has other work"))
            return
        try:
            self._arrived.clear()
            self._idle_run = IdleRun(self.model, request, generation, self._arrived.is_set, self._row_limit)
        except Exception as error:  # such as a lack of memory
            generation.deliver(CacheError(f"the request could not be computed again: {error}"))

    def _step_idle_run(self) -> None:
        if self._idle_run is not None:
            self._idle_run.step()
            if self._idle_run.has_ended:
                self._idle_run = None

    def _end_idle_run(self) -> None:
        if self._idle_run is not None:
            self._idle_run.give_up()
            self._idle_run = None

    def _stop(self, why: str) -> None:
        with self._lock:
            if self._stopped is not None:
                return
            self._stopped = why
        while not self._calls.empty():  # calls posted just before: their callers wait
            self._calls.get()()
        self._fail_all(EngineStopped(why))
