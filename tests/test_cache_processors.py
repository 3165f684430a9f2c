"""How many processors a process may use, by what the system says of its cgroups."""

import os

import pytest
import torch

from cache.errors import ModelError
from cache.serving import child_process
from cache.serving.child_process import usable_processors
from cache.serving.engine_server import load_engine
from cache.serving.messages import EngineSpec


@pytest.fixture(autouse=True)
def _eight_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 8),
        ("0::/desk.slice/engine\n", {"desk.slice/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        (
            "4:memory:/x\n3:cpu,cpuacct:/docker/12\n0::/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("0::/\n", {"cpu.max": "strange\n"}, 8),
        ("strange\n", {}, 8),
    ],
)
def test_the_quota_of_a_cgroup_counts(own, files, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(child_process, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(child_process, "OWN_GROUPS", tmp_path / "own")
    assert usable_processors() == 8, "without cgroups"
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert usable_processors() == expected


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(("wanted", "usable", "expected"), [(None, 2, 2), (None, 64, 3), (5, 2, 5)])
def test_an_engine_has_no_more_threads_than_processors(wanted, usable, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("cache.serving.engine_server.usable_processors", lambda: usable)
    torch.set_num_threads(3)
    spec = EngineSpec(model=str(tmp_path / "none"), converted=tmp_path, modules=tmp_path, memory=1, threads=wanted)
    with pytest.raises(ModelError):
        load_engine(spec)
    assert torch.get_num_threads() == expected
