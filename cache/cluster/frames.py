"""What a replica sends besides the messages of `cache.serving.messages`, and what its router is told of a request.

All of it is plain values, and bytes of such values. Not covered: who sends it (`replica`, `cluster_engine`).
"""

from collections.abc import Iterable
from typing import TypedDict

from msgspec import Raw, Struct

from cache.prompt.plan import Plan, Segment
from cache.serving.messages import Ended, Failed, State
from cache.serving.values import SentError

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
