"""A request router of Ray Serve that takes replicas by chance: what routing by modules is compared with."""

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class RandomRouter(RequestRouter):  # type: ignore[misc]  # Ray is not typed here
    """The same draws in every run."""

    def initialize_state(self, **weights: float) -> None:
        """Called by Serve. weights: of routing by modules; not used."""
        self._random = random.Random(0)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All of them, in random order."""
        return [[one] for one in self._random.sample(candidate_replicas, len(candidate_replicas))]
