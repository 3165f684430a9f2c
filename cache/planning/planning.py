"""Find the capacity for a load: simulate fleets of several sizes and routings, and choose the smallest that is enough.

With random traffic, a simulation starts in the state after a long time: each replica holds the documents that its
router sends there, if they fit. With a trace, it starts with empty memory. The first fifth of the requests is not
counted. The others are divided into ten batches. 95 % intervals are computed from the means of the batches.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, quantiles, stdev
from typing import TypeVar

from cache.planning.costs import PassCosts
from cache.planning.simulation import DiskContents, Fleet, Job, Simulation
from cache.planning.traffic import (
    BY_MODULES,
    RoutingPolicy,
    SimulatedRequest,
    TrafficShape,
    Zipfian,
    draw_requests,
    open_router,
)

T = TypeVar("T")
WARM_UP, BATCHES = 0.2, 10
STUDENT = 2.262  # two-sided 95 % quantile of Student's t with nine degrees of freedom
ROOM_OF_MODULES = 0.8  # share of memory that modules fill at the start; the rest is for requests
LEAST_REQUESTS, REQUESTS_PER_REPLICA = 4000, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """Result for one fleet with one routing. hit_rate: share of document tokens found in device memory. *_off: half the
    95 % interval. sources: prompt tokens by source. ttft: seconds. utilisation: share of time that a replica computes.
    """

    replicas: int
    machines: int
    routing: str
    requests: int
    hit_rate: float
    hit_rate_off: float
    ttft_p50: float
    ttft_p50_off: float
    ttft_p95: float
    ttft_p95_off: float
    utilisation: float
    refused: float
    sources: dict[str, int]


@dataclass(slots=True)
class Counted:
    """Statistics of finished requests. skip: number of first requests that are not counted."""

    skip: int
    request_s: float
    size: Callable[[int], int]
    seen: int = 0
    refused: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    hits: list[tuple[int, int]] = field(default_factory=list)
    ttfts: list[float] = field(default_factory=list)

    def add(self, job: Job) -> None:
        self.seen += 1
        if self.seen <= self.skip:
            return
        if job.ended is None or job.first_token is None:
            self.refused += 1
            return
        by_source: Counter[str] = Counter()
        for document, source in job.sources.items():
            by_source[source] += self.size(document)
        self.hits.append((by_source["device"], by_source.total()))
        self.sources += by_source + Counter(history=job.reused, prompt=job.prompt_tokens - job.reused)
        self.ttfts.append(job.first_token - job.submitted + self.request_s)


def requests_for(replicas: int) -> int:
    return max(LEAST_REQUESTS, REQUESTS_PER_REPLICA * replicas)


def plan_fleet(
    fleet: Fleet,
    routing: str,
    costs: PassCosts,
    traffic: TrafficShape | Sequence[SimulatedRequest],
    *,
    document_tokens: int,
    disk: int = 0,
    requests: int | None = None,
    seed: int = 0,
) -> PlannedRow:
    """Simulate one fleet with one routing. disk: bytes for documents that all replicas can load. requests: number of
    random requests, None for `requests_for`. Raises PlanError if a request does not fit in memory.
    """

    def size(_: int) -> int:
        return document_tokens

    capacity = disk // (costs.bytes_per_token * document_tokens)
    if isinstance(traffic, TrafficShape):
        number = requests or requests_for(fleet.replicas)
        asked, on_disk = draw_requests(traffic, number, seed), DiskContents(capacity, traffic.documents)
    else:
        number, asked, on_disk = len(traffic), iter(traffic), DiskContents(capacity)
    counted = Counted(int(WARM_UP * number), costs.request_s, size)
    router = open_router(routing, seed)
    simulation = Simulation(fleet, costs, router, size, on_disk, counted.add)
    if isinstance(traffic, TrafficShape):
        room = int(ROOM_OF_MODULES * fleet.memory / costs.bytes_per_token / document_tokens)
        simulation.fill(settled(traffic, router, [*simulation.replicas], room))
    replicas = [*simulation.replicas.values()]
    simulation.run(asked)
    busy = sum(replica.busy_s for replica in replicas) / max(simulation.now, 1e-9) / fleet.replicas
    return row_of(fleet, routing, counted, busy)


def settled(
    traffic: TrafficShape, router: RoutingPolicy, replicas: Sequence[str], room: int
) -> dict[str, list[tuple[int, float]]]:
    """Return each replica's documents after a long time, least used first, with uses per round. room: maximum count."""
    popularity = Zipfian(traffic.documents, traffic.zipf)
    held: dict[str, list[tuple[int, float]]] = {name: [] for name in replicas}
    spread = room * len(replicas) if router.holders("0", 1) else room
    for document in range(min(traffic.documents, spread)):
        homes = router.holders(str(document), 1) or replicas
        uses = popularity.chance(document) * room * (len(replicas) if homes is not replicas else 1)
        for home in homes:
            if len(held[home]) < room:
                held[home].append((document, uses))
    return {name: documents[::-1] for name, documents in held.items()}


def row_of(fleet: Fleet, routing: str, counted: Counted, busy: float) -> PlannedRow:
    hit_rate = sum(hits for hits, _ in counted.hits) / max(1, sum(tokens for _, tokens in counted.hits))
    parts = batches(counted.hits)
    shares = [sum(hits for hits, _ in part) / max(1, sum(tokens for _, tokens in part)) for part in parts]
    times = batches(counted.ttfts)
    counts = len(counted.ttfts) + counted.refused
    return PlannedRow(
        replicas=fleet.replicas,
        machines=-(-fleet.replicas // fleet.per_machine),
        routing=routing,
        requests=counts,
        hit_rate=round(hit_rate, 4),
        hit_rate_off=round(off_by(shares), 4),
        ttft_p50=round(percentile(counted.ttfts, 50), 4),
        ttft_p50_off=round(off_by([percentile(part, 50) for part in times]), 4),
        ttft_p95=round(percentile(counted.ttfts, 95), 4),
        ttft_p95_off=round(off_by([percentile(part, 95) for part in times]), 4),
        utilisation=round(busy, 4),
        refused=round(counted.refused / max(1, counts), 4),
        sources=dict(counted.sources),
    )


def batches(values: Sequence[T]) -> list[Sequence[T]]:
    """Return ten parts of about the same size, in order; fewer for fewer values."""
    size = max(1, math.ceil(len(values) / BATCHES))
    return [values[at : at + size] for at in range(0, len(values), size)]


def off_by(figures: Sequence[float]) -> float:
    """Return half the 95 % interval of the mean of `figures`, one per batch; 0 for fewer than two."""
    return STUDENT * stdev(figures) / math.sqrt(len(figures)) if len(figures) > 1 else 0.0


def percentile(values: Sequence[float], share: int) -> float:
    """Return the percentile `share` of values; 0 without values."""
    if len(values) < 2:
        return mean(values) if values else 0.0
    return quantiles(values, n=100, method="inclusive")[share - 1]


def fewest(rows: Sequence[PlannedRow], ttft_target: float) -> PlannedRow | None:
    """Return the smallest fleet, routed by modules, with a p95 below the target and no refused request."""
    fitting = [row for row in rows if row.routing == BY_MODULES and row.ttft_p95 <= ttft_target and row.refused == 0.0]
    return min(fitting, key=lambda row: row.replicas, default=None)
