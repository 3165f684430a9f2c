"""Engines on two nodes of a Ray cluster, both on this machine; one node goes while answers are written."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cache.decoding.sampling import Sampling
from cache.engine.request import Limits, Request
from cache.prompt.parts import Text, TextModule
from cache.serving.engine_server import load_engine
from cache.serving.messages import EngineSpec

ray = pytest.importorskip("ray")

from ray._common.utils import get_default_ray_temp_dir  # noqa: E402
from ray._private.state import actors  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from cache.cluster.deployment import (  # noqa: E402
    APPLICATION,
    ClusterOptions,
    session_folder,
    start_cluster_engine,
)

SEEDS = (3, 5)
"""Of answers that are as long as they may be."""
SMALL = {"object_store_memory": 80 << 20}


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    """A head without room for engines."""
    # `Cluster` writes an address there, wherever its session is; on a fresh machine nobody has made the folder.
    Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)
    with session_folder() as folder:
        head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": str(folder), **SMALL}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        yield cluster
        cluster.shutdown()


def busy_node() -> str:
    """Where most is asked of an engine."""
    named = ray.util.list_named_actors(all_namespaces=True)
    replicas = [ray.get_actor(**one) for one in named if APPLICATION in one["name"]]
    busy = max(replicas, key=lambda one: ray.get(one.get_num_ongoing_requests.remote()))
    node: str = actors(busy._actor_id.hex())["Address"]["NodeID"]
    return node


def test_answers_go_on_where_a_node_goes(
    nodes: Cluster, tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = {one.node_id: one for one in (nodes.add_node(num_cpus=1, **SMALL) for _ in range(2))}
    spec = EngineSpec(
        model=str(tiny_folder),
        converted=tiny_folder.parent,
        modules=tmp_path / "modules",
        shared=str(tmp_path / "modules"),
        memory=16 << 20,
        disk=1 << 30,
        limits=Limits(running=8),
        threads=1,
        dtype=torch.float32,
    )
    engine = start_cluster_engine(spec, ClusterOptions(address=nodes.address, engines=2, most=2))
    try:
        module = TextModule(name="1", pieces=(Text(text="Returns take thirty days."),))
        requests = [
            Request(
                plan=engine.arrange([module, Text(text=f"Why, {seed}?")]),
                sampling=Sampling(max_tokens=600, temperature=5.0, top_k=2, seed=seed),
            )
            for seed in SEEDS
        ]
        alone = load_engine(spec)
        whole = [alone.submit(one).completion for one in requests]
        alone.close()
        assert {one.finish_reason for one in whole} == {"length"}, "one that had ended before would lose nothing"
        generations = [engine.submit(one) for one in requests]
        given = [[next(iter(one))] for one in generations]
        with caplog.at_level(logging.WARNING):
            nodes.remove_node(both[busy_node()], allow_graceful=False)
            for pieces, generation in zip(given, generations, strict=True):
                pieces += generation
        assert "another one continues" in caplog.text
        for pieces, generation, expected in zip(given, generations, whole, strict=True):
            assert "".join(pieces) == expected.text
            assert generation.completion.tokens == expected.tokens
    finally:
        engine.close()
