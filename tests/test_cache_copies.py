"""Copies of modules beside the passes, as on a GPU, on a stream that is as late as may be."""

from concurrent.futures import wait
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_stream import FakeStream, streams
from recording import Recorder
from test_cache_engine import QUESTION, SYSTEM, plan_of
from test_cache_store import BIG, SHAPE, TENANT, A, B, C, rows_of, segment_of
from test_cache_store import D as LAST
from test_cache_tiers import MODULE, held
from tiny import build, make_segment, oracle_logits, stock
from torch import Tensor

import cache.memory.host
from cache.attention.forward_pass import matmul
from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Request
from cache.errors import CacheError, CapacityError
from cache.memory.arena import Arena, Extent, copy_stream_of
from cache.memory.device import CacheEntry
from cache.memory.disk import DiskTier
from cache.memory.kv_format import rounded
from cache.memory.kv_shape import KVStorage
from cache.memory.store import Lookup, Store
from cache.prompt.plan import Segment

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(cache.memory.host, "UNIT", 4)


@pytest.fixture
def made(monkeypatch):
    with streams(monkeypatch) as made:
        yield made


@pytest.fixture
def store(made):
    """Memory for two modules of ten tokens, and host memory for three; no disk."""
    store = store_of()
    yield store
    store.close()


def store_of(
    slots: int = 20, host: int = 3 * MODULE, folder: Path | None = None, storage: KVStorage = "model", disk: int = BIG
) -> Store:
    tier = None if folder is None else DiskTier(folder, disk)
    return Store(Arena(SHAPE, slots, CPU), "model", tier, host, storage)


def stream_of(store: Store) -> FakeStream:
    assert store._copies is not None
    assert isinstance(store._copies.stream, FakeStream)
    return store._copies.stream


def run_pass(store: Store, writes: dict[Extent, Tensor], reads: dict[Extent, Tensor]) -> None:
    """What a pass does in each layer: wait, write its rows, read those of others."""
    arena = store.arena
    for layer in range(SHAPE.layers):
        arena.await_layer(layer)
        for extent, rows in writes.items():
            arena.write_layer(layer, extent, rows[:, layer])
        for extent, rows in reads.items():
            assert torch.equal(arena.read_layer(layer, extent), rows[:, layer]), ("layer", layer)


def encode(store: Store, segment: Segment, others: dict[Extent, Tensor] | None = None) -> CacheEntry:
    """Encode a segment in a pass that reads other modules. Returned pinned."""
    extent = store.device.reserve(len(segment.tokens))
    run_pass(store, {extent: rows_of(segment)}, others or {})
    return store.put(segment, TENANT, extent)


def add(store: Store, *segments: Segment) -> None:
    for segment in segments:
        store.device.release(encode(store, segment))


def found(lookup: Lookup) -> CacheEntry:
    assert lookup.entry is not None
    return lookup.entry


# --- copies and passes ------------------------------------------------------------------------------------------


def test_a_module_comes_back_layer_by_layer_while_a_pass_runs(store):
    add(store, A, B)
    run_pass(store, {}, {})
    assert store.device.evict(store.key(A))
    assert held(store)["a"] == "host"
    lookup = store.find(A, TENANT)
    assert (lookup.source, lookup.loading) == ("host", None)
    arena, entry, stream = store.arena, found(lookup), stream_of(store)
    assert store.tier(store.key(A)) == "device"
    assert arena.positions[entry.extent.start : entry.extent.end].tolist() == A.positions
    assert arena.has_copies
    assert stream.given == 0, "what is noted together is copied together"
    for layer in range(SHAPE.layers):
        arena.await_layer(layer)
        assert torch.equal(arena.read_layer(layer, entry.extent), rows_of(A)[:, layer])
        assert (stream.done, stream.given) == (2 * (layer + 1), 2 * SHAPE.layers), "one layer out and in, no more"
    assert not arena.has_copies
    store.device.release(entry)
    store.check_integrity()


def test_the_first_layer_of_all_modules_comes_before_the_second_of_any(store):
    add(store, A, B)
    for segment in (A, B):
        assert store.device.evict(store.key(segment))
    run_pass(store, {}, {})
    stream = stream_of(store)
    before = stream.done
    entries = {segment: found(store.find(segment, TENANT)) for segment in (B, A)}
    store.arena.await_layer(0)
    assert stream.done == before + 2
    for segment, entry in entries.items():
        assert torch.equal(store.arena.read_layer(0, entry.extent), rows_of(segment)[:, 0])
        store.device.release(entry)


def test_nobody_waits_on_the_host_for_what_is_evicted(store):
    add(store, A, B)
    for segment in (A, B):
        assert store.device.evict(store.key(segment))
    extents = [store.device.reserve(10) for _ in range(2)]
    store.arena.begin_copies()
    assert stream_of(store).done == 0 < stream_of(store).given
    store.device.free(extents)


def test_what_is_forgotten_while_it_is_copied_harms_nobody(store):
    add(store, A, B, C)
    entry = found(store.find(A, TENANT))
    assert store.forget({store.key(A)}) == 1
    store.device.release(entry)
    add(store, LAST)
    assert not store.has(store.key(A))
    assert torch.equal(store.rows(store.key(LAST)), rows_of(LAST))
    store.check_integrity()


def test_a_copy_that_fails_is_made_by_the_next_pass(store):
    add(store, A, B, C)
    run_pass(store, {}, {})
    entry = found(store.find(A, TENANT))  # b goes
    stream_of(store).failures = [RuntimeError("out of memory")]
    with pytest.raises(RuntimeError, match="out of memory"):
        store.arena.begin_copies()
    store.arena.copies.begin()  # type: ignore[union-attr]
    stream_of(store).failures = []
    run_pass(store, {}, {entry.extent: rows_of(A)})
    store.device.release(entry)
    assert torch.equal(store.rows(store.key(B)), rows_of(B))


def test_a_pass_that_is_given_up_leaves_the_rest_to_the_next(store):
    add(store, A, B, C)
    entry = found(store.find(A, TENANT))
    store.arena.await_layer(0)
    assert store.arena.has_copies
    run_pass(store, {}, {entry.extent: rows_of(A)})
    assert not store.arena.has_copies
    store.device.release(entry)


# --- host memory ------------------------------------------------------------------------------------------------


def test_modules_of_other_sizes_fit_in_what_is_left_in_pieces(made):
    store = store_of(slots=60, host=4 * MODULE)
    add(store, A, B, C, LAST)
    for segment in (A, B, C, LAST):
        assert store.device.evict(store.key(segment))
    for segment in (A, C):
        store.device.release(found(store.find(segment, TENANT)))
    long = segment_of("long", "l" * 20)
    add(store, long)
    assert store.device.evict(store.key(long))
    assert len(store.host.entries[store.key(long)].pieces) == 2
    assert store.host.num_bytes == store.host.capacity
    assert store.host.evictions == 0
    run_pass(store, {}, {found(store.find(long, TENANT)).extent: rows_of(long)})
    store.close()


def test_memory_is_locked_once_and_given_back(made):
    store = store_of()
    assert len(made[0].locked) == 1
    add(store, A, B, C)
    store.close()
    assert not made[0].locked
    store.close()
    store_of(host=0).close()
    assert not made[1].locked, "without a budget"


def test_memory_that_cannot_be_locked_is_said(monkeypatch):
    with streams(monkeypatch, has_pages=False), pytest.raises(CacheError, match=r"cannot be (locked|pinned)"):
        store_of()


# --- what it costs ----------------------------------------------------------------------------------------------


def test_what_copies_take_is_measured_by_their_events(store):
    stream_of(store).seconds_per_copy = 10.0
    add(store, A, B, C)
    before, disk = store.host_cost.mean, store.load_cost.mean
    store.collect_loads()
    expected = 10.0 * SHAPE.layers / 10  # one module out
    assert store.host_cost.mean == pytest.approx(before + 0.1 * (expected - before))
    assert store.load_cost.mean == disk
    store.collect_loads()
    assert store.host_cost.mean == pytest.approx(before + 0.1 * (expected - before)), "each once"


def test_a_copy_that_takes_longer_than_computing_is_not_made(store):
    add(store, A, B, C)
    store.host_cost.mean = 2 * store.compute_cost.mean
    lookup = store.find(A, TENANT)
    assert (lookup.entry, lookup.loading, lookup.reason) == (None, None, "bypassed")
    add(store, A)
    assert held(store)["a"] == "device", "it is in one of the two"
    assert store.key(A) not in store.host.entries
    store.host_cost.mean = 0.5 * store.compute_cost.mean
    assert store.find(B, TENANT).source == "host"


def test_what_is_read_from_disk_is_copied_besides(made, tmp_path):
    store = store_of(folder=tmp_path, host=0)
    add(store, A)
    store.flush()
    assert store.device.evict(store.key(A))
    store.load_cost.mean, store.compute_cost.mean, store.host_cost.mean = 1.0, 1.0, 1.0
    assert store.find(A, TENANT).reason == "bypassed"
    store._not_loaded.clear()
    store.host_cost.mean = 1e-6
    assert store.find(A, TENANT).source == "disk"
    store.close()


@pytest.mark.parametrize("storage", ["model", "int8"])
def test_what_threads_read_is_copied_layer_by_layer(made, tmp_path, storage):
    store = store_of(folder=tmp_path, host=0, storage=storage)
    add(store, A, B)
    store.close()
    store = store_of(folder=tmp_path, host=0, storage=storage)
    loads = [store.find(segment, TENANT).loading for segment in (A, B)]
    wait([load for load in loads if load is not None], timeout=20)
    entries = [found(store.find(segment, TENANT)) for segment in (A, B)]
    stream = stream_of(store)
    store.arena.await_layer(0)
    assert (stream.done, stream.given) == (2, 2 * SHAPE.layers)
    rows = [rounded(rows_of(segment), storage) for segment in (A, B)]
    run_pass(store, {}, {entry.extent: one for entry, one in zip(entries, rows, strict=True)})
    for segment, entry in zip((A, B), entries, strict=True):
        positions = store.arena.positions[entry.extent.start : entry.extent.end]
        assert positions.tolist() == segment.positions
        store.device.release(entry)
    store.check_integrity()
    store.close()


# --- the memory of a GPU ----------------------------------------------------------------------------------------


def test_memory_is_locked_to_the_byte_or_it_is_said(monkeypatch):
    runtime, asked = SimpleNamespace(), list[object]()
    runtime.cudaHostRegister = lambda address, size, flags: asked.append(size) or (2 if size > 100 else 0)
    runtime.cudaHostUnregister = asked.append
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    stream, memory = copy_stream_of(torch.device("cuda", 0)), torch.empty(100, dtype=torch.uint8)
    stream.lock(memory)
    stream.unlock(memory)
    assert asked == [100, memory.data_ptr()]
    with pytest.raises(CacheError, match=r"3 MiB of host memory cannot be pinned .*: set host_memory lower"):
        stream.lock(torch.empty(3 << 20, dtype=torch.uint8))


# --- any history ------------------------------------------------------------------------------------------------

ACTIONS = ["get", "drop"] * 4 + ["look", "evict", "pass", "advance"] * 2 + ["forget", "remove", "keep", "rows"]


def named(name: str) -> Segment:
    return segment_of(name, name * (4 + 3 * (ord(name) % 5)))


@pytest.mark.parametrize("storage", ["model", "int8"])
@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("host", [0, 17, 40, 300])
def test_any_history_gives_every_pass_the_rows_it_reads(made, tmp_path, host, disk, storage):
    """Modules go, come back and are forgotten while copies are on their way, which end at any time."""
    store = store_of(45, host * SHAPE.bytes_per_token, tmp_path if disk else None, storage)
    pinned: dict[str, CacheEntry] = {}
    random = Random(host)
    for action in random.choices(ACTIONS, k=120):
        name, number = random.choice("abcdef"), random.randint(1, 3)
        segment, reads = named(name), {e.extent: rounded(rows_of(named(n)), storage) for n, e in pinned.items()}
        key = store.key(segment)
        try:
            if action == "get" and name not in pinned:
                lookup = store.find(segment, TENANT)
                if lookup.loading is not None:
                    wait([lookup.loading], timeout=20)
                    lookup = store.find(segment, TENANT)
                pinned[name] = lookup.entry or encode(store, segment, reads)
            elif action == "look" and name not in pinned:
                lookup = store.find(segment, TENANT)
                if lookup.entry is not None:
                    store.device.release(lookup.entry)
            elif action == "drop" and name in pinned:
                store.device.release(pinned.pop(name))
            elif action == "evict":
                store.device.evict(key)
            elif action == "keep":
                store.keep({key})
            elif action in ("forget", "remove") and name not in pinned:
                _ = store.forget({key}) if action == "forget" else store.remove(key)
                assert not store.has(key)
            elif action == "pass":  # also one of rows of its own, which it gives back
                own = store.device.reserve(number)
                run_pass(store, {own: torch.full((2, SHAPE.layers, number, 2, 4), 9.0)}, reads)
                store.device.free([own])
            elif action == "rows" and (key in store.host.entries or key in store.device.entries):
                assert torch.equal(store.rows(key), rounded(rows_of(segment), storage))
            elif action == "advance":
                stream_of(store).advance(number)
        except CapacityError:
            assert pinned or store.is_loading
        store.host.check_integrity()
    run_pass(store, {}, {e.extent: rounded(rows_of(named(n)), storage) for n, e in pinned.items()})
    for key in store.host.entries:
        name = store.host.entries[key].header.name
        assert torch.equal(store.rows(key), rounded(rows_of(named(name)), storage))
    for entry in pinned.values():
        store.device.release(entry)
    store.close()
    store.collect_loads()
    store.check_integrity()


# --- the engine -------------------------------------------------------------------------------------------------

PAGES = [make_segment(name, f"Page {name} says something of its own. " * 2, SYSTEM) for name in "abcd"]


def asked(engine: Engine, *segments: Segment) -> list[str]:
    plan = plan_of(SYSTEM, *segments, QUESTION)
    completion = engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=1))).completion
    usage = completion.usage
    assert usage.prompt_tokens == usage.computed + usage.session + usage.prefix + usage.module == plan.num_tokens
    return [use.source for use in completion.modules]


def test_answers_equal_one_full_pass_and_begin_before_all_is_copied(made):
    seen: list[tuple[int, int]] = []  # copies made and given, in each layer of every pass

    def watching(*given: Any) -> tuple[Tensor, Tensor]:
        seen.append((made[0].done, made[0].given))
        return matmul(*given)

    model = build(kernel=watching)
    recorder, per_token = Recorder(model), model.info.kv.bytes_per_token
    room = len(SYSTEM.tokens) + 2 * len(PAGES[0].tokens) + len(QUESTION) + 8
    engine = Engine(model, memory=room * per_token, host_memory=300 * per_token).start()
    engine.keep({engine.store.key(SYSTEM)})
    assert asked(engine, *PAGES[:2]) == ["computed"] * 3
    assert asked(engine, *PAGES[2:]) == ["device", "computed", "computed"]
    seen.clear()
    for pages in (PAGES[:2], PAGES[2:]):
        assert asked(engine, *pages) == ["device", "host", "host"]
        expected = oracle_logits(stock(), plan_of(SYSTEM, *pages, QUESTION))
        assert (recorder.logits[-1] - expected).abs().max() < 1e-4
    assert seen[0][0] < seen[0][1], "the first layer is computed while the last one is copied"
    engine.call(Store.check_integrity)
    engine.close()


def test_a_pass_that_waits_for_copies_says_nothing_of_what_computing_costs(made, monkeypatch):
    monkeypatch.setattr("cache.engine.device_memory.PREFILL_ROWS", 1)
    engine = Engine(build(), memory=4 << 20, host_memory=4 << 20).start()
    assert asked(engine, PAGES[0]) == ["computed"] * 2
    for evicts in (True, False):
        engine.call(lambda store: store.device.drop_prefixes(TENANT))
        if evicts:
            assert engine.call(lambda store: store.device.evict(store.key(PAGES[0])))
        before = engine.store.compute_cost.mean
        assert asked(engine, PAGES[0]) == ["device", "host" if evicts else "device"]
        assert (engine.store.compute_cost.mean == before) is evicts
    engine.close()


def test_what_an_idle_engine_looks_up_is_copied_without_a_pass(made):
    model = build()
    engine = Engine(model, memory=4 << 20, host_memory=4 << 20).start()
    engine.encode(PAGES[:1]).result()
    assert engine.call(lambda store: store.device.evict(store.key(PAGES[0])))
    engine.encode(PAGES[:1], into_memory=True).result()
    assert engine.call(lambda store: store.tier(store.key(PAGES[0]))) == "device"
    assert made[0].given == 2 * model.info.kv.layers, "out and in"
    engine.close()
