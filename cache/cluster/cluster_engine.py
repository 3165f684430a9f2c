"""Several engines under Ray Serve as one: `cache.serving.interface.EngineInterface` over a deployment's handle.

Prompts are arranged here, with the model's tokenizer and without its weights. An answer whose replica dies goes on at
another one, behind the tokens that were given out. What concerns all memory (forgetting, keeping, contents) goes to
every replica. Not covered: starting the replicas (`deployment`), choosing one (`router`).
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence, Set
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from cache.cluster.combining import combine_contents, combine_states, combine_uses
from cache.cluster.frames import (
    FromReplica,
    Outcome,
    Part,
    ReplicaState,
    routing_of_plan,
    routing_of_segments,
)
from cache.engine.encoder import Encoded
from cache.engine.engine import SHUT_DOWN
from cache.engine.request import Completion, Generation, Request
from cache.engine.restarts import RESTARTED
from cache.errors import CacheError, EngineBusy, EngineFull, EngineStopped
from cache.memory.contents import ModuleCheck, TierContents
from cache.memory.keys import PUBLIC_TENANT, check_tenant
from cache.memory.store import PrefixUse
from cache.prompt.plan import Segment
from cache.serving.engine_elsewhere import EngineElsewhere
from cache.serving.exchange import RemoteGeneration, Told
from cache.serving.messages import (
    Begun,
    CallName,
    Encode,
    EncodingEnded,
    Ended,
    Failed,
    Foresee,
    State,
    Submit,
    decoded,
    encoded,
    result_of,
)
from cache.serving.spec import EngineSpec
from cache.serving.values import SegmentTable, SentRequest

MOST_LOSSES = 5
"""So many replicas may be lost with one request."""
ENCODES_AT_ONCE = 16
"""The others wait here, so that questions need not wait behind them."""
BEGIN_S, STATE_S = 600.0, 5.0
"""How long the first replica may take to begin, and one to say what it does."""
WATCH_S = 2.0
"""How often to look for replicas that began since: they must learn what to keep."""
NO_REPLICA = "no engine of the cluster can be reached"
DOWN = combine_states([])
log = logging.getLogger(__name__)


class ClusterEngine(EngineElsewhere):
    """The engines behind a handle. end: called once, by `close`: ends them, or leaves them to others."""

    def __init__(self, handle: DeploymentHandle[Any], spec: EngineSpec, end: Callable[[], None]) -> None:
        """Waits until a replica runs. Raises CacheError."""
        super().__init__(decoded(handle.begun.remote().result(timeout_s=BEGIN_S), Begun), spec)
        self._handle, self._end = handle, end
        self._lock, self._open, self._is_closed = threading.Lock(), set[Future[Any]](), False
        self._kept_number, self._kept = 0, frozenset[str]()
        self._encodes = asyncio.Semaphore(ENCODES_AT_ONCE)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster-engine", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    def close(self) -> None:
        """Stop. Requests in flight end with EngineStopped."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        asyncio.run_coroutine_threadsafe(cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._end()

    # --- computing -------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Generation:
        """Queue a request. Raises EngineStopped, and ValueError for a request whose answer is given."""
        return self._begin(request, is_idle=False)

    def compute_idle(self, request: Request) -> Generation:
        return self._begin(request, is_idle=True)

    def encode(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Future[Encoded]:
        """Each module where it has its home."""
        check_tenant(tenant)
        return self._run(self._encode_all(tuple(segments), tenant))

    def prefetch(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Told:
        """All of them where a request for them would go."""
        check_tenant(tenant)
        name, table = uuid4().hex, SegmentTable()
        message = encoded(Foresee(0, table.rows, [table.add(one) for one in segments], tenant))
        routing = routing_of_segments(segments, (self.key(one, tenant) for one in segments))
        self._run(self._quietly(self._handle.prefetch.remote(message, name, **routing)))
        return Told(lambda: self._cancel(name))

    # --- modules ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        with self._lock:
            earlier = [*self._open]
        wait(earlier)
        self._call_all("settle")

    def forget(self, keys: Set[str]) -> int:
        """Everywhere. Gives the most that one engine has found."""
        found: list[int] = self._call_all("forget", keys)
        self._arranger.clear()
        return max(found)

    def keep(self, keys: Set[str]) -> None:
        """From now on evict these modules only when nothing else may be evicted, also at replicas that begin later."""
        with self._lock:
            self._kept, self._kept_number = frozenset(keys), self._kept_number + 1
        self._tell_kept()

    def drop_prefixes(self, tenant: str) -> bool:
        self._arranger.clear()
        return all(self._call_all("drop_prefixes", tenant))

    def modules(self, tenant: str) -> frozenset[str]:
        return frozenset().union(*self._call_all("modules", tenant))

    def modules_of_prefixes(self) -> frozenset[str]:
        return frozenset().union(*self._call_all("modules_of_prefixes"))

    def bring_to_device(self, segment: Segment) -> None:
        self._call_at_home("bring_to_device", segment)

    def evict(self, key: str) -> bool:
        return all(self._call_all("evict", key))

    def verify(self, segment: Segment) -> ModuleCheck:
        return cast("ModuleCheck", self._call_at_home("verify", segment))

    def contents(self, with_modules: bool = True) -> TierContents:
        return combine_contents(self._call_all("contents", with_modules))

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        return combine_uses(self._call_all("prefix_uses", limit), limit)

    def flush(self) -> None:
        self._call_all("flush")

    # --- state -----------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._state().is_running

    @property
    def is_idle(self) -> bool:
        return not self._open and self._state().is_idle

    @property
    def num_restarts(self) -> int:
        return self._state().num_restarts

    @property
    def num_shortages(self) -> int:
        return self._state().num_shortages

    @property
    def seconds_per_token(self) -> float:
        return self._state().seconds_per_token

    def load(self) -> tuple[int, int]:
        state = self._state()
        return state.running, state.waiting

    def _state(self) -> State:
        try:
            return combine_states([one.state for one in self.replica_states()])
        except (CacheError, TimeoutError):
            return DOWN

    def replica_states(self) -> list[ReplicaState]:
        """Of each replica, in the same order as long as none comes or goes. Raises CacheError, TimeoutError."""
        return [decoded(one, ReplicaState) for one in self._broadcast("state", timeout_s=STATE_S)]

    # --- calls -----------------------------------------------------------------------------------------------

    def _call_all(self, method: CallName, *given: object) -> list[Any]:
        """Of every engine. Raises CacheError, also if one could not be asked and still runs."""
        return [value_of(one, method) for one in self._broadcast("call", method, encoded(given))]

    def _call_at_home(self, method: CallName, segment: Segment) -> Any:
        """Of the engine that has a module, else of that which would compute it."""
        routing = routing_of_segments([segment], [self.key(segment)])
        given = encoded((segment,))
        return value_of(self._asked(lambda: self._handle.call.remote(method, given, **routing).result()), method)

    def _broadcast(self, method: str, *given: object, timeout_s: float | None = None) -> list[bytes]:
        """What all replicas say; those that have ended say nothing. Raises CacheError."""

        def ask() -> list[Any]:
            return cast(
                "list[Any]", self._handle.broadcast(method, *given).results(timeout_s=timeout_s, return_exceptions=True)
            )

        said = self._asked(ask)
        for one in said:
            if isinstance(one, Exception) and not isinstance(one, RayActorError):
                raise CacheError(f"an engine of the cluster has failed: {one}") from one
        return [one for one in said if isinstance(one, bytes)]

    def _asked(self, ask: Callable[[], Any]) -> Any:
        if self._is_closed:
            raise EngineStopped(SHUT_DOWN)
        try:
            return ask()
        except (RayError, RayServeException) as error:
            raise EngineStopped(f"{NO_REPLICA}: {error}") from error

    def _cancel(self, name: str) -> None:
        if not self._is_closed:
            self._handle.broadcast("cancel", name).results(return_exceptions=True)

    def _tell_kept(self) -> None:
        with self._lock:
            number, kept = self._kept_number, encoded(self._kept)
        self._broadcast("keep", number, kept)

    # --- on the loop -----------------------------------------------------------------------------------------

    def _begin(self, request: Request, *, is_idle: bool) -> Generation:
        SentRequest.of(request)  # raises ValueError here
        name = uuid4().hex
        generation = RemoteGeneration(lambda: self._cancel(name))
        self._run(self._answer(name, request, generation, is_idle))
        return generation

    def _run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        with self._lock:
            if self._is_closed:
                work.close()
                raise EngineStopped(SHUT_DOWN)
            done = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._open.add(done)
        done.add_done_callback(self._open.discard)
        return done

    async def _answer(self, name: str, request: Request, generation: RemoteGeneration, is_idle: bool) -> None:
        """Have an answer computed, again where its replica is lost."""
        try:
            generation.deliver(await self._ended(name, request, generation, is_idle))
        except BaseException as error:
            generation.deliver(EngineStopped(SHUT_DOWN) if self._is_closed else as_error_of_cluster(error))

    async def _ended(
        self, name: str, request: Request, generation: RemoteGeneration, is_idle: bool
    ) -> Completion | CacheError:
        keys = [self.key(one, request.tenant_of_modules) for one in request.plan.segments()]
        routing = routing_of_plan(request.plan, keys, request.session)
        for _ in range(MOST_LOSSES):
            message = encoded(Submit(0, SentRequest.of(request), is_idle))
            stream = self._handle.answer.options(stream=True).remote(message, name, **routing)
            begun = [*request.begun]
            try:
                async for frame in stream:
                    event: FromReplica = decoded(frame, FromReplica)
                    if generation.is_cancelled and not begun:
                        await self._loop.run_in_executor(None, self._cancel, name)  # it had not arrived before
                    if isinstance(event, Part):
                        begun += event.tokens
                        generation.deliver(event.text)
                    elif isinstance(event, Ended):
                        return event.completion
                    elif not is_lost(event):
                        return event.error.error()
            except RayActorError as error:
                log.warning("the engine that computed an answer is lost, another one goes on: %s", first_line(error))
            if is_idle:
                return EngineBusy("its engine is lost")
            if generation.is_cancelled:
                return CacheError("the request was cancelled, and its engine is lost")
            most = max(request.sampling.max_tokens, len(begun) + 1)
            request = replace(request, begun=tuple(begun), sampling=replace(request.sampling, max_tokens=most))
        return CacheError(RESTARTED)

    async def _encode_all(self, segments: Sequence[Segment], tenant: str) -> Encoded:
        parts = await asyncio.gather(*(self._encode(one, tenant) for one in segments))
        failed = {segment: why for part in parts for segment, why in part.failed.items()}
        return Encoded(sum(part.computed for part in parts), failed)

    async def _encode(self, segment: Segment, tenant: str) -> Encoded:
        table = SegmentTable()
        message = encoded(Encode(0, table.rows, [table.add(segment)], tenant))
        routing = routing_of_segments([segment], [self.key(segment, tenant)])
        async with self._encodes:
            for _ in range(MOST_LOSSES):
                try:
                    reply = await self._handle.encode.remote(message, **routing)
                except RayActorError:
                    continue
                except (RayError, RayServeException) as error:
                    return Encoded(0, {segment: as_error_of_cluster(error)})
                event = decoded(reply, EncodingEnded | Failed)
                if isinstance(event, EncodingEnded):
                    return event.encoded.encoded((segment,))
                if not is_lost(event):
                    return Encoded(0, {segment: event.error.error()})
        return Encoded(0, {segment: CacheError(RESTARTED)})

    async def _quietly(self, response: Any) -> None:
        """Wait for what nobody needs."""
        try:
            await response
        except (RayError, RayServeException) as error:
            log.info("prefetching was dropped: %s", first_line(error))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                states = await self._loop.run_in_executor(None, self.replica_states)
                if any(one.kept != self._kept_number for one in states):
                    await self._loop.run_in_executor(None, self._tell_kept)
            except (CacheError, TimeoutError) as error:
                log.info("the engines could not be asked: %s", first_line(error))


async def cancel_all() -> None:
    """End all tasks of this loop but this one."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def value_of(said: bytes, method: CallName) -> Any:
    """What a method has returned. Raises CacheError where it has."""
    outcome: Outcome = decoded(said, Outcome)
    if outcome.error is not None:
        raise outcome.error.error()
    return decoded(outcome.value, result_of(method))


def is_lost(event: Failed) -> bool:
    """Whether an engine has failed, rather than the request."""
    error = event.error
    return error.kind == EngineStopped.__name__ or error.message == RESTARTED


def as_error_of_cluster(error: BaseException) -> CacheError:
    """What readers get for an error of Ray or of Serve."""
    if isinstance(error, CacheError):
        return error
    if isinstance(error, BackPressureError):
        return EngineFull("too many questions wait for an engine of the cluster: try again soon")
    log.error("the cluster has failed", exc_info=error)
    return CacheError(f"the cluster has failed: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """Of its message, which may be a whole traceback."""
    return next(iter(str(error).splitlines()), type(error).__name__)
