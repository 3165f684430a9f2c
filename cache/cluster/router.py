"""The request router of Ray Serve that sends a request to the replica that computes it soonest.

It runs in the process that calls the replicas. `cache.routing` makes the decisions; this file is the adapter
to Serve. Out of scope: full queues; Serve tries the next replica in the ranking, then waits.
"""

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from cache.routing import Affinity, Wanted


class AffinityRouter(RequestRouter):  # type: ignore[misc]  # Ray is not typed here
    """All calls are on the router's event loop."""

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
