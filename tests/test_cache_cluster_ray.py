"""Engines under Ray Serve do together what one does. One cluster for all tests; the last one kills a replica."""

import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from waiting import PATIENCE_S, wait_until

from cache.decoding.constraints import Choice, Choices
from cache.decoding.sampling import Sampling
from cache.engine.request import Completion, Limits, Request
from cache.errors import CacheError, EngineStopped
from cache.prompt.parts import Text, TextModule
from cache.serving.engine_server import load_engine
from cache.serving.local_engine import LocalEngine
from cache.serving.messages import EngineSpec

ray = pytest.importorskip("ray")
grpc = pytest.importorskip("grpc")

from cache.cluster.cluster_engine import ClusterEngine  # noqa: E402
from cache.cluster.deployment import (  # noqa: E402
    APPLICATION,
    ClusterOptions,
    connect,
    start_cluster_engine,
)


def module(number: int) -> TextModule:
    return TextModule(name=str(number), pieces=(Text(text=f"Page {number}. Returns take thirty days. " * 8),))


def spec_of(folder: Path, shared: Path) -> EngineSpec:
    return EngineSpec(
        model=str(folder),
        converted=folder.parent,
        modules=shared,
        shared=str(shared),
        memory=16 << 20,
        disk=1 << 30,
        limits=Limits(running=8),
        threads=1,
        dtype=torch.float32,
    )


@pytest.fixture(scope="module")
def cluster(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterEngine]:
    spec = spec_of(tiny_folder, tmp_path_factory.mktemp("shared"))
    engine = start_cluster_engine(spec, ClusterOptions(engines=2, most=2, cpus=4, report_s=0.5))
    yield engine
    engine.close()
    with pytest.raises(EngineStopped):
        ask(engine, 1)
    engine.close()


@pytest.fixture(scope="module")
def local(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    engine = load_engine(spec_of(tiny_folder, tmp_path_factory.mktemp("local")))
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: ClusterEngine) -> Iterator[None]:
    yield
    cluster.settle()
    cluster.forget(cluster.modules("public"))


def request_of(engine: ClusterEngine | LocalEngine, number: int, sampling: Sampling, **options: object) -> Request:
    plan = engine.arrange([module(number), Text(text=f"How long, {number}?")])
    return Request(plan=plan, sampling=sampling, **options)  # type: ignore[arg-type]


def ask(engine: ClusterEngine | LocalEngine, number: int, tokens: int = 12, **options: object) -> Completion:
    return engine.submit(request_of(engine, number, Sampling(max_tokens=tokens), **options)).completion


def test_ray_answers_are_those_of_one_engine(cluster: ClusterEngine, local: LocalEngine) -> None:
    assert cluster.info == local.info
    assert cluster.is_running
    assert cluster.load() == (0, 0)
    for number in range(4):
        for reuse in ("on", "prefix", "off"):
            there, here = (ask(engine, number, reuse=reuse) for engine in (cluster, local))
            assert there.tokens == here.tokens
            assert (there.text, there.finish_reason, there.exact) == (here.text, here.finish_reason, here.exact)
            assert [use.key for use in there.modules] == [use.key for use in here.modules]
    choices = Choices(choices=(Choice(tokens=(1, 2, 3)), Choice(tokens=(4, 5))), stop=299, most=1)
    sampling = Sampling(max_tokens=choices.longest, choices=choices)
    assert cluster.submit(request_of(cluster, 1, sampling)).completion.tokens in ((1, 2, 3), (4, 5))


def test_ray_streams_and_cancels(cluster: ClusterEngine) -> None:
    generation = cluster.submit(request_of(cluster, 1, Sampling(max_tokens=3000, temperature=1.0, seed=1)))
    pieces = []
    for piece in generation:
        pieces.append(piece)
        if len(pieces) == 10:
            generation.cancel()
    assert generation.completion.finish_reason == "cancelled"
    assert "".join(pieces) == generation.completion.text
    generation = cluster.submit(request_of(cluster, 1, Sampling(max_tokens=2000, temperature=1.0, seed=1)))
    generation.cancel()  # perhaps before it has arrived anywhere
    with suppress(CacheError):
        assert generation.completion.finish_reason == "cancelled"
    with pytest.raises(CacheError, match="the prompt has token 1000000"):
        ask(cluster, 1, begun=(10**6,))


def test_ray_requests_go_where_their_modules_are(cluster: ClusterEngine) -> None:
    first = [ask(cluster, number).usage.module for number in range(6)]
    again = [ask(cluster, number).usage.module for number in range(6)]
    assert first == [0] * 6
    assert all(again)


def test_ray_modules_are_encoded_at_their_homes_and_forgotten_everywhere(cluster: ClusterEngine) -> None:
    segments = [cluster.segment(module(number)) for number in range(16)]
    assert cluster.encode(segments).result().computed == 16
    each = cluster._call_all("contents", True)
    in_memory = [{header.key for tier, header, _ in part.modules if tier == "device"} for part in each]
    assert all(len(keys) > 2 for keys in in_memory)
    assert sum(map(len, in_memory)) == 16
    assert cluster.verify(segments[0]).largest_difference == 0
    assert cluster.evict(cluster.key(segments[0]))
    cluster.bring_to_device(segments[0])
    keys = cluster.modules("public")
    assert keys == {cluster.key(segment) for segment in segments}
    cluster.settle()
    assert cluster.forget(keys) > 2
    assert cluster.modules("public") == frozenset()
    assert cluster.modules_of_prefixes() == frozenset()
    assert cluster.drop_prefixes("public")
    assert cluster.prefix_uses(5) == []


def test_ray_a_replica_loads_what_another_encoded(cluster: ClusterEngine) -> None:
    segment = cluster.segment(module(1))
    cluster.encode([segment]).result().raise_failed()
    cluster.flush()
    wait_until(lambda: all(cluster.key(segment) in keys for keys in cluster._call_all("modules", "public")))
    cluster._call_all("bring_to_device", segment)
    contents = cluster.contents()
    assert [tier for tier, _, _ in contents.modules] == ["disk", "device", "device"]
    assert contents.num_bytes["disk"] < contents.capacity["disk"] == 1 << 30


def test_ray_takes_nothing_from_others(cluster: ClusterEngine) -> None:
    listening = [
        (child.name(), connection.laddr)
        for child in psutil.Process().children(recursive=True)
        for connection in child.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    open_to_others = [(name, at) for name, at in listening if at.ip not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")]
    assert len(open_to_others) == 2 < len(listening)  # one of each replica: Serve has no setting for it
    for name, at in open_to_others:
        assert name.startswith("ray::ServeRepli")
        with grpc.insecure_channel(f"127.0.0.1:{at.port}") as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/ray.serve.ASGIService/HandleRequest")(b"", timeout=PATIENCE_S)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_ray_an_unreachable_cluster_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for address, why in ((f"127.0.0.1:{port}", "refused"), ("nowhere", "HOST:PORT"), ("127.0.0.1:x", "HOST:PORT")):
        with pytest.raises(CacheError, match=f"no Ray cluster can be reached at {address}: .*{why}") as raised:
            connect(address)
        assert "\n" not in str(raised.value)


def test_ray_answers_go_on_where_a_replica_is_killed(
    cluster: ClusterEngine, local: LocalEngine, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.keep({"b2:00"})
    actors = ray.util.list_named_actors(all_namespaces=True)
    replicas = [ray.get_actor(**named) for named in actors if APPLICATION in named["name"]]
    samplings = [Sampling(max_tokens=600, temperature=5.0, top_k=2, seed=number) for number in range(12)]
    alone = [local.submit(request_of(local, number, one)) for number, one in enumerate(samplings)]
    longest = [number for number, one in enumerate(alone) if one.completion.finish_reason == "length"]
    assert longest, "an answer that had ended before would lose nothing"
    generations = [cluster.submit(request_of(cluster, number, samplings[number])) for number in longest]
    pieces = [[next(iter(generation))] for generation in generations]
    with caplog.at_level(logging.WARNING):
        ray.kill(max(replicas, key=lambda one: ray.get(one.get_num_ongoing_requests.remote())))
        for generation, given in zip(generations, pieces, strict=True):
            given += generation
    assert "another one continues" in caplog.text
    for number, generation, given in zip(longest, generations, pieces, strict=True):
        completion = generation.completion
        assert "".join(given) == completion.text
        assert (completion.tokens, completion.finish_reason) == (alone[number].completion.tokens, "length")
    wait_until(lambda: [one.kept for one in cluster.replica_states()] == [1, 1])  # the new one has learned it
