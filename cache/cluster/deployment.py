"""Engines in a Ray cluster: deploying them there, waiting until they run, and ending them.

Not covered: connecting to the cluster, or beginning one (`connecting`); what engines are asked (`cluster_engine`).
"""

import logging
import time
from collections.abc import Callable
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
from cache.cluster.room import Needs, check_room, what_is_awaited
from cache.cluster.session_folder import session_folder
from cache.errors import CacheError
from cache.routing.affinity import Weights
from cache.serving.messages import encoded
from cache.serving.spec import EngineSpec

APPLICATION, DEPLOYMENT = "warmdesk", "engines"
BEGIN_S, LOOK_S = 600.0, 0.2
"""How long engines may take to begin, and how often to look."""
TELL_AFTER_S, TELL_S = 15.0, 5.0
"""When to tell what they wait for, and how often to look whether it has changed."""
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


def start_cluster_engine(
    spec: EngineSpec, options: ClusterOptions, tell: Callable[[str], None] = lambda awaited: None
) -> ClusterEngine:
    """The engines, all of them running. tell: called with what is waited for meanwhile, when it changes. Closing it
    ends them. Raises CacheError.
    """
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
        return ClusterEngine(deploy(spec, options, tell), spec, end)
    except BaseException:
        end()
        raise


def deploy(spec: EngineSpec, options: ClusterOptions, tell: Callable[[str], None]) -> Any:
    """A handle to the engines, once all are running. Raises CacheError."""
    at_once = 2 * spec.limits.running  # as many again are there when one has ended
    spec = replace_in(spec, limits=replace(spec.limits, waiting=at_once))
    needs = {"CPU": spec.threads or 1, "GPU": 1 if spec.device.startswith("cuda") else 0}
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
        ray_actor_options={"num_cpus": needs["CPU"], "num_gpus": needs["GPU"]},
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
        wait_until_running(options.engines, needs, tell)
    except CacheError:
        raise
    except Exception as error:
        raise CacheError(f"the engines could not be begun in the cluster: {reason_in(str(error))}") from error
    return handle


def wait_until_running(engines: int, needs: Needs, tell: Callable[[str], None]) -> None:
    """Until all engines run. tell: called with what is waited for when that changes, with "" at the end. Raises
    CacheError as soon as one could not begin.
    """
    begun = time.monotonic()
    tell_at, told = begun + TELL_AFTER_S, ""
    while (state := serve.status().applications[APPLICATION]).status != ApplicationStatus.RUNNING:
        messages = [one.message for one in state.deployments.values() if one.message] or [state.message]
        message = " ".join(messages)
        if state.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY) or HAS_FAILED in message:
            raise CacheError(f"an engine of the cluster could not begin: {reason_in(message)}")
        if (now := time.monotonic()) > tell_at:
            tell_at, before = now + TELL_S, told
            running = sum(one.replica_states.get("RUNNING", 0) for one in state.deployments.values())
            told = what_is_awaited(running, engines, needs, f"{APPLICATION}#{DEPLOYMENT}#")
            if told != before:
                log.warning("waiting for the engines of the cluster: %s", told)
                tell(told)
        if now > begun + BEGIN_S:
            raise CacheError(f"the engines of the cluster have not begun within {BEGIN_S:.0f} s: {told}")
        time.sleep(LOOK_S)
    tell("")


def delete() -> None:
    """End the engines."""
    with suppress(Exception):
        serve.delete(APPLICATION)
