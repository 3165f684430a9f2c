"""What a replica sends besides the messages of `cache.serving.messages`, and what its router is told of a request.

All of it is plain values, and bytes of such values. Not covered: who sends it (`replica`, `cluster_engine`).

One engine as a replica of Ray Serve: what goes in and out is bytes of values, and text streams as it comes.

Not covered: which replica is called (`router`), and by whom (`cluster_engine`).
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict, Unpack

from msgspec import Raw, Struct

from cache.engine.encoder import MOST_PREFETCHES
from cache.engine.request import Completion, Generation
from cache.errors import CacheError
from cache.prompt.plan import Plan, Segment
from cache.serving.engine_server import CALLS_AT_ONCE, as_cache_error, asked_of, load_engine, state_of
from cache.serving.interface import Cancellable
from cache.serving.messages import (
    Begun,
    CallName,
    Encode,
    EncodingEnded,
    Ended,
    EngineSpec,
    Failed,
    Foresee,
    SentEncoded,
    SentError,
    State,
    Submit,
    arguments_of,
    decoded,
    encoded,
)

KEY_CHARS = 16
"""Of a module's key, for routing: two modules that are taken for one cost a second computation at most."""


class Part(Struct, tag=True, frozen=True):
    """More text of an answer, and the tokens that were generated since the part before."""

    text: str
    tokens: tuple[int, ...]


class Behind(Struct, tag=True, frozen=True):
    """Nothing is computed: the replica has missed that something was forgotten."""


FromReplica = Part | Behind | Ended | Failed


class ReplicaState(Struct, frozen=True):
    """What a replica does now. kept: the number of the set of modules that it keeps, see `ClusterEngine.keep`.
    forgotten: up to which number it has forgotten what was to be forgotten; None: it was asked nothing yet.
    """

    state: State
    kept: int
    forgotten: int | None


class Outcome(Struct, frozen=True):
    """What a method of an engine has returned, or its error."""

    value: Raw = Raw()
    error: SentError | None = None


class Routing(TypedDict, total=False):
    """What the router reads of a call, see `cache.routing.affinity.Wanted`; and the replica. forgotten: the number up
    to which it must have forgotten what was to be forgotten.
    """

    modules: dict[str, int]
    own_tokens: int
    session: str | None
    forgotten: int


def short(key: str) -> str:
    """A module's key as routers name it."""
    return key.partition(":")[2][:KEY_CHARS]


def routing_of_plan(plan: Plan, keys: Iterable[str], session: str | None) -> Routing:
    """What a request needs. keys: of the segments of the plan, in order."""
    modules = {short(key): len(segment.tokens) for key, segment in zip(keys, plan.segments(), strict=True)}
    own = sum(len(span.tokens) for span in plan.spans if span.segment is None)
    return Routing(modules=modules, own_tokens=own, session=session)


def routing_of_segments(segments: Iterable[Segment], keys: Iterable[str]) -> Routing:
    """What encoding needs."""
    return Routing(
        modules={short(key): len(segment.tokens) for segment, key in zip(segments, keys, strict=True)}, own_tokens=0
    )


MOST_REPORTED = 5000
"""Modules in one report: the newest."""


class StreamedGeneration(Generation):
    """An answer whose parts go to an event loop as they come."""

    def __init__(self) -> None:
        super().__init__()
        self._loop, self._frames = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()
        self._sent = 0  # tokens

    def begin(self, count: int) -> None:
        """The first tokens were sent before, by another replica."""
        self._sent = count

    def deliver(self, event: str | Completion | CacheError) -> None:
        """For the engine: a piece of text, the completion, or the error that ended the request."""
        if isinstance(event, str):
            tokens = tuple(self.tokens[self._sent :])
            self._sent += len(tokens)
            self._post(encoded(Part(event, tokens)))
            return
        self.is_over = True
        self._post(encoded(Ended(0, event) if isinstance(event, Completion) else Failed(0, SentError.of(event))))
        self._post(None)

    async def frames(self) -> AsyncIterator[bytes]:
        """All that is delivered."""
        while (frame := await self._frames.get()) is not None:
            yield frame

    def _post(self, frame: bytes | None) -> None:
        self._loop.call_soon_threadsafe(self._frames.put_nowait, frame)


class EngineReplica:
    """What Serve starts on each machine. Methods may be called at the same time."""

    def __init__(self, spec: bytes) -> None:
        """spec: an `EngineSpec`. Raises CacheError."""
        self._engine = load_engine(decoded(spec, EngineSpec))
        self._open: dict[str, Generation] = {}
        self._prefetches: OrderedDict[str, Cancellable] = OrderedDict()
        self._kept = 0
        self._forgotten: int | None = None
        self._calls = ThreadPoolExecutor(CALLS_AT_ONCE, "call")  # most of them wait for the engine

    async def answer(self, message: bytes, name: str, **routing: Unpack[Routing]) -> AsyncIterator[bytes]:
        """Compute a request (`Submit`); gives `FromReplica` one by one. name: to cancel it."""
        if self._is_behind(routing):
            yield encoded(Behind())
            return
        submit: Submit = decoded(message, Submit)
        request, generation = submit.request.request(), StreamedGeneration()
        generation.begin(len(request.begun))
        self._open[name] = generation
        try:
            (self._engine.compute_idle if submit.is_idle else self._engine.submit)(request, generation)
            async for frame in generation.frames():
                yield frame
        except CacheError as error:
            yield encoded(Failed(0, SentError.of(error)))
        finally:
            generation.cancel()  # where nobody reads it any more
            if self._open.get(name) is generation:  # it was not sent here once more
                del self._open[name]

    async def cancel(self, name: str) -> bool:
        """Drop what has this name; gives whether it was here."""
        asked = self._open.get(name) or self._prefetches.get(name)
        if asked is not None:
            asked.cancel()
        return asked is not None

    async def encode(self, message: bytes, **routing: Unpack[Routing]) -> bytes:
        """Encode modules (`Encode`); gives `EncodingEnded` or `Failed`."""
        self._is_behind(routing)
        encode: Encode = decoded(message, Encode)
        asked = asked_of(encode)
        try:
            done = await asyncio.wrap_future(self._engine.encode(asked, encode.tenant))
        except Exception as error:
            return failed("encoding", error)
        return encoded(EncodingEnded(0, SentEncoded.of(done, asked)))

    async def prefetch(self, message: bytes, name: str, **routing: Unpack[Routing]) -> None:
        """Prefetch modules (`Foresee`). name: to cancel it."""
        self._is_behind(routing)
        foresee: Foresee = decoded(message, Foresee)
        self._prefetches[name] = self._engine.prefetch(asked_of(foresee), foresee.tenant)
        while len(self._prefetches) > MOST_PREFETCHES:
            self._prefetches.popitem(last=False)

    async def call(self, method: CallName, given: bytes, **routing: Unpack[Routing]) -> bytes:
        """A method of the engine; gives an `Outcome`."""
        self._is_behind(routing)
        return await self._run(lambda: getattr(self._engine, method)(*decoded(given, arguments_of(method))))

    async def keep(self, number: int, keys: bytes) -> bytes:
        """As the engine's; gives an `Outcome`. number: of the set of keys."""

        def keep() -> None:
            self._engine.keep(decoded(keys, frozenset[str]))
            self._kept = number

        return await self._run(keep)

    async def forget(self, told: int, number: int, keys: bytes) -> bytes:
        """As the engine's; gives an `Outcome` with those that were there. number: of this forgetting. told: all that
        was forgotten after this number is among the keys. A replica that has missed more ends: another one begins, with
        empty memory.
        """

        return await self._run(lambda: self._forget(told, number, keys))

    async def catch_up(self, told: int, number: int, keys: bytes) -> bytes:
        """As `forget`, where that was missed; else nothing."""

        def catch_up() -> frozenset[str]:
            if self._forgotten is not None and self._forgotten >= number:
                return frozenset()
            self._engine.settle()  # what was asked before, and nobody waits for any more
            return self._forget(told, number, keys)

        return await self._run(catch_up)

    async def begun(self) -> bytes:
        """What must be known of the engine (`Begun`)."""
        engine = self._engine
        return encoded(Begun(engine.info, engine.store.fingerprint, engine.module_room))

    async def state(self) -> bytes:
        """`ReplicaState`."""
        return encoded(ReplicaState(state_of(self._engine, 0), self._kept, self._forgotten))

    def record_routing_stats(self) -> dict[str, Any]:
        """Called by Serve from time to time: which modules are in memory, and how much waits."""
        held = [*self._engine.store.device.entries][-MOST_REPORTED:]  # of another thread: copied in one step
        return {"modules": [short(key) for key in held], "queue": sum(self._engine.load())}

    def check_health(self) -> None:
        """Called by Serve, which begins another replica where this raises. Raises CacheError."""
        if not self._engine.is_running:
            raise CacheError("the engine does not run")

    def __del__(self) -> None:
        """Called by Serve when the replica is to end."""
        if hasattr(self, "_engine"):  # the model could be loaded
            self._engine.close()

    def _is_behind(self, routing: Routing) -> bool:
        """Whether it has missed that something was forgotten. Before the first call there was nothing in memory."""
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
            return encoded(Outcome(Raw(encoded(returned))))
        except Exception as error:
            return encoded(Outcome(error=SentError.of(as_cache_error("what was asked of the engine", error))))


def end_process() -> None:
    """At once, as if it was killed."""
    os._exit(1)


def failed(what: str, error: Exception) -> bytes:
    """`Failed`."""
    return encoded(Failed(0, SentError.of(as_cache_error(what, error))))
