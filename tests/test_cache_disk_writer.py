"""Writing to disk: a slow one stops nobody, and what was forgotten is not written."""

import threading

import pytest
import torch
from test_cache_priority import a_core, ask, encode, long_modules, run
from test_cache_store import BIG, A, B, C, D, add, segment_of, store_of
from tiny import build

import cache.memory.background
from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Request
from cache.memory.disk import DiskTier, ModuleHeader
from cache.memory.kv_shape import KVStorage
from cache.memory.store import Store
from cache.prompt.plan import Plan, Span


@pytest.fixture
def store(tmp_path):
    store = store_of(folder=tmp_path)
    yield store
    store.close()


def held_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """From now on each write says that it began, and waits until it may go on."""
    assert store.disk is not None
    began, go, write = threading.Event(), threading.Event(), store.disk.write

    def late(header: ModuleHeader, rows: torch.Tensor, *storage: KVStorage) -> None:
        began.set()
        assert go.wait(20)
        write(header, rows, *storage)

    monkeypatch.setattr(store.disk, "write", late)
    return began, go


def test_a_slow_disk_stops_nobody_and_does_not_get_everything(store, monkeypatch, caplog):
    """Was wrong once: the engine's thread waited for the disk when eight modules did."""
    monkeypatch.setattr(cache.memory.background, "BEHIND", 2)
    monkeypatch.setattr(cache.memory.background, "MOST_PENDING", 3)
    _, go = held_back(store, monkeypatch)
    add(store, A)
    assert not store.is_behind
    add(store, B, C, D, segment_of("e"))
    assert store.is_behind
    assert store.writer is not None
    assert (len(store.writer.pending), store.writer.skipped) == (3, 2)
    assert caplog.text.count("some are not stored") == 1
    go.set()
    store.flush()
    assert not store.is_behind
    assert store.disk is not None
    assert set(store.disk.entries) == {store.key(one) for one in (A, B, C)}
    store.remove(store.key(D))
    add(store, D)
    store.flush()
    assert store.key(D) in store.disk


@pytest.mark.parametrize("forgotten", [True, False])
def test_what_waits_to_be_written_is_forgotten_without_waiting_for_the_disk(store, monkeypatch, forgotten):
    began, go = held_back(store, monkeypatch)
    add(store, A, B)
    assert began.wait(20)
    assert store.forget({store.key(B)}) == 1 if forgotten else store.remove(store.key(B))
    assert not go.is_set()
    assert store.has(store.key(A))
    assert not store.has(store.key(B))
    go.set()
    store.flush()
    assert store.disk is not None
    assert set(store.disk.entries) == {store.key(A)}
    assert len([*store.disk.folder.iterdir()]) == 1


def test_what_is_being_written_is_gone_when_it_is_forgotten(store, monkeypatch):
    began, go = held_back(store, monkeypatch)
    add(store, A)
    assert began.wait(20)
    threading.Timer(0.05, go.set).start()
    assert store.forget({store.key(A)}) == 1
    assert go.is_set()
    assert store.disk is not None
    assert not [*store.disk.folder.iterdir()]


def test_what_was_dropped_is_written_when_it_is_there_again(store, monkeypatch):
    began, go = held_back(store, monkeypatch)
    add(store, A, B)
    assert began.wait(20)
    store.forget({store.key(B)})
    add(store, B)
    go.set()
    store.flush()
    assert store.disk is not None
    assert set(store.disk.entries) == {store.key(A), store.key(B)}


def test_behind_a_slow_disk_questions_are_answered_and_nothing_is_read_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.memory.background, "BEHIND", 1)
    core = a_core(disk=DiskTier(tmp_path, BIG))
    _, go = held_back(core.store, monkeypatch)
    first, second, third = long_modules(3)
    encoded = encode(core, first)
    while not encoded.done():
        core.step()
    encoded, asked = encode(core, second), ask(core, third)
    while not asked.is_over:
        core.step()
    core.step()
    assert core.awaits_loads
    assert not core._encoder.running
    assert not encoded.done()
    go.set()
    core.store.flush()
    run(core)
    assert encoded.result().computed == 1
    core.store.close()


def test_who_waits_until_all_is_written_does_not_stop_the_engine(tmp_path, monkeypatch):
    """Was wrong once: the engine's thread waited for the disk."""
    disk = DiskTier(tmp_path, BIG)
    engine = Engine(build(), memory=4 << 20, disk=disk).start()
    began, go = held_back(engine.store, monkeypatch)
    engine.encode([A]).result()
    assert began.wait(20)
    settling = threading.Thread(target=engine.settle)
    settling.start()
    request = Request(plan=Plan(spans=(Span(start=0, tokens=tuple(b"Hello?")),)), sampling=Sampling(max_tokens=2))
    for _ in range(2):
        assert engine.submit(request).completion.finish_reason == "length"
    assert settling.is_alive()
    go.set()
    settling.join(20)
    assert engine.key(A) in disk
    engine.close()
