"""Engines of a cluster that are lost, or cannot be reached for a while: without Ray, with replicas in this process."""

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
from engine_processes import spec_of
from waiting import wait_until

from cache.cluster.replica import Behind, FromReplica, Part
from cache.decoding.sampling import Sampling
from cache.engine.request import Completion, Request
from cache.errors import EngineStopped
from cache.memory.disk import SUFFIX
from cache.memory.keys import PUBLIC_TENANT
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Segment
from cache.serving.local_engine import LocalEngine
from cache.serving.messages import Encode, EncodingEnded, Ended, EngineSpec, decoded, encoded

pytest.importorskip("ray")

from fake_cluster import EndedProcess, FakeHandle

from cache.cluster import cluster_engine, replica
from cache.cluster.cluster_engine import ClusterEngine
from cache.cluster.replica import EngineReplica

NEVER = 3600.0
T = TypeVar("T")


class Cluster:
    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.first, self.second = self.begin(), self.begin()
        self.handle = FakeHandle(self.first, self.second)
        self.engine = ClusterEngine(self.handle, spec, lambda: None)

    def begin(self) -> EngineReplica:
        return EngineReplica(encoded(self.spec))

    def encode(self, *modules: int, by: EngineReplica) -> None:
        message = encoded(Encode.of(0, map(self.segment, modules), PUBLIC_TENANT))
        assert isinstance(decoded(asyncio.run(by.encode(message, forgotten=0)), EncodingEnded), EncodingEnded)
        by._engine.flush()

    def segment(self, number: int) -> Segment:
        return self.engine.segment(module(number))

    def keys(self, *modules: int) -> set[str]:
        return {self.engine.key(self.segment(one)) for one in modules}

    def ask(self, number: int) -> Completion:
        return self.engine.submit(request_of(self.engine, number, Sampling(max_tokens=4))).completion

    def files(self) -> list[Path]:
        assert self.spec.shared is not None
        return [*Path(self.spec.shared).glob(f"*{SUFFIX}")]


@pytest.fixture
def open_cluster(tiny_folder, tmp_path, monkeypatch):
    opened: list[Cluster] = []

    def start(*, watch_s: float = NEVER) -> Cluster:
        monkeypatch.setattr(cluster_engine, "WATCH_S", watch_s)
        opened.append(Cluster(spec_of(tiny_folder, tmp_path, shared=str(tmp_path / "shared"), memory=4 << 20)))
        return opened[-1]

    yield start
    for one in opened:
        one.engine.close()
        for each in {one.first, one.second, *one.handle.replicas}:
            each._engine.close()


def module(number: int) -> TextModule:
    return TextModule(name=str(number), pieces=(Text(text=f"Page {number}. Returns take thirty days."),))


def request_of(engine: ClusterEngine | LocalEngine, number: int, sampling: Sampling) -> Request:
    return Request(plan=engine.arrange([module(number), Text(text=f"How long, {number}?")]), sampling=sampling)


def after(parts: int) -> Callable[[FromReplica], bool]:
    numbers = count()
    return lambda event: isinstance(event, Part) and next(numbers) == parts


def with_the_end(event: FromReplica) -> bool:
    return isinstance(event, Ended)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=20),
        Sampling(max_tokens=20, temperature=5.0, seed=5),
        Sampling(max_tokens=20, repetition_penalty=1.5),
        None,
    ],
    ids=["greedy", "seeded", "penalty", "stop string"],
)
def test_a_text_goes_on_without_a_missing_or_repeated_word(open_cluster, sampling):
    cluster = open_cluster()
    whole = cluster.first._engine.submit(request_of(cluster.engine, 1, sampling or Sampling(max_tokens=20))).completion
    if sampling is None:
        middle = len(whole.text) // 2
        sampling = Sampling(max_tokens=20, stop=(whole.text[middle : middle + 3],))
        whole = cluster.first._engine.submit(request_of(cluster.engine, 1, sampling)).completion
        assert whole.tokens is None, "the stop string ended it"
    for losses in (
        [after(0)],
        [after(1), after(1)],
        [with_the_end],
        [after(1), with_the_end, with_the_end],
    ):
        cluster.handle.losses = [*losses]
        generation = cluster.engine.submit(request_of(cluster.engine, 1, sampling))
        text = "".join(generation)
        assert not cluster.handle.losses
        assert text == generation.completion.text == whole.text
        assert generation.completion.tokens == whole.tokens
        assert generation.completion.finish_reason == whole.finish_reason


def test_an_end_with_half_a_character_is_delivered_once(open_cluster):
    cluster = open_cluster()
    request = request_of(cluster.engine, 1, Sampling(max_tokens=2, given=(97, 228)))
    whole = cluster.first._engine.submit(request).completion.text
    cluster.handle.losses = [with_the_end, with_the_end]
    generation = cluster.engine.submit(request)
    assert whole.endswith("\ufffd")
    assert "".join(generation) == generation.completion.text == whole
    assert not cluster.handle.losses


def test_forgetting_counts_each_module_once(open_cluster):
    cluster = open_cluster()
    cluster.encode(1, 2, by=cluster.first)
    cluster.encode(2, 3, by=cluster.second)
    assert cluster.engine.forget(cluster.keys(1, 2, 3, 4)) == 3
    assert cluster.engine.modules("public") == frozenset()
    assert not cluster.files()


def test_an_engine_that_could_not_be_told_forgets_before_it_answers(open_cluster):
    cluster = open_cluster()
    cluster.ask(1)
    cluster.encode(1, 2, by=cluster.second)
    cluster.handle.unreachable.add(cluster.second)
    assert cluster.engine.forget(cluster.keys(1, 2)) == 1, "what the first engine had"
    assert cluster.second._engine.modules("public") >= cluster.keys(1, 2)
    assert not cluster.engine.drop_prefixes("public")
    assert not cluster.engine.evict(*cluster.keys(1))
    cluster.handle.unreachable = {cluster.first}
    cluster.handle.frames.clear()
    cluster.ask(3)
    assert isinstance(cluster.handle.frames[0], Behind)
    assert cluster.second._engine.modules("public").isdisjoint(cluster.keys(1, 2))
    cluster.handle.unreachable.clear()
    cluster.ask(3)
    cluster.handle.frames.clear()
    cluster.ask(3)
    assert not any(isinstance(frame, Behind) for frame in cluster.handle.frames)


def test_who_has_forgotten_does_it_no_more_while_another_cannot_be_reached(open_cluster, monkeypatch):
    cluster = open_cluster(watch_s=0.01)
    cluster.encode(1, by=cluster.second)
    done = list[tuple[str, EngineReplica]]()
    for one in (cluster.first, cluster.second):
        for method in ("forget", "settle"):
            monkeypatch.setattr(one._engine, method, noted(getattr(one._engine, method), done, (method, one)))
    cluster.handle.unreachable.add(cluster.second)
    cluster.engine.forget(cluster.keys(1))
    told = len(cluster.handle.broadcasts)
    wait_until(lambda: cluster.handle.broadcasts[told:].count("state") >= 2)  # a look that had begun before has ended
    looked = len(cluster.handle.broadcasts)
    wait_until(lambda: len(cluster.handle.broadcasts) >= looked + 10)
    assert done == [("forget", cluster.first)]
    assert {*cluster.handle.broadcasts[looked:]} == {"state"}
    cluster.handle.unreachable.clear()
    wait_until(lambda: not cluster.engine._untold)
    assert done[1:3] == [("settle", cluster.second), ("forget", cluster.second)]
    assert ("settle", cluster.first) not in done
    known = len(done)
    looked = len(cluster.handle.broadcasts)
    wait_until(lambda: len(cluster.handle.broadcasts) >= looked + 10)
    assert len(done) == known


def test_an_engine_is_told_while_another_cannot_be_reached(open_cluster, monkeypatch):
    cluster, odd = open_cluster(watch_s=0.01), [ValueError("odd")]
    look = cluster.engine._look

    def looks() -> None:
        if odd:
            raise odd.pop()
        look()

    monkeypatch.setattr(cluster.engine, "_look", looks)
    wait_until(lambda: not odd)
    third = cluster.begin()
    cluster.handle.replicas.append(third)
    cluster.encode(1, by=cluster.second)
    cluster.handle.unreachable |= {cluster.second, third}
    cluster.engine.forget(cluster.keys(1))
    cluster.handle.unreachable.remove(cluster.second)
    wait_until(lambda: cluster.second._engine.modules("public").isdisjoint(cluster.keys(1)))
    assert cluster.engine._untold == cluster.keys(1)


def noted(function: Callable[..., int], done: list[T], what: T) -> Callable[..., int]:
    def called(*given: object) -> int:
        done.append(what)
        return function(*given)

    return called


def test_a_file_that_a_lost_engine_wrote_later_is_forgotten(open_cluster):
    cluster = open_cluster(watch_s=0.01)
    cluster.handle.unreachable.add(cluster.second)
    cluster.engine.forget(cluster.keys(1))
    cluster.encode(1, by=cluster.second)
    cluster.handle.dead.add(cluster.second)
    cluster.handle.unreachable.clear()
    wait_until(lambda: not cluster.files())
    wait_until(lambda: not cluster.engine._untold)


def test_an_engine_that_begins_later_has_nothing_to_forget(open_cluster):
    cluster = open_cluster()
    cluster.encode(1, by=cluster.first)
    cluster.engine.forget(cluster.keys(1))
    third = cluster.begin()
    cluster.handle.replicas = [third]
    cluster.ask(2)
    assert not any(isinstance(frame, Behind) for frame in cluster.handle.frames)
    assert [one.forgotten for one in cluster.engine.replica_states()] == [1]
    assert third._engine.modules("public") == cluster.keys(2)


def test_an_engine_that_begins_later_is_told_what_to_keep(open_cluster):
    cluster = open_cluster(watch_s=0.01)
    cluster.engine.keep(cluster.keys(1))
    cluster.handle.replicas.append(cluster.begin())
    wait_until(lambda: [one.kept for one in cluster.engine.replica_states()] == [1, 1, 1])


def test_an_engine_that_missed_what_nobody_remembers_ends(open_cluster, monkeypatch):
    def end() -> None:
        raise EndedProcess

    monkeypatch.setattr(replica, "end_process", end)
    cluster = open_cluster()
    cluster.ask(1)
    cluster.handle.replicas = [cluster.second]  # as if nobody had known of the first
    cluster.engine.forget(cluster.keys(1))
    cluster.handle.replicas = [cluster.first, cluster.second]
    cluster.ask(2)
    assert cluster.handle.dead == {cluster.first}


def test_nothing_is_forgotten_where_no_engine_can_be_reached(open_cluster):
    cluster = open_cluster()
    cluster.encode(1, by=cluster.first)
    cluster.handle.unreachable = {cluster.first, cluster.second}
    with pytest.raises(EngineStopped, match="no engine of the cluster can be reached"):
        cluster.engine.forget(cluster.keys(1))
    assert not cluster.engine.is_running
    cluster.handle.unreachable.clear()
    assert cluster.engine.forget(cluster.keys(2)) == 0
    assert cluster.engine.modules("public") == frozenset(), "what was asked before is forgotten, too"
