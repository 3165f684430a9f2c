"""Where a cluster has room for engines, in what Ray counts: CPU and GPU. Not covered: memory."""

from collections.abc import Mapping
from typing import TypeAlias

import ray
from ray._private.state import actors, available_resources_per_node

from cache.errors import CacheError

Needs: TypeAlias = Mapping[str, int]
"""What an engine asks for on one machine, by Ray's name: CPU, GPU."""


def check_room(engines: int, needs: Needs) -> None:
    """Whether the machines together are enough for so many engines. Raises CacheError."""
    there = ray.cluster_resources()
    for name, each in needs.items():
        if each * engines > there.get(name, 0):
            raise CacheError(
                f"{engines} engines with {each} {name} each need {each * engines}, and this machine has "
                f"{there.get(name, 0):.0f}: set cluster_engines or threads lower"
            )


def what_is_awaited(running: int, engines: int, needs: Needs, name: str) -> str:
    """Why not all engines run yet, in one line. name: what the names of their actors contain."""
    has_room = [
        one["Pid"] or one["State"] != "PENDING_CREATION" for one in actors().values() if name in str(one["Name"])
    ]
    free = _nearest(needs)
    begun = f"{running} of {engines} engines run"
    if all(has_room) or all(free.get(kind, 0) >= each for kind, each in needs.items()):
        return f"{begun}: the others begin"
    wanted, there = _amounts(needs, needs), _amounts(needs, free)
    return f"{begun}: an engine wants {wanted}, and the machine with most room has {there} free"


def _nearest(needs: Needs) -> Mapping[str, float]:
    """What is free on the machine that lacks least for one more engine."""
    machines: list[Mapping[str, float]] = [*available_resources_per_node().values()]
    return max(
        machines,
        key=lambda free: sum(min(1.0, free.get(kind, 0) / each) for kind, each in needs.items() if each),
        default={},
    )


def _amounts(needs: Needs, of: Mapping[str, float]) -> str:
    return " and ".join(f"{of.get(kind, 0):g} {kind}" for kind, each in needs.items() if each)
