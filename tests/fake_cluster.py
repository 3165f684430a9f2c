"""Replicas in this process behind what `ClusterEngine` uses of a deployment's handle; lost where a test wants it."""

import asyncio

from ray.exceptions import ActorDiedError, ActorUnavailableError

from cache.cluster.replica import EngineReplica, FromReplica
from cache.serving.messages import decoded


class EndedProcess(BaseException):
    """What a replica raises here instead of ending its process."""


class FakeResponse:
    """What a call gives: to be awaited, or waited for."""

    def __init__(self, call):
        self._call = call

    def __await__(self):
        return self._call().__await__()

    def result(self, timeout_s=None):
        async def wait():
            return await self._call()

        return asyncio.run(wait())


class FakeMethod:
    def __init__(self, handle, name):
        self._handle, self._name = handle, name

    def options(self, *, stream):
        return self

    def remote(self, *given, **routing):
        if self._name == "answer":
            return self._handle.stream(*given, **routing)
        replica = self._handle.chosen()
        return FakeResponse(lambda: getattr(replica, self._name)(*given, **routing))


class FakeBroadcast:
    def __init__(self, results):
        self._results = results

    def results(self, *, timeout_s=None, return_exceptions=False):
        return self._results


class FakeHandle:
    """The first replica that can be reached gets every call. losses: for each stream one after another, whether it is
    lost with a frame that has not been given out; then the next replica is the first.
    """

    def __init__(self, *replicas):
        self.replicas = [*replicas]
        self.unreachable, self.dead = set[EngineReplica](), set[EngineReplica]()
        self.losses = []
        self.frames = []
        self.broadcasts = []

    def __getattr__(self, name):
        return FakeMethod(self, name)

    def chosen(self):
        return next(one for one in self.replicas if one not in self.unreachable | self.dead)

    async def stream(self, *given, **routing):
        loses = self.losses.pop(0) if self.losses else None
        async for frame in self.chosen().answer(*given, **routing):
            event = decoded(frame, FromReplica)
            if loses is not None and loses(event):
                self.replicas.append(self.replicas.pop(0))
                raise ActorDiedError()
            self.frames.append(event)
            yield frame

    def broadcast(self, method, *given):
        self.broadcasts.append(method)
        return FakeBroadcast([self._asked(replica, method, given) for replica in [*self.replicas]])

    def _asked(self, replica, method, given):
        if replica in self.unreachable:
            return ActorUnavailableError("it cannot be reached", None)
        try:
            if replica not in self.dead:
                return asyncio.run(getattr(replica, method)(*given))
        except EndedProcess:
            self.dead.add(replica)
        return ActorDiedError()
