"""Clusters that cannot be used, and engines that cannot begin in one, are one line each: without a cluster."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from desks import small_settings

import cache
from app.desk.parts import engine_spec, start_cluster
from app.domain.errors import DeskError
from cache.errors import CacheError

ray = pytest.importorskip("ray")

from cache.cluster import connecting, deployment  # noqa: E402
from cache.cluster.deployment import check_room, wait_until_running  # noqa: E402
from cache.cluster.session_folder import PREFIX, session_folder  # noqa: E402

FAILED = """The deployment failed to start 1 times in a row. This may be due to a problem with its constructor. Error:
ray::ServeReplica:warmdesk:engines.initialize_and_get_metadata() (pid=1, ip=127.0.0.1, actor_id=2)
RuntimeError: Traceback (most recent call last):
  File "cache/cluster/replica.py", line 80, in __init__
cache.errors.ModelError: there is no model in /models/none
"""


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small_settings(tmp_path, cluster="local")
    monkeypatch.setattr(cache, "cluster", cache.cluster)
    for name in [name for name in sys.modules if name.startswith("cache.cluster")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeskError, match=r"^a cluster of engines needs Ray: pip install 'warmdesk\[cluster\]'$"):
        start_cluster(settings, engine_spec(settings))


def test_what_ray_says_in_several_lines_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1\n")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(connecting, "check_head", lambda address: None)
    with pytest.raises(CacheError) as raised:
        connecting.connect("10.0.0.5:6379")
    assert str(raised.value) == (
        "no Ray cluster can be used at 10.0.0.5:6379: "
        "Version mismatch: The cluster was started with: Ray: 2.9.0 Python: 3.10.1"
    )


def test_what_is_no_head_of_a_cluster_is_found_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(CacheError, match=f"no Ray cluster can be used at {address}: what answers there is not"):
            connecting.connect(address)


def test_more_engines_than_there_is_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    check_room(2, {"num_cpus": 2, "num_gpus": 0})
    with pytest.raises(CacheError, match="3 engines with 2 CPU each need 6, and this machine has 4: set"):
        check_room(3, {"num_cpus": 2, "num_gpus": 0})
    with pytest.raises(CacheError, match="1 engines with 1 GPU each need 1, and this machine has 0: set"):
        check_room(1, {"num_cpus": 1, "num_gpus": 1})


def statuses(monkeypatch: pytest.MonkeyPatch, *said: tuple[str, str]) -> None:
    """What Serve says one after another: the state of the application, and a message of the deployment."""
    waiting = [
        SimpleNamespace(status=status, message="", deployments={"engines": SimpleNamespace(message=message)})
        for status, message in reversed(said)
    ]
    serve: Any = SimpleNamespace(status=lambda: SimpleNamespace(applications={"warmdesk": waiting.pop()}))
    monkeypatch.setattr(deployment, "serve", serve)
    monkeypatch.setattr(deployment, "LOOK_S", 0.0)


def test_engines_that_wait_for_room_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = "Deployment 'engines' has 1 replicas that have taken\nmore than 30s to be scheduled."
    statuses(monkeypatch, ("DEPLOYING", ""), ("DEPLOYING", slow), ("DEPLOYING", slow), ("RUNNING", ""))
    wait_until_running()
    assert [record.message for record in caplog.records] == [
        f"waiting for the engines of the cluster: {' '.join(slow.split())}"
    ]
    monkeypatch.setattr(deployment, "BEGIN_S", 0.0)
    statuses(monkeypatch, ("DEPLOYING", slow))
    with pytest.raises(CacheError, match=r"have not begun within 0 s: .* have taken more than 30s to be scheduled"):
        wait_until_running()


@pytest.mark.parametrize("status", ["DEPLOYING", "DEPLOY_FAILED"])
def test_an_engine_that_cannot_begin_ends_the_start_with_its_reason(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses(monkeypatch, ("DEPLOYING", ""), (status, FAILED))
    with pytest.raises(CacheError) as raised:
        wait_until_running()
    assert str(raised.value) == "an engine of the cluster could not begin: there is no model in /models/none"


def test_folders_of_killed_desks_are_removed_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
