"""Engines in a Ray cluster: deploying them there, waiting until they run, and ending them.

Not covered: connecting to the cluster, or beginning one (`connecting`); what engines are asked (`cluster_engine`).
"""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from typing import Any

import ray
from msgspec import Struct
from msgspec.structs import replace as replace_in
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import ApplicationStatus

from cache.cluster.cluster_engine import ClusterEngine
from cache.cluster.connecting import LOCAL, begin_local, connect, end_local
from cache.cluster.reasons import reason_in
from cache.cluster.replica import EngineReplica
from cache.cluster.session_folder import session_folder
from cache.errors import CacheError
from cache.routing.affinity import Weights
from cache.serving.messages import encoded
from cache.serving.spec import EngineSpec

APPLICATION, DEPLOYMENT = "warmdesk", "engines"
BEGIN_S, LOOK_S = 600.0, 0.2
"""How long engines may take to begin, and how often to look."""
HAS_FAILED = "failed to start"
"""In what Serve says of a deployment whose replica has raised an error, or was killed, when it began."""
log = logging.getLogger(__name__)


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
    opened = ExitStack()

    def begin() -> None:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        if options.address == LOCAL:
            folder = opened.enter_context(session_folder())
            opened.callback(end_local, folder)
            begin_local(options.cpus, folder)
        else:
            opened.callback(ray.shutdown)
            connect(options.address)
            opened.callback(delete)

    def end() -> None:
        thread.submit(opened.close).result()
        thread.shutdown()

    try:
        thread.submit(begin).result()
        return ClusterEngine(deploy(spec, options), spec, end)
    except BaseException:
        end()
        raise


def deploy(spec: EngineSpec, options: ClusterOptions) -> Any:
    """A handle to the engines, once all are running. Raises CacheError."""
    at_once = 2 * spec.limits.running  # as many again are there when one has ended
    spec = replace_in(spec, limits=replace(spec.limits, waiting=at_once))
    needs = {"num_cpus": spec.threads or 1, "num_gpus": 1 if spec.device.startswith("cuda") else 0}
    if options.address == LOCAL:
        check_room(options.engines, needs)
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
        max_constructor_retry_count=1,  # what fails once when engines begin is told at once
        ray_actor_options=needs,
        health_check_period_s=2,
        health_check_timeout_s=10,
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
        target = serve.RunTarget(target=engines.bind(encoded(spec)), name=APPLICATION, route_prefix=None)
        (handle,) = serve.run_many([target], wait_for_applications_running=False)
        wait_until_running()
    except CacheError:
        raise
    except Exception as error:
        raise CacheError(f"the engines could not be begun in the cluster: {reason_in(str(error))}") from error
    return handle


def check_room(engines: int, needs: dict[str, int]) -> None:
    """Whether the cluster has room for so many engines. Raises CacheError."""
    there = ray.cluster_resources()
    for name, each in (("CPU", needs["num_cpus"]), ("GPU", needs["num_gpus"])):
        if each * engines > there.get(name, 0):
            raise CacheError(
                f"{engines} engines with {each} {name} each need {each * engines}, and this machine has "
                f"{there.get(name, 0):.0f}: set cluster_engines or threads lower"
            )


def wait_until_running() -> None:
    """Until all engines run. Raises CacheError as soon as one could not begin."""
    end, said = time.monotonic() + BEGIN_S, ""
    while (state := serve.status().applications[APPLICATION]).status != ApplicationStatus.RUNNING:
        messages = [one.message for one in state.deployments.values() if one.message] or [state.message]
        message = " ".join(messages)
        if state.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY) or HAS_FAILED in message:
            raise CacheError(f"an engine of the cluster could not begin: {reason_in(message)}")
        if time.monotonic() > end:
            raise CacheError(f"the engines of the cluster have not begun within {BEGIN_S:.0f} s: {reason_in(message)}")
        if message != said:
            log.warning("waiting for the engines of the cluster: %s", reason_in(message))
            said = message
        time.sleep(LOOK_S)


def delete() -> None:
    """End the engines."""
    with suppress(Exception):
        serve.delete(APPLICATION)
