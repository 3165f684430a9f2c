"""Connecting to a Ray cluster, or beginning one on this machine.

A cluster on this machine listens on 127.0.0.1, takes nothing without a token that is drawn here (Serve opens a port of
each replica on all addresses), and ends with the thread that began it. Nothing is reported to anybody. Not covered:
what runs in the cluster (`deployment`).
"""

import ctypes
import logging
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import psutil
import ray
from ray._private import ray_constants

from cache.cluster.reasons import reason_in
from cache.errors import CacheError

LOCAL = "local"
CONNECT_S, END_S = 5.0, 5.0
OBJECT_STORE = 256 << 20
"""Bytes of a cluster on this machine: requests and answers are small and do not go through it."""
COMMON = {"log_to_driver": False, "logging_level": logging.ERROR}


def begin_local(cpus: int | None, folder: Path) -> None:
    """Begin a cluster of this machine. cpus: None: all there are. folder: for its sockets and logs."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # without it nothing is taken; in no file
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # of all that is begun: it listens on 127.0.0.1
    ray_constants.ENABLE_RAY_CLUSTER = False  # the same, where Ray was imported before
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
    """End the cluster of this machine with this folder, and wait until its processes have ended."""
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
    """Connect to the cluster whose head is at HOST:PORT. Raises CacheError."""
    check_head(address)
    try:
        with signals_kept():
            ray.init(address=address, **COMMON)
    except Exception as error:
        raise CacheError(f"no Ray cluster can be used at {address}: {reason_in(str(error))}") from error


def check_head(address: str) -> None:
    """Whether what Ray speaks is spoken at HOST:PORT: it would try for minutes. Raises CacheError."""
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
            raise CacheError(f"no Ray cluster can be used at {address}: what answers there is not its head") from error


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
