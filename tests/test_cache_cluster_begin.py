"""Clusters that cannot be used, and engines that cannot begin in one, are one line each: without a cluster."""

import os
import socket
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from desks import small_settings
from waiting import PATIENCE_S

import cache
from app.desk.parts import engine_spec, start_cluster
from app.domain.errors import DeskError
from cache.errors import CacheError

ray = pytest.importorskip("ray")

from cache.cluster import deployment  # noqa: E402
from cache.cluster.deployment import (  # noqa: E402
    PREFIX,
    check_room,
    session_folder,
    wait_until_running,
    what_is_awaited,
)

FAILED = """The deployment failed to start 1 times in a row. This may be due to a problem with its constructor. Error:
ray::ServeReplica:warmdesk:engines.initialize_and_get_metadata() (pid=1, ip=127.0.0.1, actor_id=2)
RuntimeError: Traceback (most recent call last):
  File "cache/cluster/replica.py", line 80, in __init__
cache.errors.ModelError: there is no model in /models/none
"""


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    settings = small_settings(tmp_path, cluster="local")
    monkeypatch.setattr(cache, "cluster", cache.cluster)
    for name in [name for name in sys.modules if name.startswith("cache.cluster")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeskError, match=r"^a cluster of engines needs Ray: run pip install '\.\[cluster\]' in "):
        start_cluster(settings, engine_spec(settings), lambda awaited: None)


def test_what_ray_says_in_several_lines_is_one(monkeypatch):
    def init(**options: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1\n")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(deployment, "check_head", lambda address: None)
    with pytest.raises(CacheError) as raised:
        deployment.connect("10.0.0.5:6379")
    assert str(raised.value) == (
        "no Ray cluster can be used at 10.0.0.5:6379: "
        "Version mismatch: The cluster was started with: Ray: 2.9.0 Python: 3.10.1"
    )


def test_what_is_no_head_of_a_cluster_is_found_out_at_once(monkeypatch):
    def init(**options: object) -> None:
        raise RuntimeError("Ray tries for minutes")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(deployment, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(CacheError, match=f"no Ray cluster can be used at {address}: the program there is not"):
            deployment.connect(address)


def test_more_engines_than_there_is_room_for_are_refused(monkeypatch):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    check_room(2, {"CPU": 2, "GPU": 0})
    with pytest.raises(CacheError, match="3 engines with 2 CPU each need 6, and this machine has 4: set"):
        check_room(3, {"CPU": 2, "GPU": 0})
    with pytest.raises(CacheError, match="1 engines with 1 GPU each need 1, and this machine has 0: set"):
        check_room(1, {"CPU": 1, "GPU": 1})


Said = tuple[str, str, list[str]]  # state of the application, message of the deployment, states of its replicas


def statuses(monkeypatch: pytest.MonkeyPatch, *said: Said) -> None:
    """What Serve says one after another; the last of it again and again."""
    waiting = [
        SimpleNamespace(
            status=status,
            message="",
            deployments={"engines": SimpleNamespace(message=message, replica_states=Counter(replicas))},
        )
        for status, message, replicas in reversed(said)
    ]
    last = waiting[0]
    serve: Any = SimpleNamespace(
        status=lambda: SimpleNamespace(applications={"warmdesk": waiting.pop() if waiting else last})
    )
    monkeypatch.setattr(deployment, "serve", serve)
    monkeypatch.setattr(deployment, "BEGIN_S", PATIENCE_S)
    monkeypatch.setattr(deployment, "LOOK_S", 0.0)
    monkeypatch.setattr(deployment, "TELL_AFTER_S", -1.0)
    monkeypatch.setattr(deployment, "TELL_S", -1.0)


def machines(
    monkeypatch: pytest.MonkeyPatch, *free: dict[str, float], actor: str = "PENDING_CREATION", pid: int = 0
) -> None:
    """What is free on each, and the state of an engine that does not run yet."""
    named = {"Name": "SERVE_REPLICA::warmdesk#engines#1", "State": actor, "Pid": pid}
    other = {"Name": "SERVE_REPLICA::theirs#engines#1", "State": "PENDING_CREATION", "Pid": 0}
    monkeypatch.setattr(
        deployment, "actors", lambda: {"1": named, "2": other, "3": {"Name": None, "State": "ALIVE", "Pid": 1}}
    )
    monkeypatch.setattr(deployment, "available_resources_per_node", lambda: dict(enumerate(free)))


def test_engines_that_wait_for_room_are_waited_for_and_it_is_said_why(monkeypatch, caplog):
    none, one, told = ["STARTING", "STARTING"], ["RUNNING", "STARTING"], list[str]()
    machines(monkeypatch, {"CPU": 1.0}, {"memory": 1.0})
    waits = [("DEPLOYING", "", none)] * 3 + [("DEPLOYING", "", one)] * 2
    statuses(monkeypatch, *waits, ("RUNNING", "", one))
    wait_until_running(2, {"CPU": 2, "GPU": 0}, told.append)
    why = "an engine needs 2 CPU, and the machine with the most free resources has 1 CPU"
    assert told == [f"0 of 2 engines run: {why}", f"1 of 2 engines run: {why}", ""]
    assert [record.message for record in caplog.records] == [
        f"waiting for the engines of the cluster: {line}" for line in told[:2]
    ]


def test_engines_that_never_begin_end_the_start(monkeypatch):
    machines(monkeypatch)
    statuses(monkeypatch, ("DEPLOYING", "", ["STARTING"]))
    monkeypatch.setattr(deployment, "BEGIN_S", 0.0)
    with pytest.raises(CacheError, match=r"have not started within 0 s: 0 of 1 engines run: .* has 0 CPU$"):
        wait_until_running(1, {"CPU": 2, "GPU": 0}, lambda awaited: None)


def test_what_engines_want_is_compared_with_one_machine(monkeypatch):
    def awaited() -> str:
        return what_is_awaited(0, 1, {"CPU": 2, "GPU": 1}, "warmdesk#engines#")

    machines(monkeypatch, {"CPU": 8.0}, {"CPU": 1.0, "GPU": 1.0})
    assert awaited().endswith("needs 2 CPU and 1 GPU, and the machine with the most free resources has 1 CPU and 1 GPU")
    machines(monkeypatch, {"CPU": 2.0, "GPU": 1.0})
    assert awaited() == "0 of 1 engines run: the other engines are starting"
    for state in ({"pid": 9}, {"actor": "DEAD"}):
        machines(monkeypatch, {}, **state)
        assert awaited() == "0 of 1 engines run: the other engines are starting"


@pytest.mark.parametrize("status", ["DEPLOYING", "DEPLOY_FAILED"])
def test_an_engine_that_cannot_begin_ends_the_start_with_its_reason(status, monkeypatch):
    machines(monkeypatch, pid=9)
    statuses(monkeypatch, ("DEPLOYING", "", []), (status, FAILED, []))
    with pytest.raises(CacheError) as raised:
        wait_until_running(1, {"CPU": 1, "GPU": 0}, lambda awaited: None)
    assert str(raised.value) == "an engine of the cluster could not start: there is no model in /models/none"


def test_folders_of_killed_desks_are_removed_and_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left_over, foreign = tmp_path / f"{PREFIX}left", tmp_path / "other"
    left_over.mkdir()
    foreign.mkdir()
    (left_over / "log").touch()
    with session_folder() as first:
        assert not left_over.exists()
        with session_folder() as second:
            assert {*tmp_path.iterdir()} == {first, second, foreign}
            assert os.stat(second).st_mode & 0o077 == 0
        assert {*tmp_path.iterdir()} == {first, foreign}
    assert {*tmp_path.iterdir()} == {foreign}


def test_processes_of_a_killed_desk_are_ended_with_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    logging_there = "import sys; log = open(sys.argv[1], 'w'); print(flush=True); sys.stdin.read()"
    files = tmp_path / f"{PREFIX}left" / "logs" / "agent.log", tmp_path / "other.log"
    files[0].parent.mkdir(parents=True)
    theirs, other = (
        subprocess.Popen(
            [sys.executable, "-c", logging_there, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for file in files
    )
    with theirs, other:
        for one in (theirs, other):
            assert one.stdout is not None
            one.stdout.readline()
        with session_folder():
            theirs.wait(PATIENCE_S)
            assert other.poll() is None
