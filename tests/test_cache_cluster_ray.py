"""Engines under Ray Serve do together what one does, and go on where a node is lost. One local cluster for all tests,
with a second node on this machine: the last but one kills that node, the last one closes the cluster.
"""

import logging
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_processes import spec_of
from waiting import PATIENCE_S, has_ended, wait_until

from cache.decoding.sampling import Sampling
from cache.engine.request import Completion, Request
from cache.errors import CacheError, EngineStopped
from cache.prompt.parts import Text, TextModule
from cache.serving.engine_server import load_engine
from cache.serving.local_engine import LocalEngine

ray = pytest.importorskip("ray")
grpc = pytest.importorskip("grpc")

from ray._private.node import Node  # noqa: E402
from ray._private.parameter import RayParams  # noqa: E402

from cache.cluster import deployment  # noqa: E402
from cache.cluster.cluster_engine import ClusterEngine  # noqa: E402
from cache.cluster.deployment import PREFIX, ClusterOptions, connect, start_cluster_engine  # noqa: E402


def module(number: int) -> TextModule:
    return TextModule(name=str(number), pieces=(Text(text=f"Page {number}. Returns take thirty days. " * 8),))


def second_node() -> Node:
    """Another node of the cluster that this process has begun, also on this machine."""
    head = ray._private.worker.global_worker.node
    parameters = RayParams(
        gcs_address=head.gcs_address,
        redis_address=head.redis_address,
        num_cpus=1,
        num_gpus=0,
        object_store_memory=80 << 20,
        min_worker_port=0,
        max_worker_port=0,
        node_manager_port=0,
        dashboard_agent_listen_port=None,
        include_log_monitor=False,
    )
    node = Node(parameters, head=False, shutdown_at_exit=False)  # else it takes the signals
    wait_until(lambda: ray.cluster_resources().get("CPU") == 2)
    return node


@pytest.fixture(scope="module")
def nodes():
    return []


@pytest.fixture(scope="module")
def cluster(nodes, tiny_folder, tmp_path_factory):
    """Two engines, each on its node. The thread that begins them has ended."""
    folder = tmp_path_factory.mktemp("shared")
    spec = spec_of(tiny_folder, folder, shared=str(folder))
    deploy, signalled = deployment.deploy, list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: signalled.append(number))
    with ThreadPoolExecutor(1) as stays, ThreadPoolExecutor(1) as thread, pytest.MonkeyPatch.context() as patched:

        def deploy_on_both(*given: Any) -> Any:
            nodes.append(stays.submit(second_node).result())
            return deploy(*given)

        patched.setenv("RAY_worker_niceness", "0")  # else the other tests' processes go before
        patched.setattr(deployment, "deploy", deploy_on_both)
        options = ClusterOptions(engines=2, most=2, cpus=1, report_s=0.5)
        engine = thread.submit(start_cluster_engine, spec, options).result()
        thread.shutdown()
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: bool(signalled))  # if Ray has a handler of its own, it aborts
        signal.signal(signal.SIGTERM, before)
        yield engine
        engine.close()
        nodes[0].kill_all_processes(check_alive=False, allow_graceful=False)


@pytest.fixture(scope="module")
def local(tiny_folder, tmp_path_factory):
    engine = load_engine(spec_of(tiny_folder, tmp_path_factory.mktemp("local")))
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def nothing_is_left(cluster):
    yield
    with suppress(EngineStopped):  # the last test has closed it
        cluster.settle()
        cluster.forget(cluster.modules("public"))


def request_of(engine: ClusterEngine | LocalEngine, number: int, sampling: Sampling, **options: object) -> Request:
    plan = engine.arrange([module(number), Text(text=f"How long, {number}?")])
    return Request(plan=plan, sampling=sampling, **options)  # type: ignore[arg-type]


def ask(engine: ClusterEngine | LocalEngine, number: int, tokens: int = 12, **options: object) -> Completion:
    return engine.submit(request_of(engine, number, Sampling(max_tokens=tokens), **options)).completion


def test_ray_answers_are_those_of_one_engine(cluster, local):
    assert cluster.info == local.info
    assert cluster.is_running
    assert cluster.load() == (0, 0)
    for number in range(4):
        for reuse in ("on", "prefix", "off"):
            there, here = (ask(engine, number, reuse=reuse) for engine in (cluster, local))
            assert there.tokens == here.tokens
            assert (there.text, there.finish_reason, there.exact) == (here.text, here.finish_reason, here.exact)
            assert [use.key for use in there.modules] == [use.key for use in here.modules]
    sampling = Sampling(max_tokens=9, given=(1, 2, 3, 299))
    assert cluster.submit(request_of(cluster, 1, sampling)).completion.tokens == (1, 2, 3)


def test_ray_streams_and_cancels(cluster):
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
    with pytest.raises(CacheError, match="the prompt contains token 1000000"):
        ask(cluster, 1, begun=(10**6,))


def test_ray_requests_go_where_their_modules_are(cluster):
    first = [ask(cluster, number).usage.module for number in range(6)]
    again = [ask(cluster, number).usage.module for number in range(6)]
    assert first == [0] * 6
    assert all(again)


def test_ray_modules_are_encoded_at_their_homes_and_forgotten_everywhere(cluster):
    segments = [cluster.segment(module(number)) for number in range(16)]
    assert cluster.encode(segments).result().computed == 16
    each = cluster._call_all("contents", True).parts
    in_memory = [{header.key for tier, header, _ in part.modules if tier == "device"} for part in each]
    assert all(len(keys) > 2 for keys in in_memory)
    assert sum(map(len, in_memory)) == 16
    assert cluster.verify(segments[0]).largest_difference == pytest.approx(0, abs=1e-5)
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


def test_ray_a_replica_loads_what_another_encoded(cluster):
    segment = cluster.segment(module(1))
    cluster.encode([segment]).result().raise_failed()
    cluster.flush()
    wait_until(lambda: all(cluster.key(segment) in keys for keys in cluster._call_all("modules", "public").parts))
    cluster._call_all("bring_to_device", segment)
    contents = cluster.contents()
    assert [tier for tier, _, _ in contents.modules] == ["disk", "device", "device"]
    assert contents.num_bytes["disk"] < contents.capacity["disk"] == 1 << 30


def test_ray_takes_nothing_from_others(cluster):
    listening = [
        (child.name(), connection.laddr)
        for child in children()
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


def test_ray_an_unreachable_cluster_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for address, why in ((f"127.0.0.1:{port}", "refused"), ("nowhere", "HOST:PORT"), ("127.0.0.1:x", "HOST:PORT")):
        with pytest.raises(CacheError, match=f"no Ray cluster can be reached at {address}: .*{why}") as raised:
            connect(address)
        assert "\n" not in str(raised.value)


def test_ray_answers_go_on_where_a_node_goes(cluster, local, nodes, caplog):
    samplings = [Sampling(max_tokens=300, temperature=5.0, top_k=2, seed=number) for number in range(6)]
    alone = [local.submit(request_of(local, number, one)) for number, one in enumerate(samplings)]
    longest = [number for number, one in enumerate(alone) if one.completion.finish_reason == "length"]
    assert longest, "an answer that had ended before would lose nothing"
    generations = [cluster.submit(request_of(cluster, number, samplings[number])) for number in longest]
    pieces = [[next(iter(generation))] for generation in generations]
    with caplog.at_level(logging.WARNING):
        nodes[0].kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        for generation, given in zip(generations, pieces, strict=True):
            given += generation
    assert "another one continues" in caplog.text
    for number, generation, given in zip(longest, generations, pieces, strict=True):
        completion = generation.completion
        assert "".join(given) == completion.text
        assert (completion.tokens, completion.finish_reason) == (alone[number].completion.tokens, "length")


def test_ray_closing_leaves_nothing_of_it(cluster):
    folder = Path(ray._private.worker.global_worker.node.get_temp_dir_path())
    begun = children()
    assert folder.is_dir()
    assert folder.name.startswith(PREFIX)
    assert {"gcs_server", "raylet"} <= {one.name() for one in begun}
    cluster.close()
    wait_until(lambda: all(has_ended(one.pid) for one in begun))
    assert not folder.exists()
    with pytest.raises(EngineStopped):
        ask(cluster, 1)


def children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if "ray" in " ".join(one.cmdline())]
