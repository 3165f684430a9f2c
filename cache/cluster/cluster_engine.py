"""Use several engines under Ray Serve as one `EngineInterface`, through the handle of a deployment.

Prompts are arranged here, with the model's tokenizer and without its weights. If a replica is lost, its answer
continues at another one, after the tokens already delivered. Deletions, pins and requests for contents go to every
replica. Out of scope: starting replicas (`deployment`), choosing one (`replica`).
"""

import asyncio
import heapq
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast
from uuid import uuid4

from ray.exceptions import ActorDiedError, RayActorError, RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from cache.cluster.replica import Behind, FromReplica, Part, ReplicaState, Reply, routing_of_plan, routing_of_segments
from cache.engine.request import Completion, Encoded, Generation, Request
from cache.engine.restarts import RESTARTED, SHUT_DOWN
from cache.errors import CacheError, EngineBusy, EngineFull, EngineStopped
from cache.memory.disk import TierContents
from cache.memory.keys import PUBLIC_TENANT, check_tenant
from cache.model.source import first_line
from cache.prompt.plan import Segment
from cache.serving import messages
from cache.serving.exchange import DOWN, EngineElsewhere, RemoteGeneration, Told
from cache.serving.messages import CallName, EngineSpec, decoded, encoded, result_of

MOST_LOSSES = 5  # maximum number of replicas lost with one request
ENCODES_AT_ONCE = 16  # concurrent encodings. Others wait here, so that questions do not wait for them
BEGUN_S, STATE_S = 60.0, 5.0  # seconds that a replica may take to describe itself, and to report its state
WATCH_S = 2.0
"""Seconds between checks for replicas that are new or reachable again. They need the current pins and deletions."""
SHARED_TIER = "disk"  # the tier that all engines share
NO_REPLICA = "no engine of the cluster can be reached"
log = logging.getLogger(__name__)


class Replies(NamedTuple):
    """Results from replicas. is_all: every replica that may still run has answered."""

    parts: list[Any]
    is_all: bool


class ClusterEngine(EngineElsewhere):
    """All engines of a deployment. end: called once by `close`; ends the engines or leaves them running."""

    def __init__(self, handle: DeploymentHandle[Any], spec: EngineSpec, end: Callable[[], None]) -> None:
        super().__init__(lambda: begun_of(handle), spec)
        self._handle, self._end = handle, end
        self._lock, self._open, self._is_closed = threading.Lock(), set[Future[Any]](), False
        self._kept_number, self._kept = 0, frozenset[str]()
        # Numbers of deletions: the last one, and the last one that every engine has applied.
        self._forgotten, self._told, self._untold, self._forgetting = 0, 0, set[str](), threading.Lock()
        self._encodes = asyncio.Semaphore(ENCODES_AT_ONCE)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster-engine", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        asyncio.run_coroutine_threadsafe(cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._end()

    # --- computing -------------------------------------------------------------------------------------------

    def encode(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Future[Encoded]:
        check_tenant(tenant)
        return self._run(self._encode_all(tuple(segments), tenant))

    def prefetch(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Told:
        """Prefetch all modules in the replica to which a request for them would go."""
        check_tenant(tenant)
        name, message = uuid4().hex, encoded(messages.Foresee.of(0, segments, tenant))
        routing = routing_of_segments(segments, (self.key(one, tenant) for one in segments))
        self._run(self._quietly(self._handle.prefetch.remote(message, name, forgotten=self._forgotten, **routing)))
        return Told(lambda: self._cancel(name))

    # --- modules ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        with self._lock:
            earlier = [*self._open]
        wait(earlier)
        self._call_all("settle")

    def forget(self, keys: Set[str]) -> int:
        """Delete modules in every replica. An unreachable replica answers no request until it has deleted them."""
        with self._forgetting:
            self._untold |= keys
            found = self._tell_forgotten()
        self.forget_texts()
        return len(found & keys)

    def keep(self, keys: Set[str]) -> None:
        with self._lock:
            self._kept, self._kept_number = frozenset(keys), self._kept_number + 1
        self._tell_kept()

    # --- state -----------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        return not self._open and super().is_idle

    def _state(self) -> messages.State:
        try:
            return combine_states([one.state for one in self.replica_states()])
        except (CacheError, TimeoutError):
            return DOWN

    def replica_states(self) -> list[ReplicaState]:
        return [decoded(one, ReplicaState) for one in self._broadcast("state", timeout_s=STATE_S).parts]

    # --- calls -----------------------------------------------------------------------------------------------

    def _call(self, name: CallName, *given: object, most_s: float | None = None) -> Any:
        """Call a method in every replica and combine the results. A call about one module goes to one replica."""
        if name in ("bring_to_device", "verify"):
            return self._call_at_home(name, cast("Segment", given[0]))
        said = self._call_all(name, *given, timeout_s=most_s)
        if name in ("modules", "modules_of_prefixes"):
            return frozenset().union(*said.parts)
        if name == "contents":
            return combine_contents(said.parts)
        if name == "prefix_uses":
            return heapq.nlargest(cast("int", given[0]), chain(*said.parts), key=lambda use: use.saved)
        return said.is_all and all(said.parts)

    def _call_all(self, method: CallName, *given: object, timeout_s: float | None = None) -> Replies:
        try:
            said = self._broadcast("call", method, encoded(given), timeout_s=timeout_s)
        except TimeoutError as error:
            raise CacheError(f"the engines of the cluster were busy for {timeout_s:g} s: try again") from error
        return Replies([value_of(one, result_of(method)) for one in said.parts], said.is_all)

    def _call_at_home(self, method: CallName, segment: Segment) -> Any:
        routing = routing_of_segments([segment], [self.key(segment)])
        call = partial(self._handle.call.remote, method, encoded((segment,)), forgotten=self._forgotten, **routing)
        return value_of(self._asked(lambda: call().result()), result_of(method))

    def _broadcast(self, method: str, *given: object, timeout_s: float | None = None) -> Replies:
        """Return the results of all replicas that have not ended. Raises CacheError."""

        def ask() -> list[Any]:
            return cast(
                "list[Any]", self._handle.broadcast(method, *given).results(timeout_s=timeout_s, return_exceptions=True)
            )

        said = self._asked(ask)
        lost = [one for one in said if isinstance(one, Exception)]
        for error in lost:
            if not isinstance(error, RayActorError):
                raise CacheError(f"an engine of the cluster has failed: {first_line(error)}") from error
        if not (parts := [one for one in said if isinstance(one, bytes)]):
            raise EngineStopped(NO_REPLICA)
        return Replies(parts, is_all=all(isinstance(error, ActorDiedError) for error in lost))

    def _asked(self, ask: Callable[[], Any]) -> Any:
        if self._is_closed:
            raise EngineStopped(SHUT_DOWN)
        try:
            return ask()
        except (RayError, RayServeException) as error:
            raise EngineStopped(f"{NO_REPLICA}: {first_line(error)}") from error

    def _cancel(self, name: str) -> None:
        with suppress(EngineStopped):
            self._asked(lambda: self._handle.broadcast("cancel", name).results(return_exceptions=True))

    def _tell_kept(self) -> None:
        with self._lock:
            number, kept = self._kept_number, encoded(self._kept)
        self._broadcast("keep", number, kept)

    def _tell_forgotten(self) -> frozenset[str]:
        """Apply all pending deletions in every replica. Returns the keys of the modules found. Raises CacheError."""
        number = self._forgotten + 1
        try:
            said = self._broadcast("forget", self._told, number, encoded(self._untold))
        finally:
            self._forgotten = number
        found = frozenset[str]().union(*(value_of(one, frozenset[str]) for one in said.parts))
        if said.is_all:
            self._told = number
            self._untold.clear()
        else:
            log.warning("an engine of the cluster is unreachable: it must delete modules before it answers again")
        return found

    def _tell_those_behind(self) -> None:
        """Apply the deletions in replicas that missed some. Raises CacheError."""
        with self._forgetting:
            said = self._broadcast("catch_up", self._told, self._forgotten, encoded(self._untold))
            for one in said.parts:
                value_of(one, frozenset[str])
            if self._untold and said.is_all:
                self._tell_forgotten()  # modules that an ended engine left in the shared files

    def _look(self) -> None:
        """Send missing pins and deletions to engines. If the states do not arrive in time, nothing is sent. Raises
        CacheError, TimeoutError.
        """
        said = self._broadcast("state", timeout_s=STATE_S)
        states = [decoded(one, ReplicaState) for one in said.parts]
        if any(one.kept != self._kept_number for one in states):
            self._tell_kept()
        is_behind = any(one.forgotten is not None and one.forgotten < self._forgotten for one in states)
        if is_behind or (self._untold and said.is_all):
            self._tell_those_behind()

    # --- on the loop -----------------------------------------------------------------------------------------

    def _begin(self, request: Request, *, is_idle: bool) -> Generation:
        messages.Submit.of(0, request, is_idle=is_idle)  # raises ValueError here
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
            message = encoded(messages.Submit.of(0, request, is_idle=is_idle))
            stream = self._handle.answer.options(stream=True).remote(
                message, name, forgotten=self._forgotten, **routing
            )
            begun, delivered = [*request.begun], request.delivered
            try:
                async for frame in stream:
                    event: FromReplica = decoded(frame, FromReplica)
                    if generation.is_cancelled and not begun:
                        await self._loop.run_in_executor(None, self._cancel, name)  # it had not arrived before
                    if isinstance(event, Part):
                        begun += event.tokens
                        delivered += len(event.text)
                        generation.deliver(event.text)
                    elif isinstance(event, Behind):
                        await self._loop.run_in_executor(None, self._tell_those_behind)
                    elif isinstance(event, messages.Ended):
                        return event.completion
                    elif not is_lost(event):
                        return event.error
            except RayActorError as error:
                log.warning("the engine of an answer is lost, another one continues: %s", first_line(error))
            if is_idle:
                return EngineBusy("the engine of the request is lost")
            if generation.is_cancelled:
                return CacheError("the request was cancelled, and its engine was lost")
            request = replace(request, begun=tuple(begun), delivered=delivered)
        return CacheError(RESTARTED)

    async def _encode_all(self, segments: Sequence[Segment], tenant: str) -> Encoded:
        parts = await asyncio.gather(*(self._encode(one, tenant) for one in segments))
        failed = {segment: why for part in parts for segment, why in part.failed.items()}
        return Encoded(sum(part.computed for part in parts), failed)

    async def _encode(self, segment: Segment, tenant: str) -> Encoded:
        message = encoded(messages.Encode.of(0, [segment], tenant))
        routing = routing_of_segments([segment], [self.key(segment, tenant)])
        async with self._encodes:
            for _ in range(MOST_LOSSES):
                try:
                    reply = await self._handle.encode.remote(message, forgotten=self._forgotten, **routing)
                except RayActorError:
                    continue
                except (RayError, RayServeException) as error:
                    return Encoded(0, {segment: as_error_of_cluster(error)})
                event = decoded(reply, messages.EncodingEnded | messages.Failed)
                if isinstance(event, messages.EncodingEnded):
                    return event.encoded((segment,))
                if not is_lost(event):
                    return Encoded(0, {segment: event.error})
        return Encoded(0, {segment: CacheError(RESTARTED)})

    async def _quietly(self, response: Any) -> None:
        try:
            await response
        except (RayError, RayServeException) as error:
            log.info("a prefetch was dropped: %s", first_line(error))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                await self._loop.run_in_executor(None, self._look)
            except (CacheError, TimeoutError) as error:
                log.info("the engines could not be reached: %s", first_line(error))
            except Exception as error:  # the next check may succeed
                log.warning("the engines could not be checked: %s", first_line(error))


async def cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def value_of(said: bytes, kind: Any) -> Any:
    reply: Reply = decoded(said, Reply)
    if isinstance(reply, messages.Failed):
        raise reply.error
    return decoded(reply.value, kind)


def is_lost(event: messages.Failed) -> bool:
    return isinstance(event.error, EngineStopped) or str(event.error) == RESTARTED


def as_error_of_cluster(error: BaseException) -> CacheError:
    if isinstance(error, CacheError):
        return error
    if isinstance(error, BackPressureError):
        return EngineFull("too many questions wait for an engine of the cluster: try again soon")
    log.error("the cluster has failed", exc_info=error)
    return CacheError(f"the cluster has failed: {first_line(error)}")


def begun_of(handle: DeploymentHandle[Any]) -> messages.Begun:
    try:
        return cast("messages.Begun", decoded(handle.begun.remote().result(timeout_s=BEGUN_S), messages.Begun))
    except (RayError, RayServeException, TimeoutError) as error:
        raise EngineStopped(f"{NO_REPLICA}: {first_line(error)}") from error


def combine_contents(parts: Sequence[TierContents]) -> TierContents:
    """Add up device and host memory, and count the shared tier once. List a module once for each memory that has it."""
    return TierContents(
        modules=tuple(
            held for number, part in enumerate(parts) for held in part.modules if number == 0 or held[0] != SHARED_TIER
        ),
        num_bytes=_sum(part.num_bytes for part in parts),
        capacity=_sum(part.capacity for part in parts),
        evictions=_sum(part.evictions for part in parts),
        space=next((part.space for part in parts if part.space is not None), None),
        failed_writes=sum(part.failed_writes for part in parts),
        skipped_writes=sum(part.skipped_writes for part in parts),
    )


def combine_states(states: Sequence[messages.State]) -> messages.State:
    """Combine one or more states: running if any engine is, idle if all are, with the mean cost of a token."""
    return messages.State(
        is_running=any(state.is_running for state in states),
        hangs=all(state.hangs for state in states),
        is_idle=all(state.is_idle for state in states),
        num_restarts=sum(state.num_restarts for state in states),
        num_shortages=sum(state.num_shortages for state in states),
        seconds_per_token=sum(state.seconds_per_token for state in states) / len(states),
        running=sum(state.running for state in states),
        waiting=sum(state.waiting for state in states),
    )


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return sums by tier. The shared tier is counted once, from the first engine."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update({tier: value for tier, value in part.items() if tier != SHARED_TIER or tier not in total})
    return dict(total)
