"""Replicas in this process behind what `ClusterEngine` uses of a deployment's handle; lost where a test wants it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError

from cache.cluster.replica import EngineReplica, FromReplica
from cache.serving.messages import decoded


class EndedProcess(BaseException):
    """What a replica raises here instead of ending its process."""


class FakeResponse:
    """What a call gives: to be awaited, or waited for."""

    def __init__(self, call: Callable[[], Awaitable[Any]]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, None, Any]:
        return self._call().__await__()

    def result(self, timeout_s: float | None = None) -> Any:
        async def wait() -> Any:
            return await self._call()

        return asyncio.run(wait())


class FakeMethod:
    def __init__(self, handle: "FakeHandle", name: str) -> None:
        self._handle, self._name = handle, name

    def options(self, *, stream: bool) -> "FakeMethod":
        return self

    def remote(self, *given: Any, **routing: Any) -> Any:
        if self._name == "answer":
            return self._handle.stream(*given, **routing)
        replica = self._handle.chosen()
        return FakeResponse(lambda: getattr(replica, self._name)(*given, **routing))


class FakeBroadcast:
    def __init__(self, results: list[Any]) -> None:
        self._results = results

    def results(self, *, timeout_s: float | None = None, return_exceptions: bool = False) -> list[Any]:
        return self._results


class FakeHandle:
    """The first replica that can be reached gets every call. losses: for each stream one after another, whether it is
    lost with a frame that has not been given out; then the next replica is the first.
    """

    def __init__(self, *replicas: EngineReplica) -> None:
        self.replicas = [*replicas]
        self.unreachable, self.dead = set[EngineReplica](), set[EngineReplica]()
        self.losses: list[Callable[[FromReplica], bool]] = []
        self.frames: list[FromReplica] = []
        self.broadcasts: list[str] = []

    def __getattr__(self, name: str) -> FakeMethod:
        return FakeMethod(self, name)

    def chosen(self) -> EngineReplica:
        return next(one for one in self.replicas if one not in self.unreachable | self.dead)

    async def stream(self, *given: Any, **routing: Any) -> AsyncIterator[bytes]:
        loses = self.losses.pop(0) if self.losses else None
        async for frame in self.chosen().answer(*given, **routing):
            event = decoded(frame, FromReplica)
            if loses is not None and loses(event):
                self.replicas.append(self.replicas.pop(0))
                raise ActorDiedError()
            self.frames.append(event)
            yield frame

    def broadcast(self, method: str, *given: Any) -> FakeBroadcast:
        self.broadcasts.append(method)
        return FakeBroadcast([self._asked(replica, method, given) for replica in [*self.replicas]])

    def _asked(self, replica: EngineReplica, method: str, given: tuple[Any, ...]) -> Any:
        if replica in self.unreachable:
            return ActorUnavailableError("it cannot be reached", None)
        try:
            if replica not in self.dead:
                return asyncio.run(getattr(replica, method)(*given))
        except EndedProcess:
            self.dead.add(replica)
        return ActorDiedError()
