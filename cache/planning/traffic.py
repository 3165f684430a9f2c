"""Requests with arrival times (random with Zipf popularity, or from a recorded trace), and routing policies: the policy
of a cluster (by modules), and two others to compare it with.

Documents are numbers; 0 is the most popular. The memory used here does not grow with the number of documents.
"""

import json
import math
import random
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cache.errors import PlanError
from cache.routing import Affinity, Ring, Wanted

TOPIC = 8  # documents of a topic; requests often need several of them together
TRACE_LINE = '{"t": seconds, "documents": [ids], "question_tokens": number, "answer_tokens": number}'


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """One question of the traffic. at: seconds from the start. session: id of its conversation, if any."""

    at: float
    documents: tuple[int, ...]
    question_tokens: int
    answer_tokens: int
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficShape:
    """The distribution of requests. per_request: documents of one request. related: probability that a further document
    has the first one's topic. zipf: Zipf's exponent. Answers are half to three halves as long as `answer_tokens`.
    """

    documents: int
    requests_per_second: float
    per_request: int = 4
    related: float = 0.8
    zipf: float = 1.0
    question_tokens: int = 24
    answer_tokens: int = 48


class Zipfian:
    """Ranks 0 .. count-1, where rank r has a probability proportional to (r+1) ** -exponent. Uses rejection-inversion
    (Hörmann and Derflinger, 1996), without a table.
    """

    def __init__(self, count: int, exponent: float) -> None:
        self._count, self._exponent = count, exponent
        self._first = self._integral(1.5) - 1.0
        self._last = self._integral(count + 0.5)
        self._shift = 2 - self._inverse(self._integral(2.5) - 2**-exponent)

    def draw(self, rng: random.Random) -> int:
        while True:
            place = self._last + rng.random() * (self._first - self._last)
            value = self._inverse(place)
            rank = min(max(1, int(value + 0.5)), self._count)
            if rank - value <= self._shift or place >= self._integral(rank + 0.5) - rank**-self._exponent:
                return rank - 1

    def chance(self, rank: int) -> float:
        return float((rank + 1) ** -self._exponent) / (self._last - self._first)

    def _integral(self, value: float) -> float:
        if self._exponent == 1:
            return math.log(value)
        return float(value ** (1 - self._exponent) - 1) / (1 - self._exponent)

    def _inverse(self, place: float) -> float:
        if self._exponent == 1:
            return math.exp(place)
        return float(max(0.0, 1 + place * (1 - self._exponent)) ** (1 / (1 - self._exponent)))


def draw_requests(shape: TrafficShape, count: int, seed: int) -> Iterator[SimulatedRequest]:
    """Return random requests that arrive independently (a Poisson process)."""
    rng, popularity, at = random.Random(seed), Zipfian(shape.documents, shape.zipf), 0.0
    for _ in range(count):
        at += rng.expovariate(shape.requests_per_second)
        yield SimulatedRequest(
            at=at,
            documents=draw_documents(shape, popularity, rng),
            question_tokens=shape.question_tokens,
            answer_tokens=rng.randint(-(-shape.answer_tokens // 2), shape.answer_tokens * 3 // 2),
        )


def draw_documents(shape: TrafficShape, popularity: Zipfian, rng: random.Random) -> tuple[int, ...]:
    first = popularity.draw(rng)
    topic = range(first // TOPIC * TOPIC, min(shape.documents, (first // TOPIC + 1) * TOPIC))
    drawn = {first: None}
    while len(drawn) < min(shape.per_request, shape.documents):
        is_related = rng.random() < shape.related and not all(one in drawn for one in topic)
        drawn[rng.choice(topic) if is_related else popularity.draw(rng)] = None
    return tuple(drawn)


def read_trace(file: Path) -> list[SimulatedRequest]:
    """Return the requests of a trace, ascending in time. The file has JSON lines like TRACE_LINE, optionally with
    "session". Raises PlanError that names the line.
    """
    names: dict[str, int] = {}
    requests: list[SimulatedRequest] = []
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    requests.append(read_line(line, f"{file}, line {number}", names))
    except OSError as error:
        raise PlanError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{file} is not text in UTF-8: write JSON lines {TRACE_LINE}") from error
    if not requests:
        raise PlanError(f"{file} has no requests: write JSON lines {TRACE_LINE}")
    return sorted(requests, key=lambda one: one.at)


def read_line(line: str, where: str, names: dict[str, int]) -> SimulatedRequest:
    """Read one request. names: number of each document id; new ids get the next number. Raises PlanError."""
    try:
        entry = json.loads(line)
        documents = entry["documents"]
        at, question, answer = float(entry["t"]), int(entry["question_tokens"]), int(entry["answer_tokens"])
        session = entry.get("session")
        if not (isinstance(documents, list) and all(isinstance(one, str | int) for one in documents)):
            raise TypeError(documents)
        if not (math.isfinite(at) and question >= 1 and answer >= 1):
            raise ValueError(at, question, answer)
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PlanError(f"{where} is not a request: write {TRACE_LINE}, with 1 token or more") from error
    return SimulatedRequest(
        at=at,
        documents=tuple(names.setdefault(str(one), len(names)) for one in dict.fromkeys(documents)),
        question_tokens=question,
        answer_tokens=answer,
        session=None if session is None else str(session),
    )


class RoutingPolicy:
    """The interface of a simulated router. Requests have unique names. This class routes by a hash of the first module,
    like routers for prefix caches; without modules, by a hash of the conversation or the request.
    """

    def __init__(self) -> None:
        self.ring = Ring()

    def set_replicas(self, replicas: Collection[str]) -> None:
        self.ring.set_replicas(replicas)

    def choose(self, request: str, wanted: Wanted) -> str:
        """Return the replica for a request. At least one replica must exist."""
        return next(self.ring.walk(next(iter(wanted.modules), wanted.session or request)))

    def ended(self, request: str) -> None:
        """Record the end of a request."""

    def report(self, replica: str, modules: Set[str], queue: int) -> None:
        """Apply a replica's report of its modules and its number of requests."""

    def holders(self, key: str, count: int) -> list[str]:
        """Return at most `count` replicas that hold a module in steady state; empty: all hold it. This class returns
        only the replica that the module hashes to, although others may hold it.
        """
        return [*islice(self.ring.walk(key), 1)]


class RoutingByModules(RoutingPolicy):
    """Routes by modules, as the router of a cluster does."""

    def __init__(self) -> None:
        super().__init__()
        self._affinity = Affinity()

    def set_replicas(self, replicas: Collection[str]) -> None:
        super().set_replicas(replicas)
        self._affinity.set_replicas(replicas)

    def choose(self, request: str, wanted: Wanted) -> str:
        replica = self._affinity.rank(wanted)[0]
        self._affinity.sent(request, replica, wanted)
        return replica

    def ended(self, request: str) -> None:
        self._affinity.ended(request)

    def report(self, replica: str, modules: Set[str], queue: int) -> None:
        self._affinity.report(replica, modules, queue)

    def holders(self, key: str, count: int) -> list[str]:
        return [*islice(self.ring.walk(key), count)]


class RandomRouting(RoutingPolicy):
    """Routes each request to a random replica."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._replicas: list[str] = []

    def set_replicas(self, replicas: Collection[str]) -> None:
        self._replicas = [*replicas]

    def choose(self, request: str, wanted: Wanted) -> str:
        return self._random.choice(self._replicas)

    def holders(self, key: str, count: int) -> list[str]:
        return []


BY_MODULES, BY_CHANCE, BY_PREFIX = "by modules", "by chance", "by first document"
ROUTINGS = (BY_MODULES, BY_PREFIX, BY_CHANCE)


def open_router(routing: str, seed: int) -> RoutingPolicy:
    if routing == BY_CHANCE:
        return RandomRouting(seed)
    return RoutingByModules() if routing == BY_MODULES else RoutingPolicy()
