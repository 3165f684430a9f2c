"""Routing by modules beside routing by chance: engines under Ray Serve, each with room for a part of the modules.

Clients ask one question after another about one module, drawn by Zipf. The model is small and random, as what is
counted does not depend on it: which tokens of modules were in memory, of the first requests, while most modules are
read for the first time, and of all; and how many requests each engine had. At last an engine is killed while questions
are answered.
"""

import argparse
import json
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import ray
import torch

from cache.cluster.cluster_engine import ClusterEngine
from cache.cluster.deployment import APPLICATION, DEPLOYMENT, ClusterOptions, start_cluster_engine
from cache.decoding.sampling import Sampling
from cache.engine.request import Completion, Limits, Request
from cache.prompt.plan import Plan, Segment, Span
from cache.serving.messages import EngineSpec
from evals.random_model import save_small
from evals.random_prompts import Zipf, tokens

ROUTERS = {"by modules": ClusterOptions().router, "by chance": "evals.random_router.RandomRouter"}
QUESTION_TOKENS, ANSWER_TOKENS = 16, 16
SPARE_MODULES = 8
"""Room beside that for modules: questions and answers."""
LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingLoad:
    """modules: in all; room: for so many in each engine. first: requests that count as the time of reading."""

    engines: int = 3
    modules: int = 300
    module_tokens: int = 300
    room: int = 120
    zipf: float = 0.9
    clients: int = 9
    first: int = 240
    requests: int = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRow:
    """Shares of module tokens that were in memory. longest_queue: of one engine over the mean of all, both over time.
    after_kill: answers that ended, of those that were asked for around the end of an engine.
    """

    routing: str
    first_hits: float
    all_hits: float
    longest_queue: float
    after_kill: str


def measure(load: RoutingLoad, folder: Path) -> list[RoutingRow]:
    """Both ways of routing."""
    model, shape = save_small(folder / "model")
    per_token = shape.bytes_per_token
    spec = EngineSpec(
        model=str(model),
        converted=folder,
        modules=folder / "modules",
        memory=(load.room + SPARE_MODULES) * load.module_tokens * per_token,
        threads=1,
        dtype=torch.float32,
        limits=Limits(running=load.clients, waiting=load.clients),
    )
    rows: list[RoutingRow] = []
    for name, router in ROUTERS.items():
        options = ClusterOptions(engines=load.engines, most=load.engines, router=router, cpus=load.engines + 2)
        engine = start_cluster_engine(spec, options)
        try:
            rows.append(measure_routing(name, engine, load))
        finally:
            engine.close()
    return rows


def measure_routing(name: str, engine: ClusterEngine, load: RoutingLoad) -> RoutingRow:
    """One way of routing."""
    rng = random.Random(0)
    segments = [
        Segment(name=str(number), tokens=tokens(load.module_tokens, engine.info.vocabulary, rng))
        for number in range(load.modules)
    ]
    popularity = Zipf(load.zipf, segments)
    plans = [plan_of(popularity.draw(rng), engine, rng) for _ in range(load.requests)]
    with queues_of(engine) as queues:
        answers = ask(engine, plans, load.clients)
    lengths = [mean(one[replica] for one in queues) for replica in range(load.engines)]
    killed = threading.Timer(0.0, kill_one)
    ended = ask(engine, plans[-10 * load.clients :], load.clients, killed.start)
    return RoutingRow(
        routing=name,
        first_hits=hits(answers[: load.first]),
        all_hits=hits(answers),
        longest_queue=round(max(lengths) / mean(lengths), 2),
        after_kill=f"{sum(one.finish_reason == 'length' for one in ended)} of {len(ended)}",
    )


def plan_of(segment: Segment, engine: ClusterEngine, rng: random.Random) -> Plan:
    """A question behind a module."""
    question = tokens(QUESTION_TOKENS, engine.info.vocabulary, rng)
    return Plan(
        spans=(
            Span(start=0, tokens=segment.tokens, segment=segment),
            Span(start=len(segment.tokens), tokens=question),
        )
    )


def ask(
    engine: ClusterEngine, plans: list[Plan], clients: int, meanwhile: Callable[[], None] = lambda: None
) -> list[Completion]:
    """All answers, so many at a time. meanwhile: called when the first have begun."""
    sampling = Sampling(max_tokens=ANSWER_TOKENS, temperature=1.0, seed=0)

    def answer(plan: Plan) -> Completion:
        return engine.submit(Request(plan=plan, sampling=sampling)).completion

    with ThreadPoolExecutor(clients) as threads:
        asked = [threads.submit(answer, plan) for plan in plans]
        asked[clients].result()
        meanwhile()
        return [one.result() for one in asked]


@contextmanager
def queues_of(engine: ClusterEngine) -> Iterator[list[list[int]]]:
    """Requests of each engine, looked up again and again."""
    seen: list[list[int]] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(LOOK_S):
            seen.append([one.state.running + one.state.waiting for one in engine.replica_states()])

    thread = threading.Thread(target=look)
    thread.start()
    yield seen
    is_over.set()
    thread.join()


def kill_one() -> None:
    """End an engine at once."""
    prefix = f"{APPLICATION}#{DEPLOYMENT}#"
    name = min((one for one in ray.util.list_named_actors(all_namespaces=True) if prefix in one["name"]), key=str)
    ray.kill(ray.get_actor(name["name"], namespace=name["namespace"]))


def hits(answers: list[Completion]) -> float:
    """Share of module tokens that were in memory."""
    uses = [use for one in answers for use in one.modules]
    found = sum(use.tokens for use in uses if use.source != "computed")
    return round(found / sum(use.tokens for use in uses), 3)


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in asdict(RoutingLoad()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    load = RoutingLoad(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(load, Path(folder))
    print(json.dumps({"load": asdict(load), "rows": [asdict(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
