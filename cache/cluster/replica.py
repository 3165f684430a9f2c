"""One engine as a replica of Ray Serve, and the router, which picks the replica that will compute a request first.

Arguments and results are plain values and bytes of messages (`cache.serving.messages`), and text streams as it is
generated. The router runs in the process that calls the replicas; `cache.routing` makes its decisions. Out of scope:
calling a replica (`cluster_engine`), and full queues: Serve then tries the next replica in the ranking, or waits.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict, Unpack

from msgspec import Raw, Struct
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from cache.engine.encoder import MOST_PREFETCHES
from cache.engine.request import Completion, Generation
from cache.errors import CacheError
from cache.prompt.plan import Plan, Segment
from cache.routing import Affinity, Wanted
from cache.serving import messages
from cache.serving.engine_server import CALLS_AT_ONCE, as_cache_error, load_engine, state_of
from cache.serving.interface import Cancellable
from cache.serving.messages import CallName, EngineSpec, arguments_of, decoded, encoded

KEY_CHARS = 16
"""Number of characters of a module's key that routing uses. A collision only costs one more computation."""


class Part(Struct, tag=True, frozen=True):
    """More text of an answer, and the tokens generated since the last part."""

    text: str
    tokens: tuple[int, ...]


class Behind(Struct, tag=True, frozen=True):
    """A refusal: the replica has missed a deletion, so it computed nothing."""


FromReplica = Part | Behind | messages.Ended | messages.Failed
Reply = messages.Returned | messages.Failed


class ReplicaState(Struct, frozen=True):
    """What a replica reports. kept: number of its set of pinned modules, see `ClusterEngine.keep`. forgotten: number of
    its last deletion; None before the first call.
    """

    state: messages.State
    kept: int
    forgotten: int | None


class Routing(TypedDict, total=False):
    """Facts about a call for the router, see `cache.routing.Wanted`. forgotten: number of the last deletion
    that the replica must have applied.
    """

    modules: dict[str, int]
    own_tokens: int
    session: str | None
    forgotten: int


def short(key: str) -> str:
    return key.partition(":")[2][:KEY_CHARS]


def routing_of_plan(plan: Plan, keys: Iterable[str], session: str | None) -> Routing:
    own = sum(len(span.tokens) for span in plan.spans if span.segment is None)
    return routing_of_segments(plan.segments(), keys) | Routing(own_tokens=own, session=session)


def routing_of_segments(segments: Iterable[Segment], keys: Iterable[str]) -> Routing:
    return Routing(modules={short(key): len(segment.tokens) for segment, key in zip(segments, keys, strict=True)})


MOST_REPORTED = 5000  # maximum number of modules in one report: the newest


class StreamedGeneration(Generation):
    """An answer streamed to an event loop. sent: number of tokens that another replica has already sent."""

    def __init__(self, sent: int) -> None:
        super().__init__()
        self._loop, self._frames = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()
        self._sent = sent

    def deliver(self, event: str | Completion | CacheError) -> None:
        if isinstance(event, str):
            tokens = tuple(self.tokens[self._sent :])
            self._sent += len(tokens)
            self._post(encoded(Part(event, tokens)))
            return
        self.is_over = True
        self._post(encoded(messages.Ended(0, event) if isinstance(event, Completion) else messages.Failed(0, event)))
        self._post(None)

    async def frames(self) -> AsyncIterator[bytes]:
        while (frame := await self._frames.get()) is not None:
            yield frame

    def _post(self, frame: bytes | None) -> None:
        self._loop.call_soon_threadsafe(self._frames.put_nowait, frame)


class EngineReplica:
    """The actor that Serve starts for each engine. Methods may run at the same time."""

    def __init__(self, spec: bytes) -> None:
        self._engine = load_engine(decoded(spec, EngineSpec))
        self._open: dict[str, Generation] = {}
        self._prefetches: OrderedDict[str, Cancellable] = OrderedDict()
        self._kept = 0
        self._forgotten: int | None = None
        self._calls = ThreadPoolExecutor(CALLS_AT_ONCE, "call")  # most of them wait for the engine

    async def answer(self, message: bytes, name: str, **routing: Unpack[Routing]) -> AsyncIterator[bytes]:
        if self._is_behind(routing):
            yield encoded(Behind())
            return
        submit: messages.Submit = decoded(message, messages.Submit)
        request = submit.asked()
        generation = StreamedGeneration(len(request.begun))
        self._open[name] = generation
        try:
            (self._engine.compute_idle if submit.is_idle else self._engine.submit)(request, generation)
            async for frame in generation.frames():
                yield frame
        except CacheError as error:
            yield encoded(messages.Failed(0, error))
        finally:
            generation.cancel()  # if its reader has left
            if self._open.get(name) is generation:  # it was not sent here again
                del self._open[name]

    async def cancel(self, name: str) -> bool:
        asked = self._open.get(name) or self._prefetches.get(name)
        if asked is not None:
            asked.cancel()
        return asked is not None

    async def encode(self, message: bytes, **routing: Unpack[Routing]) -> bytes:
        self._is_behind(routing)
        encode: messages.Encode = decoded(message, messages.Encode)
        asked = encode.modules()
        try:
            done = await asyncio.wrap_future(self._engine.encode(asked, encode.tenant))
        except Exception as error:
            return encoded(messages.Failed(0, as_cache_error("encoding", error)))
        return encoded(messages.EncodingEnded.of(0, done, asked))

    async def prefetch(self, message: bytes, name: str, **routing: Unpack[Routing]) -> None:
        self._is_behind(routing)
        foresee: messages.Foresee = decoded(message, messages.Foresee)
        self._prefetches[name] = self._engine.prefetch(foresee.modules(), foresee.tenant)
        while len(self._prefetches) > MOST_PREFETCHES:
            self._prefetches.popitem(last=False)

    async def call(self, method: CallName, given: bytes, **routing: Unpack[Routing]) -> bytes:
        self._is_behind(routing)
        return await self._run(lambda: getattr(self._engine, method)(*decoded(given, arguments_of(method))))

    async def keep(self, number: int, keys: bytes) -> bytes:
        """Pin modules as the engine does. Returns a `Reply`. number: identifies the set of keys."""

        def keep() -> None:
            self._engine.keep(decoded(keys, frozenset[str]))
            self._kept = number

        return await self._run(keep)

    async def forget(self, told: int, number: int, keys: bytes) -> bytes:
        """Delete modules as the engine does. Returns a `Reply` with the modules found. number: identifies this
        deletion. told: the keys include all deletions after this number. A replica that has missed an earlier deletion
        ends, and another one starts with empty memory.
        """

        return await self._run(lambda: self._forget(told, number, keys))

    async def catch_up(self, told: int, number: int, keys: bytes) -> bytes:
        """Call `forget` if a deletion was missed; else do nothing."""

        def catch_up() -> frozenset[str]:
            if self._forgotten is not None and self._forgotten >= number:
                return frozenset()
            self._engine.settle()  # waits for earlier work, which may have lost its reader
            return self._forget(told, number, keys)

        return await self._run(catch_up)

    async def begun(self) -> bytes:
        engine = self._engine
        return encoded(messages.Begun(engine.info, engine.store.fingerprint, engine.module_room))

    async def state(self) -> bytes:
        return encoded(ReplicaState(state_of(self._engine, 0), self._kept, self._forgotten))

    def record_routing_stats(self) -> dict[str, Any]:
        """Return the modules in memory and the queue's size. Serve calls it regularly."""
        held = [*self._engine.store.device.entries][-MOST_REPORTED:]  # owned by another thread: copied in one step
        return {"modules": [short(key) for key in held], "queue": sum(self._engine.load())}

    def check_health(self) -> None:
        if not self._engine.is_running:
            raise CacheError("the engine is not running")

    def __del__(self) -> None:
        if hasattr(self, "_engine"):  # else loading the model failed
            self._engine.close()

    def _is_behind(self, routing: Routing) -> bool:
        """Return whether this replica has missed a deletion. Before the first call its memory was empty."""
        number = routing.get("forgotten", 0)
        if self._forgotten is None:
            self._forgotten = number
        return self._forgotten < number

    def _forget(self, told: int, number: int, keys: bytes) -> frozenset[str]:
        if self._forgotten is not None and self._forgotten < told:
            end_process()
        asked = decoded(keys, frozenset[str])
        found = self._engine.call(lambda store: frozenset(key for key in asked if store.has(key)))
        self._engine.forget(asked)
        self._forgotten = max(number, self._forgotten or 0)
        return found

    async def _run(self, function: Callable[[], Any]) -> bytes:
        try:
            returned = await asyncio.get_running_loop().run_in_executor(self._calls, function)
            return encoded(messages.Returned(0, Raw(encoded(returned))))
        except Exception as error:
            return encoded(messages.Failed(0, as_cache_error("a call to the engine", error)))


def end_process() -> None:
    os._exit(1)


class AffinityRouter(RequestRouter):  # type: ignore[misc]  # Ray is not typed here
    """Ranks replicas by `Affinity`. All calls are on the router's event loop."""

    def initialize_state(self, **_: object) -> None:
        self._affinity = Affinity()
        self._reported: dict[ReplicaID, dict[str, Any]] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._affinity.set_replicas([name_of(one.replica_id) for one in replicas])
        before, self._reported = self._reported, {one.replica_id: one.routing_stats for one in replicas}
        for replica, stats in self._reported.items():
            if stats and stats != before.get(replica):
                self._affinity.report(name_of(replica), set(stats["modules"]), stats["queue"])

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._affinity.set_replicas([name_of(one) for one in self.curr_replicas])

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        wanted = wanted_of(pending_request)
        candidates = {name_of(one.replica_id): one for one in candidate_replicas}
        ranked = [name for name in self._affinity.rank(wanted) if name in candidates]
        if pending_request is not None and ranked:  # concurrent routing must see it
            self._affinity.sent(pending_request.metadata.internal_request_id, ranked[0], wanted)
        return [[candidates[name]] for name in ranked] or [candidate_replicas]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        request = pending_request.metadata.internal_request_id
        self._affinity.sent(request, name_of(replica_id), wanted_of(pending_request))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._affinity.ended(internal_request_id)


def wanted_of(request: PendingRequest | None) -> Wanted:
    given = {} if request is None else request.kwargs
    return Wanted(modules=given.get("modules", {}), own_tokens=given.get("own_tokens", 0), session=given.get("session"))


def name_of(replica: ReplicaID) -> str:
    return str(replica.unique_id)
