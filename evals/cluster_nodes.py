"""Engines on two nodes of a Ray cluster with shared module files: what happens to answers when a node goes.

All nodes are on this machine. Answers are asked for twice; the second time the node of one engine is removed while they
are written, and each must end with the same tokens. Then another node comes, its engine reads the shared files, and all
are asked a third time.
"""

import json
import logging
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import ray
import torch
from ray.cluster_utils import Cluster

from cache.cluster.cluster_engine import ClusterEngine
from cache.cluster.deployment import APPLICATION, ClusterOptions, start_cluster_engine
from cache.decoding.sampling import Sampling
from cache.engine.request import Completion, Limits, Request
from cache.prompt.plan import Plan, Segment
from cache.serving.messages import EngineSpec
from evals.cluster_routing import plan_of
from evals.random_model import save_small
from evals.random_prompts import tokens

QUESTIONS, MODULE_TOKENS, ANSWER_TOKENS = 24, 300, 200
LOOK_S, PATIENCE_S = 0.5, 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesRow:
    """nodes: engines on each at first. ended: answers of those that were being written when a node went; same: with the
    same tokens as before. lost: how many went on at another engine. anew_s: until there were two engines again.
    sources: where modules came from, asked for a third time.
    """

    nodes: list[int]
    ended: str
    same: int
    lost: int
    anew_s: float
    sources: dict[str, int]


def measure(folder: Path) -> NodesRow:
    """Two nodes, one goes, another one comes."""
    model, shape = save_small(folder / "model")
    spec = EngineSpec(
        model=str(model),
        converted=folder,
        modules=folder / "modules",
        shared=str(folder / "modules"),
        memory=2 * QUESTIONS * MODULE_TOKENS * shape.bytes_per_token,
        disk=1 << 30,
        threads=1,
        dtype=torch.float32,
        limits=Limits(running=QUESTIONS, waiting=QUESTIONS),
    )
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    engine = start_cluster_engine(spec, ClusterOptions(address=cluster.address, engines=2, most=2))
    try:
        rng = random.Random(0)
        plans = [
            plan_of(Segment(name=str(n), tokens=tokens(MODULE_TOKENS, engine.info.vocabulary, rng)), engine, rng)
            for n in range(QUESTIONS)
        ]
        places = engines_by_node()
        first = ask(engine, plans)
        engine.flush()
        gone = next(node for node in nodes if node.node_id in places)
        with counted("cache.cluster.cluster_engine") as losses:
            second = ask(engine, plans, lambda: cluster.remove_node(gone, allow_graceful=False))
        began = time.monotonic()
        cluster.add_node(num_cpus=1)
        wait_for(lambda: len(engine.replica_states()) == 2)
        anew_s = time.monotonic() - began
        third = ask(engine, plans)
        return NodesRow(
            nodes=[*places.values()],
            ended=f"{sum(one.finish_reason in ('length', 'stop') for one in second)} of {len(second)}",
            same=sum(one.tokens == other.tokens for one, other in zip(first, second, strict=True)),
            lost=losses.number,
            anew_s=round(anew_s, 1),
            sources=dict(Counter(use.source for one in third for use in one.modules)),
        )
    finally:
        engine.close()
        cluster.shutdown()


def ask(engine: ClusterEngine, plans: list[Plan], meanwhile: Callable[[], object] = lambda: None) -> list[Completion]:
    """All answers at once. meanwhile: called when each of them has begun."""
    generations = [
        engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=ANSWER_TOKENS, temperature=1.0, seed=number)))
        for number, plan in enumerate(plans)
    ]
    have_begun = threading.Barrier(len(plans) + 1)

    def read(number: int) -> Completion:
        pieces = iter(generations[number])
        next(pieces, None)
        have_begun.wait()
        for _ in pieces:
            pass
        return generations[number].completion

    with ThreadPoolExecutor(len(plans)) as threads:
        asked = [threads.submit(read, number) for number in range(len(plans))]
        have_begun.wait()
        meanwhile()
        return [one.result() for one in asked]


def engines_by_node() -> Counter[str]:
    """How many engines are on each node, by its id."""
    actors = ray._private.state.actors().values()
    return Counter(
        one["Address"]["NodeID"] for one in actors if one["State"] == "ALIVE" and APPLICATION in str(one["Name"])
    )


class counted(logging.Handler):
    """How much a logger says meanwhile."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.WARNING)
        self.number, self._logger = 0, logging.getLogger(name)

    def emit(self, record: logging.LogRecord) -> None:
        """Called for each line."""
        self.number += 1

    def __enter__(self) -> "counted":
        self._logger.addHandler(self)
        return self

    def __exit__(self, *given: object) -> None:
        self._logger.removeHandler(self)


def wait_for(holds: Callable[[], bool]) -> None:
    """Raises TimeoutError."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(LOOK_S)


def main() -> None:
    """Print the result as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asdict(measure(Path(folder))), indent=2))


if __name__ == "__main__":
    main()
