"""Modules that are read from disk while the engine does other things: what is found meanwhile, what can go wrong."""

import logging
import threading
import time
from concurrent.futures import wait
from pathlib import Path

import pytest
import torch
from test_cache_engine import QUESTION, SYSTEM, plan_of
from test_cache_restart import RESTARTED, broken_once
from test_cache_store import TENANT, A, B, add, find, rows_of, store_of
from tiny import build, make_segment, oracle_logits, stock
from torch import Tensor
from waiting import wait_until

import cache.engine.engine
from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.engine_core import EngineCore
from cache.engine.request import Generation, Request
from cache.errors import CacheError, CapacityError
from cache.memory.arena import Arena
from cache.memory.disk import DiskTier, ModuleHeader
from cache.memory.kv_shape import KVStorage
from cache.memory.store import Store
from cache.prompt.plan import Segment

BIG = 1 << 30
COLD, WARM = (make_segment(name, f"What {name} says, and at some length. " * 2, SYSTEM) for name in ("cold", "warm"))


class SlowDisk(DiskTier):
    """A tier whose reads wait for `go`: before they read, or behind. began: a thread reads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, BIG)
        self.go, self.began = threading.Event(), threading.Event()
        self.reads, self.reads_first = 0, False

    def read(self, key: str) -> Tensor:
        self.reads += 1
        rows = super().read(key) if self.reads_first else None
        self.began.set()
        assert self.go.wait(20)
        return super().read(key) if rows is None else rows


@pytest.fixture
def store(tmp_path):
    first = store_of(folder=tmp_path)
    add(first, A, B)
    first.close()
    store = store_of()
    store.close()
    store = Store(store.arena, "model", SlowDisk(tmp_path))
    slow(store).go.set()
    assert find(store, B).source == "disk"
    slow(store).go.clear()
    slow(store).began.clear()
    yield store
    slow(store).go.set()
    store.close()


def slow(store: Store) -> SlowDisk:
    assert isinstance(store.disk, SlowDisk)
    return store.disk


def settle(store: Store) -> None:
    slow(store).go.set()
    wait([load.ended for load in (*store._loader.running.values(), *store._loader._dropped)], timeout=20)
    store.collect_loads()
    assert not store.is_loading


def test_what_is_being_read_is_neither_found_nor_missing(store):
    first, again = store.find(A, TENANT), store.find(A, TENANT)
    assert (first.entry, first.source, first.reason) == (None, "disk", None)
    assert first.loading is again.loading is not None
    assert store.tier(store.key(A)) == "disk"
    assert find(store, B).source == "device", "others are found meanwhile"
    settle(store)
    found = store.find(A, TENANT)
    assert found.entry is not None
    assert torch.equal(store.arena.read(found.entry.extent), rows_of(A))
    extent = found.entry.extent
    assert store.arena.positions[extent.start : extent.end].tolist() == A.positions
    assert slow(store).reads == 2
    store.device.release(found.entry)
    store.check_integrity()


def test_what_still_waits_to_be_written_is_taken_from_there(store, monkeypatch):
    """Was wrong once: the engine's thread waited for the disk."""
    go, write = threading.Event(), store.disk.write  # type: ignore[union-attr]

    def late(header: ModuleHeader, rows: Tensor, *storage: KVStorage) -> None:
        assert go.wait(20)
        write(header, rows, *storage)

    monkeypatch.setattr(store.disk, "write", late)
    store.load_cost.mean = 1.0  # however slow the disk is
    store.remove(store.key(A))
    add(store, A)
    assert store.device.evict(store.key(A))
    assert find(store, A).source == "disk"
    entry = store.device.entries[store.key(A)]
    assert torch.equal(store.arena.read(entry.extent), rows_of(A))
    assert not slow(store).began.is_set()
    go.set()


def file_of(store: Store, segment: Segment) -> Path:
    return slow(store).folder / f"{store.key(segment).replace(':', '-')}.safetensors"


def unreadable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("cache.memory.disk.read_file", fail)


def damaged(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def deleted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.unlink()


def unforeseen(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache.memory.disk.checksum_of", lambda rows: 1 // 0)


@pytest.mark.parametrize("fault", [unreadable, damaged, deleted, unforeseen])
def test_a_read_that_fails_is_a_miss_and_gives_its_memory_back(store, monkeypatch, fault):
    free = store.device.allocator.free_slots
    assert store.find(A, TENANT).loading is not None
    with monkeypatch.context() as broken:
        fault(file_of(store, A), broken)
        settle(store)
    assert store.device.allocator.free_slots == free
    for _ in range(2):
        found = store.find(A, TENANT)
        assert (found.entry, found.loading, found.reason) == (None, None, "load failed")
    store.check_integrity()
    add(store, A)
    assert store.device.evict(store.key(A))
    assert find(store, A).source == "disk", "what was written anew is read again"


def test_a_file_outlives_a_fault_that_is_not_its_own(store, monkeypatch):
    def full(*_: object) -> None:
        raise RuntimeError("out of memory")

    slow(store).go.set()
    free = store.device.allocator.free_slots
    with monkeypatch.context() as broken:
        broken.setattr(Arena, "write", full)
        assert find(store, A).reason == "load failed"
    assert store.device.allocator.free_slots == free
    assert store.key(A) in slow(store)
    assert file_of(store, A).is_file()
    assert find(store, A).reason == "load failed", "it is computed first"
    add(store, A)
    assert store.device.evict(store.key(A))
    assert find(store, A).source == "disk"


@pytest.mark.parametrize("reads_first", [False, True])
@pytest.mark.parametrize("end", ["forget", "remove"])
def test_what_is_forgotten_while_it_is_read_does_not_come_back(store, end, reads_first):
    free = store.device.allocator.free_slots
    slow(store).reads_first = reads_first
    store.find(A, TENANT)
    assert slow(store).began.wait(20)
    assert store.key(A) in store.keys_of(TENANT)
    assert store.forget({store.key(A)}) == 1 if end == "forget" else store.remove(store.key(A))
    assert store.keys_of(TENANT) == {store.key(B)}
    assert store.find(A, TENANT).reason == "never built"
    assert store.device.allocator.free_slots == free - len(A.tokens), "the thread still writes there"
    store.check_integrity()
    add(store, A)  # somebody needs it meanwhile
    store.flush()
    settle(store)
    assert store.device.allocator.free_slots == free - len(A.tokens)
    assert find(store, A).source == "device"
    assert store.key(A) in slow(store), "its new file stays"
    store.check_integrity()


def test_a_load_that_waits_for_a_thread_is_dropped_at_once(store):
    many = [make_segment(name, name * 10) for name in "cdef"]
    add(store, *many)
    store.flush()
    reads = slow(store).reads
    for segment in many:
        assert store.device.evict(store.key(segment))
        assert store.find(segment, TENANT).loading is not None
    wait_until(lambda: slow(store).reads == reads + 2)
    free = store.device.allocator.free_slots
    store.forget({store.key(segment) for segment in many})
    store.collect_loads()
    assert store.device.allocator.free_slots == free + 20, "two threads read two of them"
    settle(store)
    store.check_integrity()


def test_nothing_writes_into_the_arena_after_the_store_is_closed(store):
    store.find(A, TENANT)
    assert slow(store).began.wait(20)
    closer = threading.Thread(target=store.close)
    closer.start()
    assert closer.is_alive(), "it waits for the thread that reads"
    slow(store).go.set()
    closer.join(20)
    assert all(load.ended.done() for load in store._loader.running.values())
    store.check_integrity()


@pytest.mark.parametrize(
    ("load_cost", "compute_cost", "source", "reason"),
    [
        (1.0, 1e-3, "computed", "bypassed"),
        (1e-5, 1e-3, "disk", None),
        (4e-3, 1e-3, "disk", None),  # 30 ms for ten tokens: a busy machine may take that
    ],
)
def test_what_takes_longer_to_load_than_to_compute_is_computed(store, load_cost, compute_cost, source, reason):
    slow(store).go.set()
    store.load_cost.mean, store.compute_cost.mean = load_cost, compute_cost
    for _ in range(2):
        found = find(store, A)
        if source == "computed":
            assert (found.entry, found.reason) == (None, reason)
        else:
            assert (found.source, found.reason) == (source, reason)
            assert store.device.evict(store.key(A))
            store.load_cost.mean = load_cost
    store.forget({store.key(A)})
    assert find(store, A).reason == "never built", "what is forgotten is not bypassed"


@pytest.mark.parametrize("stays_slow", [False, True])
def test_a_slow_disk_is_tried_again_now_and_then(store, monkeypatch, stays_slow):
    """Else it was slow for ever: what is never loaded is never measured."""
    monkeypatch.setattr("cache.memory.store.TRIED_ANYWAY", 3)
    slow(store).go.set()
    store.load_cost.mean = store.compute_cost.mean = 1.0
    sources = []
    for _ in range(9):
        if stays_slow or not sources:
            store.load_cost.mean = 2.0
        sources.append(find(store, A).source)
        if sources[-1] == "computed":
            written = file_of(store, A).stat().st_mtime_ns
            add(store, A)
            store.flush()
            assert file_of(store, A).stat().st_mtime_ns == written, "what is on disk is not written again"
        assert store.device.evict(store.key(A))
    again = ["computed", "computed", "disk"]
    assert sources == (again * 3 if stays_slow else [*again, *["disk"] * 6])


@pytest.fixture
def disk(tmp_path):
    with_engine = Engine(build(), memory=4 << 20, disk=DiskTier(tmp_path, BIG)).start()
    with_engine.encode([SYSTEM, COLD, WARM]).result(timeout=20)
    with_engine.close()
    return SlowDisk(tmp_path)


@pytest.fixture
def engine(disk):
    engine = Engine(build(), memory=4 << 20, disk=disk).start()
    disk.go.set()
    assert ask(engine, WARM).completion.modules[1].source == "disk"
    disk.go.clear()
    disk.began.clear()
    yield engine
    disk.go.set()
    engine.close()


def ask(engine: Engine, *segments: Segment, tokens: int = 3) -> Generation:
    plan = plan_of(SYSTEM, *segments, QUESTION)
    return engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=tokens)))


def test_warm_requests_do_not_wait_behind_one_that_loads(engine, disk):
    cold = ask(engine, COLD)
    assert disk.began.wait(20)
    assert ask(engine, WARM).completion.modules[1].source == "device"
    assert not cold.is_over
    disk.go.set()
    assert {use.name: use.source for use in cold.completion.modules} == {"system": "device", "cold": "disk"}


def test_the_engine_sleeps_while_all_it_has_is_being_read(engine, disk, monkeypatch):
    monkeypatch.setattr(cache.engine.engine, "LOOK_AGAIN_S", 60.0)
    steps, step = [0], EngineCore.step

    def counted(core: EngineCore) -> None:
        steps[0] += 1
        step(core)

    monkeypatch.setattr(EngineCore, "step", counted)
    cold = ask(engine, COLD)
    assert disk.began.wait(20)
    wait_until(lambda: engine._core.awaits_loads)
    began = time.perf_counter()
    threading.Event().wait(0.2)  # long enough for thousands of steps, if it did not sleep
    assert not engine.is_idle
    held = (time.perf_counter() - began) * 1e3
    disk.go.set()
    completion = cold.completion
    assert steps[0] < 20
    assert held < completion.timings.load < completion.timings.ttft
    assert completion.timings.queue + completion.timings.load + completion.timings.prefill == pytest.approx(
        completion.timings.ttft
    )


def test_who_leaves_while_a_module_is_read_leaves_nothing_behind(engine, disk):
    cold = ask(engine, COLD)
    assert disk.began.wait(20)
    cold.cancel()
    assert (cold.completion.finish_reason, cold.completion.text) == ("cancelled", "")
    assert not disk.go.is_set(), "nobody waits for the disk to see that somebody has left"
    disk.go.set()
    wait_until(lambda: engine.is_idle)
    engine.call(Store.check_integrity)
    assert ask(engine, COLD).completion.modules[1].source == "device", "it was read all the same"


def test_what_is_forgotten_while_a_request_waits_for_it_is_computed(engine, disk):
    key = engine.store.key(COLD)
    cold = ask(engine, COLD)
    assert disk.began.wait(20)
    assert engine.call(lambda store: store.forget({key})) == 1
    use = cold.completion.modules[1]
    assert not disk.go.is_set(), "nobody waits for what is not wanted any more"
    assert (use.source, use.miss_reason) == ("computed", "never built")
    disk.go.set()
    wait_until(lambda: engine.is_idle)
    engine.call(Store.check_integrity)


def test_a_module_that_cannot_be_read_is_computed_for_all_who_wait(engine, disk, monkeypatch):
    waiting = [ask(engine, COLD) for _ in range(3)]
    assert disk.began.wait(20)
    damaged(file_of(engine.store, COLD), monkeypatch)
    disk.go.set()
    for one in waiting:
        use = one.completion.modules[1]
        assert (use.source, use.miss_reason) == ("computed", "load failed")
        assert one.completion.tokens == waiting[0].completion.tokens


def test_a_restart_waits_for_the_threads_that_read(engine, disk, monkeypatch):
    """The arena is used again: nothing of before may be written into it."""
    cold = ask(engine, COLD)
    assert disk.began.wait(20)
    before = engine.store
    broken_once(monkeypatch, EngineCore, "step")
    logging.getLogger("cache.engine.engine").setLevel(logging.CRITICAL)
    engine._calls.put(lambda: None)
    with pytest.raises(CacheError, match=RESTARTED):
        _ = cold.completion
    assert engine.store is before, "the old store is not closed yet"
    disk.go.set()
    again = ask(engine, COLD).completion
    assert engine.store is not before
    assert not any(thread.is_alive() for thread in before._loader._threads._threads)
    assert {use.source for use in again.modules} == {"disk"}
    engine.call(Store.check_integrity)


def test_time_in_the_queue_counts_as_time_to_load(store):
    """Three modules, two threads: the third is as slow as the first, although it was read in no time."""
    others = [make_segment(name, name * 10) for name in "cd"]
    add(store, *others)
    store.flush()
    before = store.load_cost.mean
    for segment in others:
        assert store.device.evict(store.key(segment))
    loads = [store.find(segment, TENANT).loading for segment in (A, *others)]
    third = store._loader.running[store.key(others[1])]
    assert slow(store).began.wait(20)
    began = time.perf_counter()
    threading.Event().wait(0.05)
    held = time.perf_counter() - began
    settle(store)
    assert all(loads)
    assert third.seconds > held
    assert store.load_cost.mean > before


def test_memory_too_small_for_what_is_to_be_loaded_is_said(disk):
    disk.go.set()
    model = build()
    tokens = len(SYSTEM.tokens) + len(COLD.tokens)
    engine = Engine(model, memory=(tokens - 1) * model.info.kv.bytes_per_token, disk=disk).start()
    with pytest.raises(CapacityError, match="raise --memory"):
        _ = ask(engine, COLD).completion
    engine.call(Store.check_integrity)
    engine.close()


def test_memory_comes_back_from_what_is_read_for_somebody_who_left(disk):
    """Nothing else is computed that could give memory back, and still a later question is not refused."""
    model = build()
    tokens = len(SYSTEM.tokens) + max(len(COLD.tokens), len(WARM.tokens)) + 60
    engine = Engine(model, memory=tokens * model.info.kv.bytes_per_token, disk=disk).start()
    left = ask(engine, COLD)
    assert disk.began.wait(20)
    left.cancel()
    assert left.completion.finish_reason == "cancelled"
    later = ask(engine, WARM)
    wait_until(lambda: engine._core.awaits_loads and engine.load() == (0, 1))
    disk.go.set()
    assert later.completion.finish_reason == "length"
    engine.call(Store.check_integrity)
    engine.close()


def test_an_answer_behind_what_was_loaded_equals_one_full_pass(disk):
    disk.go.set()
    model, logits = build(), list[Tensor]()
    forward = model.forward
    model.forward = lambda *args: (logits.append(forward(*args)), logits[-1])[1]  # type: ignore[method-assign]
    engine = Engine(model, memory=4 << 20, disk=disk).start()
    completion = ask(engine, COLD, WARM, tokens=1).completion
    engine.close()
    assert {use.source for use in completion.modules} == {"disk"}
    expected = oracle_logits(stock(), plan_of(SYSTEM, COLD, WARM, QUESTION))
    assert (logits[-1][0] - expected).abs().max() < 1e-4
