"""Eviction: requests replayed through the store with too little memory, compared with other policies.

A trace is a list of requests, each with some modules; all modules have the same size. It is sampled with Zipf
popularity, or read from JSON lines `{"modules": [name, ...]}`. The store is the engine's own, with keys and values of a
few bytes, and its accounting is checked after every request. Other policies:
  lru       evicts the least recently used module
  lfu       evicts the least frequently used module so far
  informed  evicts the least likely module by the probabilities of the trace. No policy without knowledge of the future
            can be expected to hit more
  optimum   evicts the module that is needed last (Belady, 1966), which requires the future; nothing can hit more
"""

import math
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from app.domain.errors import DeskError
from app.domain.json_lines import read_json_lines
from cache.memory.arena import Arena
from cache.memory.device import CacheEntry
from cache.memory.keys import PUBLIC_TENANT
from cache.memory.kv_shape import KVShape
from cache.memory.store import Store
from cache.prompt.plan import Segment
from evals.peers.random_prompts import Zipf
from evals.report import describe_machine, table

MODULE_TOKENS = 8
PASSAGES = 4
SHAPE = KVShape(layers=1, kv_heads=1, head_dim=1, dtype="float32")

Requests = Sequence[Sequence[str]]
Rank = Callable[[str, int], tuple[float, ...]]  # (module, index of the use); the lowest rank is evicted first


@dataclass(frozen=True, slots=True)
class Trace:
    """A list of requests. chances: ranks the least likely module lowest; None if unknown."""

    requests: Requests
    chances: Rank | None = None


def measure_eviction(traces: Sequence[Trace], budgets: Sequence[int], source: str) -> dict[str, Any]:
    """Replay traces with each budget; the result is ready for JSON. source: where the traces come from. Raises
    DeskError if a budget is smaller than a request.
    """
    largest = max(len(set(request)) for trace in traces for request in trace.requests)
    if min(budgets) < largest:
        raise DeskError(f"a request has {largest} modules: set --budget to at least this number", code="usage")
    rows: list[dict[str, Any]] = []
    for budget in budgets:
        stores = [replay_store(trace.requests, budget) for trace in traces]
        hits = defaultdict[str, list[int]](list, warmdesk=[hits for hits, _ in stores])
        for trace in traces:
            for policy, rank in ranks_of(trace).items():
                hits[policy].append(replay(trace.requests, budget, rank, pins=policy != "optimum"))
        found = [row_of(policy, budget, traces, counts, hits["optimum"]) for policy, counts in hits.items()]
        found[0]["evictions"] = mean(evicted for _, evicted in stores)
        rows += found
    return {
        "machine": describe_machine(),
        "trace": source,
        "traces": len(traces),
        "requests": len(traces[0].requests),
        "modules": round(mean(len({*chain.from_iterable(trace.requests)}) for trace in traces)),
        "rows": rows,
    }


def row_of(
    policy: str, budget: int, traces: Sequence[Trace], hits: Sequence[int], optimum: Sequence[int]
) -> dict[str, Any]:
    """Return the means over the traces. hit_rate: share of requested modules that were in memory. of_optimum: share of
    the optimum's hits; least, most: over the traces. evictions: None if not counted.
    """
    shares = [count / max(best, 1) for count, best in zip(hits, optimum, strict=True)]
    uses = [sum(map(len, trace.requests)) for trace in traces]
    return {
        "policy": policy,
        "budget": budget,
        "hit_rate": round(sum(hits) / sum(uses), 4),
        "of_optimum": round(mean(shares), 4),
        "of_optimum_least": round(min(shares), 4),
        "of_optimum_most": round(max(shares), 4),
        "evictions": None,
    }


def draw_trace(modules: int, requests: int, exponent: float, *, changes: int = 0, seed: int = 0) -> Trace:
    """Draw requests with Zipf popularity. changes: number of times, at equal distances, that each module gets the
    popularity of another one.
    """
    rng = random.Random(seed)
    segments = [Segment(name=str(number), tokens=(0,)) for number in range(modules)]
    drawn: list[list[str]] = []
    ranks: list[dict[str, int]] = []  # for each request; 0 is the most popular
    for part in range(changes + 1):
        if part:
            rng.shuffle(segments)
        popularity = Zipf(exponent, segments)
        ranked = {segment.name: rank for rank, segment in enumerate(segments)}
        for _ in range(len(drawn), requests * (part + 1) // (changes + 1)):
            drawn.append([segment.name for segment in popularity.draw_different(PASSAGES, rng)])
            ranks.append(ranked)
    size = min(PASSAGES, modules)
    return Trace(drawn, lambda name, index: (-ranks[index // size][name],))


def read_trace(file: Path) -> Trace:
    wanted = 'trace: write one JSON object {"modules": [name, ...]} per line'
    read = read_json_lines(file, lambda row: [str(name) for name in dict.fromkeys(row["modules"])], wanted, "bad-file")
    trace = [*read.values()]
    if not any(trace):
        raise DeskError(f"{file} contains no modules", code="bad-file")
    return Trace(trace)


def replay_store(requests: Requests, budget: int) -> tuple[int, int]:
    store = Store(Arena(SHAPE, budget * MODULE_TOKENS, torch.device("cpu")), "eviction")
    names = {name: number for number, name in enumerate(dict.fromkeys(chain.from_iterable(requests)))}
    segments = {name: Segment(name=name, tokens=(number,) * MODULE_TOKENS) for name, number in names.items()}
    hits = 0
    for request in requests:
        found: list[CacheEntry] = []
        encoded: list[CacheEntry] = []
        for name in request:
            lookup = store.find(segments[name], PUBLIC_TENANT)
            if lookup.entry is not None:
                found.append(lookup.entry)
            else:
                encoded.append(store.put(segments[name], PUBLIC_TENANT, store.device.reserve(MODULE_TOKENS)))
        hits += len(found)
        store.device.count_use(found)
        for entry in (*found, *encoded):
            store.device.release(entry)
        store.check_integrity()
    store.close()
    return hits, store.device.evictions["module"]


def replay(requests: Requests, budget: int, rank: Rank, *, pins: bool = True) -> int:
    """Replay requests with a policy. Returns its hits. pins: the running request's modules are not evicted."""
    cached: set[str] = set()
    hits = index = 0
    for request in requests:
        used: set[str] = set()
        for name in request:
            if name in cached:
                hits += 1
            else:
                if len(cached) == budget:
                    cached.discard(min(cached - used if pins else cached, key=lambda one: (*rank(one, index), one)))
                cached.add(name)
            used.add(name)
            index += 1
    return hits


def ranks_of(trace: Trace) -> dict[str, Rank]:
    places: dict[str, list[float]] = defaultdict(list)
    for index, name in enumerate(chain.from_iterable(trace.requests)):
        places[name].append(index)
    for found in places.values():
        found.append(math.inf)  # it is not needed again

    def so_far(name: str, index: int) -> int:
        return bisect_right(places[name], index)

    return {
        "lru": lambda name, index: (places[name][so_far(name, index) - 1],),
        "lfu": lambda name, index: (so_far(name, index), places[name][so_far(name, index) - 1]),
        **({} if trace.chances is None else {"informed": trace.chances}),
        "optimum": lambda name, index: (-places[name][so_far(name, index)],),
    }


def markdown(result: dict[str, Any], command: str) -> str:
    columns = {
        "budget": "room for modules",
        "policy": "policy",
        "hit_rate": "hit rate",
        "of_optimum": "of the optimum",
        "spread": "least, most",
        "evictions": "evictions",
    }
    rows = [{**row, "spread": f"{row['of_optimum_least']:.1%}, {row['of_optimum_most']:.1%}"} for row in result["rows"]]
    traces = "a trace" if result["traces"] == 1 else f"{result['traces']} traces"
    return (
        f"`{command}`: {traces} of {result['requests']:,} requests for {result['modules']} modules, {result['trace']}; "
        "the accounting was checked after every request. It counts and does not depend on the machine.\n\n"
        + table(rows, columns, hit_rate=".1%", of_optimum=".1%", evictions=",.0f")
    )
