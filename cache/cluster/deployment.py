"""Engines in a Ray cluster: connect to the cluster or start one on this machine, deploy the engines, and end them.

A local cluster listens on 127.0.0.1, requires a random token (Serve opens each replica's port on all addresses), and
ends with the thread that started it. Its sockets and logs are in a locked session folder. A killed server leaves its
folder, and for a minute two processes. One of them uses a port that the next cluster needs. So the next cluster removes
the folder and ends the processes. Out of scope: requests to engines (`cluster_engine`).
"""

import ctypes
import fcntl
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import psutil
import ray
from msgspec import Struct
from msgspec.structs import replace as replace_in
from ray import serve
from ray._private import ray_constants
from ray._private.state import actors, available_resources_per_node
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import ApplicationStatus

from cache.cluster.cluster_engine import ClusterEngine
from cache.cluster.replica import EngineReplica
from cache.errors import CacheError
from cache.serving.messages import EngineSpec, encoded

PREFIX = "warmdesk-ray-"
ENDED_S = 5.0  # seconds until a killed process must be gone


@contextmanager
def session_folder() -> Iterator[Path]:
    """Return a new folder, and remove it at the end. Its name is short because paths of sockets must be short."""
    remove_left_over()
    folder, lock = locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def locked_folder() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # no other process removed it before it was locked
            return folder, lock
        os.close(lock)


def remove_left_over() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or in use
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end_users(folder)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def end_users(folder: Path) -> None:
    """End the processes that have open files in a folder. Their command lines do not name the folder."""
    ended = list[psutil.Process]()
    for one in psutil.process_iter():
        with suppress(psutil.Error):  # another user's, or it has ended
            if any(folder in Path(file.path).parents for file in one.open_files()):
                one.kill()
                ended.append(one)
    psutil.wait_procs(ended, ENDED_S)


Needs: TypeAlias = Mapping[str, int]  # resources of an engine on one machine, by Ray's name: CPU, GPU


def check_room(engines: int, needs: Needs) -> None:
    there = ray.cluster_resources()
    for name, each in needs.items():
        if each * engines > there.get(name, 0):
            raise CacheError(
                f"{engines} engines with {each} {name} each need {each * engines}, and this machine has "
                f"{there.get(name, 0):.0f}: set cluster_engines or threads lower"
            )


def what_is_awaited(running: int, engines: int, needs: Needs, name: str) -> str:
    """Return in one line why some engines do not run yet. name: part of the names of their actors."""
    has_room = [
        one["Pid"] or one["State"] != "PENDING_CREATION" for one in actors().values() if name in str(one["Name"])
    ]
    free = _nearest(needs)
    begun = f"{running} of {engines} engines run"
    if all(has_room) or all(free.get(kind, 0) >= each for kind, each in needs.items()):
        return f"{begun}: the other engines are starting"
    wanted, there = _amounts(needs, needs), _amounts(needs, free)
    return f"{begun}: an engine needs {wanted}, and the machine with the most free resources has {there}"


def _nearest(needs: Needs) -> Mapping[str, float]:
    machines: list[Mapping[str, float]] = [*available_resources_per_node().values()]
    return max(
        machines,
        key=lambda free: sum(min(1.0, free.get(kind, 0) / each) for kind, each in needs.items() if each),
        default={},
    )


def _amounts(needs: Needs, of: Mapping[str, float]) -> str:
    return " and ".join(f"{of.get(kind, 0):g} {kind}" for kind, each in needs.items() if each)


LOCAL = "local"
CONNECT_S, END_S = 5.0, 5.0
OBJECT_STORE = 256 << 20  # bytes of a local cluster's object store: requests and answers are small and do not use it
COMMON = {"log_to_driver": False, "logging_level": logging.ERROR}


def begin_local(cpus: int | None, folder: Path) -> None:
    """Start a cluster on this machine. cpus: number, or None for all. folder: for sockets and logs."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # required by every call; not in a file
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # for all new processes: listen on 127.0.0.1
    ray_constants.ENABLE_RAY_CLUSTER = False  # the same, if Ray was imported before
    with signals_kept():
        ray.init(
            address=LOCAL,
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE,
            _temp_dir=str(folder),
            **COMMON,
        )


def end_local(folder: Path) -> None:
    begun = list[psutil.Process]()
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has ended
            if any(str(folder) in part for part in child.cmdline()):
                begun += [child, *child.children(recursive=True)]
    ray.shutdown()
    _, left = psutil.wait_procs(begun, END_S)
    for one in left:
        with suppress(psutil.Error):
            one.kill()


def connect(address: str) -> None:
    check_head(address)
    try:
        with signals_kept():
            ray.init(address=address, **COMMON)
    except Exception as error:
        raise CacheError(f"no Ray cluster can be used at {address}: {reason_in(str(error))}") from error


def check_head(address: str) -> None:
    """Raise CacheError if HOST:PORT is not a Ray head. Without this check, Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECT_S):
            pass
    except (OSError, ValueError, OverflowError) as error:
        why = "give HOST:PORT" if isinstance(error, ValueError | OverflowError) else error.strerror or str(error)
        raise CacheError(f"no Ray cluster can be reached at {address}: {why}") from error
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(CONNECT_S)
        except grpc.FutureTimeoutError as error:
            raise CacheError(
                f"no Ray cluster can be used at {address}: the program there is not the head of a cluster"
            ) from error


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restore the C handlers of SIGINT and SIGTERM at the end. Ray replaces them by handlers that abort."""
    get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    get.argtypes, get.restype = [ctypes.c_int], ctypes.c_void_p
    put.argtypes, put.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    before = {one: get(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            put(one, handler)


APPLICATION, DEPLOYMENT = "warmdesk", "engines"
BEGIN_S, LOOK_S = 600.0, 0.2  # seconds that engines may take to start, and between checks
TELL_AFTER_S, TELL_S = 15.0, 5.0
"""Seconds before the first message about waiting engines, and between checks for changes."""
HAS_FAILED = "failed to start"
"""Text in Serve's message about a replica that raised an error or was killed at its start."""
log = logging.getLogger(__name__)


class ClusterOptions(Struct, frozen=True, kw_only=True):
    """Options of a cluster. address: the head as HOST:PORT, or LOCAL. engines: their number. most: maximum number of
    engines; Serve starts more while each has more than `ongoing` requests. waiting: maximum requests that wait in this
    process; more are refused. report_s: seconds between two reports of an engine's modules. cpus: number for a local
    cluster; None: all.
    """

    address: str = LOCAL
    engines: int = 1
    most: int = 1
    ongoing: float = 8.0
    waiting: int = 64
    report_s: float = 1.0
    cpus: int | None = None


def start_cluster_engine(
    spec: EngineSpec, options: ClusterOptions, tell: Callable[[str], None] = lambda awaited: None
) -> ClusterEngine:
    """Start the engines, and return them when all run. tell: called with each new reason for waiting. `close` ends the
    engines. Raises CacheError.
    """
    # The system ends the processes of a local cluster with the thread that started them, so this thread stays.
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
    at_once = 2 * spec.limits.running  # so that the next request is already there when one ends
    spec = replace_in(spec, limits=replace(spec.limits, waiting=at_once))
    needs = {"CPU": spec.threads or 1, "GPU": 1 if spec.device.startswith("cuda") else 0}
    if options.address == LOCAL:
        check_room(options.engines, needs)
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
        max_constructor_retry_count=1,  # the first failure at the start is reported at once
        ray_actor_options={"num_cpus": needs["CPU"], "num_gpus": needs["GPU"]},
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=2,
        request_router_config=RequestRouterConfig(
            request_router_class="cache.cluster.replica.AffinityRouter",
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
        raise CacheError(f"the engines could not be started in the cluster: {reason_in(str(error))}") from error
    return handle


def wait_until_running(engines: int, needs: Needs, tell: Callable[[str], None]) -> None:
    """Wait until all engines run. tell: called with each new reason for waiting, and with "" at the end. Raises
    CacheError as soon as one failed to start.
    """
    begun = time.monotonic()
    tell_at, told = begun + TELL_AFTER_S, ""
    while (state := serve.status().applications[APPLICATION]).status != ApplicationStatus.RUNNING:
        messages = [one.message for one in state.deployments.values() if one.message] or [state.message]
        message = " ".join(messages)
        if state.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY) or HAS_FAILED in message:
            raise CacheError(f"an engine of the cluster could not start: {reason_in(message)}")
        if (now := time.monotonic()) > tell_at:
            tell_at, before = now + TELL_S, told
            running = sum(one.replica_states.get("RUNNING", 0) for one in state.deployments.values())
            told = what_is_awaited(running, engines, needs, f"{APPLICATION}#{DEPLOYMENT}#")
            if told != before:
                log.warning("waiting for the engines of the cluster: %s", told)
                tell(told)
        if now > begun + BEGIN_S:
            raise CacheError(f"the engines of the cluster have not started within {BEGIN_S:.0f} s: {told}")
        time.sleep(LOOK_S)
    tell("")


def delete() -> None:
    with suppress(Exception):
        serve.delete(APPLICATION)


def reason_in(message: str) -> str:
    """Return a message of Ray in one line: the error at the end of a traceback, or else the message."""
    errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Stopped): (.+)$", message, re.MULTILINE)
    return " ".join((errors[-1] if errors else message).split())
