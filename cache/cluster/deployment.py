"""Engines in a Ray cluster: connecting to it or beginning one on this machine, and deploying the engines there.

A cluster on this machine listens on 127.0.0.1, takes nothing without a token that is drawn here (Serve opens a port of
each replica on all addresses), and ends with this process. Nothing is reported to anybody. Not covered: what is asked
of the engines (`cluster_engine`).
"""

import ctypes
import logging
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

from msgspec import Struct
from msgspec.structs import replace as replace_in

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # before Ray is imported
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it says when processes are begun

import ray
from ray import serve
from ray._private import ray_constants
from ray.serve.config import RequestRouterConfig

from cache.cluster.cluster_engine import ClusterEngine, first_line
from cache.cluster.replica import EngineReplica
from cache.errors import CacheError
from cache.routing.affinity import Weights
from cache.serving.messages import encoded
from cache.serving.spec import EngineSpec

LOCAL = "local"
APPLICATION, DEPLOYMENT = "warmdesk", "engines"
CONNECT_S = 5.0
OBJECT_STORE = 256 << 20
"""Bytes of a cluster on this machine: requests and answers are small and do not go through it."""


class ClusterOptions(Struct, frozen=True, kw_only=True):
    """address: of the cluster's head as HOST:PORT, or LOCAL. engines: how many; most: up to which number Serve begins
    more while each has more than `ongoing` requests. waiting: that wait in the desk; one more is refused. report_s:
    seconds between two reports of what an engine holds. cpus: of a local cluster; None: all of the machine. router: of
    Serve; None: its own, which looks at queues alone. weights: of ours.
    """

    address: str = LOCAL
    engines: int = 1
    most: int = 1
    ongoing: float = 8.0
    waiting: int = 64
    report_s: float = 1.0
    cpus: int | None = None
    weights: Weights = Weights()
    router: str | None = "cache.cluster.router.AffinityRouter"


def start_cluster_engine(spec: EngineSpec, options: ClusterOptions) -> ClusterEngine:
    """The engines, all of them running. Closing it ends them. Raises CacheError."""
    # The system ends the processes of a local cluster together with the thread that has begun them: one that stays.
    thread = ThreadPoolExecutor(1, "ray")

    def end_all() -> None:
        thread.submit(end, options).result()
        thread.shutdown()

    try:
        thread.submit(connect, options).result()
        return ClusterEngine(deploy(spec, options), spec, end_all)
    except BaseException:
        end_all()
        raise


def connect(options: ClusterOptions) -> None:
    """Begin a cluster, or connect to one. Raises CacheError."""
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    common = {"log_to_driver": False, "logging_level": logging.ERROR}
    if options.address == LOCAL:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # without it nothing is taken; in no file
        os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # of all that is begun: it listens on 127.0.0.1
        ray_constants.ENABLE_RAY_CLUSTER = False  # the same, where Ray was imported before
        with signals_kept():
            ray.init(
                address=LOCAL,
                num_cpus=options.cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE,
                **common,
            )
        return
    host, _, port = options.address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECT_S):
            pass
    except (OSError, ValueError, OverflowError) as error:
        why = "give HOST:PORT" if isinstance(error, ValueError | OverflowError) else error.strerror or str(error)
        raise CacheError(f"no Ray cluster can be reached at {options.address}: {why}") from error
    try:
        with signals_kept():
            ray.init(address=options.address, **common)
    except Exception as error:
        raise CacheError(f"no Ray cluster can be used at {options.address}: {first_line(error)}") from error


@contextmanager
def signals_kept() -> Iterator[None]:
    """What SIGINT and SIGTERM do is as before: Ray replaces it beneath Python's handlers, and they end in an abort."""
    get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    get.argtypes, get.restype = [ctypes.c_int], ctypes.c_void_p
    put.argtypes, put.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    before = {one: get(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            put(one, handler)


def deploy(spec: EngineSpec, options: ClusterOptions) -> Any:
    """A handle to the engines, once all are running. Raises CacheError."""
    at_once = 2 * spec.limits.running  # as many again are there when one has ended
    spec = replace_in(spec, limits=replace(spec.limits, waiting=at_once))
    router = {} if options.router is None else {"request_router_class": options.router}
    size: dict[str, Any] = {"num_replicas": options.engines}
    if options.most > options.engines:
        scaling = {
            "min_replicas": options.engines,
            "max_replicas": options.most,
            "target_ongoing_requests": options.ongoing,
        }
        size = {"autoscaling_config": scaling}
    engines = serve.deployment(
        EngineReplica,
        name=DEPLOYMENT,
        max_ongoing_requests=at_once,
        max_queued_requests=options.waiting,
        ray_actor_options={"num_cpus": spec.threads or 1, "num_gpus": 1 if spec.device.startswith("cuda") else 0},
        health_check_period_s=2,
        graceful_shutdown_timeout_s=2,
        request_router_config=RequestRouterConfig(
            **router,
            request_router_kwargs=asdict(options.weights) if router else {},
            request_routing_stats_period_s=options.report_s,
        ),
        **size,
    )
    try:
        serve.start(proxy_location="Disabled")
        return serve.run(engines.bind(encoded(spec)), name=APPLICATION, route_prefix=None)
    except Exception as error:
        raise CacheError(f"the engines could not be begun in the cluster: {error}") from error


def end(options: ClusterOptions) -> None:
    """End the engines, and a cluster that was begun here."""
    if options.address != LOCAL and ray.is_initialized():
        with suppress(Exception):
            serve.delete(APPLICATION)
    ray.shutdown()
