"""Modules between device, host memory and disk: where they go when room ends, and where they come back from."""

import weakref
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from desks import finish, small_desk, write_pages
from fake_stream import streams
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cache_store import BIG, SHAPE, TENANT, A, B, C, add, build, find, find_loaded, rows_of, segment_of, use
from test_cache_store import D as LAST

from cache.errors import CapacityError
from cache.memory.arena import Arena
from cache.memory.disk import DiskTier
from cache.memory.kv_shape import KVShape
from cache.memory.prefix_tree import PathStep, step_key
from cache.memory.store import Store
from cache.prompt.plan import Segment

MODULE = 10 * SHAPE.bytes_per_token  # bytes of a module of ten tokens


def store_of(
    slots: int = 20, host: int = 3 * MODULE, folder: Path | None = None, disk: int = BIG, shape: KVShape = SHAPE
) -> Store:
    tier = None if folder is None else DiskTier(folder, disk)
    return Store(Arena(shape, slots, torch.device("cpu")), "model", tier, host_memory=host)


@pytest.fixture(params=["memory", "pinned"])
def kind(request, monkeypatch):
    monkeypatch.setattr("cache.memory.host.UNIT", 4)
    with streams(monkeypatch) if request.param == "pinned" else nullcontext():
        yield


@pytest.fixture
def store(kind):
    """Memory for two modules of ten tokens, and host memory for three; no disk."""
    store = store_of()
    yield store
    store.close()


def held(store: Store) -> dict[str, str | None]:
    return {one.name: store.tier(store.key(one)) for one in (A, B, C, LAST)}


def test_what_is_evicted_goes_to_host_memory_and_comes_back_bit_for_bit(store):
    add(store, A, B, C)
    assert held(store) == {"a": "host", "b": "device", "c": "device", "d": None}
    assert store.host.num_bytes == MODULE
    assert torch.equal(store.rows(store.key(A)), rows_of(A))
    found = find_loaded(store, A)
    assert found.source == "host"
    assert found.entry is not None
    assert torch.equal(store.arena.read(found.entry.extent), rows_of(A))
    extent = found.entry.extent
    assert store.arena.positions[extent.start : extent.end].tolist() == A.positions
    assert held(store) == {"a": "device", "b": "host", "c": "device", "d": None}
    assert [entry.header.name for entry in store.host.entries.values()] == ["b"], "it is in one of the two"
    store.device.release(found.entry)
    store.check_integrity()


def test_what_has_left_host_memory_takes_none():
    """Was wrong at first: the eviction queue held the rows of what had gone, far beyond the budget."""
    store = store_of()
    add(store, A, B, C)
    rows = weakref.ref(store.host.entries[store.key(A)].tensors["kv"])
    assert find(store, A).source == "host"
    for thread in store._loader._threads._threads:  # the one that copied them may not have let go of them yet
        store.close()
        thread.join(20)
    assert rows() is None
    rows = weakref.ref(store.host.entries[store.key(B)].tensors["kv"])
    store.forget({store.key(B)})
    assert rows() is None


@pytest.mark.usefixtures("kind")
def test_host_memory_is_never_over_its_budget_and_loses_what_is_worth_least():
    store = store_of(slots=10, host=2 * MODULE + 1)
    add(store, A)
    for _ in range(4):
        use(store, A)
    add(store, B, C, LAST)
    assert held(store) == {"a": "host", "b": None, "c": "host", "d": "device"}
    assert store.host.evictions == 1
    assert store.host.num_bytes == 2 * MODULE
    assert find(store, B).reason == "evicted"
    store.check_integrity()
    store.close()


@pytest.mark.usefixtures("kind")
def test_what_is_to_be_kept_leaves_host_memory_last():
    store = store_of(slots=10, host=2 * MODULE)
    store.keep({store.key(B)})
    add(store, A)
    for _ in range(4):
        use(store, A)
    add(store, B, C, LAST)
    assert held(store) == {"a": "host", "b": "host", "c": None, "d": "device"}, "else it were b"
    store.close()


@pytest.mark.usefixtures("kind")
def test_what_is_larger_than_host_memory_is_not_kept_there_and_costs_no_other_its_place():
    store = store_of(slots=30, host=2 * MODULE)
    large = segment_of("large", "l" * 30)
    add(store, A, B, C, large)
    before = held(store)
    assert [*before.values()].count("host") == 2
    assert store.device.evict(store.key(large))
    assert held(store) == before
    assert not store.has(store.key(large))
    store.check_integrity()


def test_what_disk_has_goes_from_host_memory_before_what_must_be_computed(tmp_path):
    store = store_of(slots=10, host=2 * MODULE, folder=tmp_path)
    add(store, A, B)
    store.flush()
    assert store.disk is not None
    store.disk.remove(store.key(A))
    add(store, C, LAST)
    store.flush()
    assert held(store) == {"a": "host", "b": "disk", "c": "host", "d": "device"}
    assert find(store, B).source == "disk"
    store.close()


def test_uses_count_in_host_memory_and_when_a_module_comes_back(store):
    add(store, A)
    for _ in range(5):
        use(store, A)
    marks = store.device.entries[store.key(A)].marks
    assert marks is not None
    assert store.device.evict(store.key(A))
    assert store.host.entries[store.key(A)].marks == marks
    assert find(store, A).source == "host"
    again = store.device.entries[store.key(A)].marks
    assert again is not None
    assert again > marks


def test_what_finds_no_room_on_the_device_stays_in_host_memory(store):
    add(store, A)
    assert store.device.evict(store.key(A))
    pinned = [build(store, B), build(store, C)]
    with pytest.raises(CapacityError):
        store.find(A, TENANT)
    assert held(store)["a"] == "host"
    for entry in pinned:
        store.device.release(entry)
    assert find(store, A).source == "host"
    store.check_integrity()


@pytest.mark.usefixtures("kind")
def test_what_is_wanted_from_host_memory_is_not_evicted_by_what_goes_for_it():
    """Was wrong at first: it was worth least there, and was computed again."""
    store = store_of(slots=10, host=MODULE)
    add(store, A, B)
    assert held(store) == {"a": "host", "b": "device", "c": None, "d": None}
    found = find_loaded(store, A)
    assert found.source == "host"
    assert found.entry is not None
    assert torch.equal(store.arena.read(found.entry.extent), rows_of(A))
    store.device.release(found.entry)
    store.close()
    store.check_integrity()


@pytest.mark.parametrize("is_loading", [False, True])
@pytest.mark.parametrize("end", ["forget", "remove"])
def test_forgetting_reaches_host_memory(store, end, is_loading):
    add(store, A, B, C)
    if is_loading:
        found = store.find(A, TENANT)
        assert found.source == "host"
        if found.entry is not None:  # a pass waits for it
            store.device.release(found.entry)
    key = store.key(A)
    assert key in store.keys_of(TENANT)
    assert store.forget({key}) == 1 if end == "forget" else store.remove(key)
    assert key not in store.keys_of(TENANT)
    assert not store.has(key)
    assert find(store, A).entry is None
    store.close()
    store.collect_loads()
    assert not store.has(key)
    store.check_integrity()


@pytest.mark.parametrize("in_arena", [True, False])
@pytest.mark.parametrize("on_disk", [True, False])
def test_forget_removes_a_module_from_every_tier(tmp_path, in_arena, on_disk):
    store = store_of(100 if in_arena else 10, 0, tmp_path)
    add(store, A, B)
    store.flush()
    key = store.key(A, TENANT)
    assert store.disk is not None
    if not on_disk:
        store.disk.remove(key)
    assert (key in store.device.entries) == in_arena
    assert store.forget({key}) == (1 if in_arena or on_disk else 0)
    assert not store.has(key)
    assert len(list(tmp_path.iterdir())) == 1
    assert find(store, A).source == "computed"
    assert find(store, B).entry is not None
    assert store.forget({key}) == 0
    store.check_integrity()
    store.close()


def placed(segment: Segment, store: Store, start: int = 0) -> PathStep:
    return PathStep(start=start, tokens=segment.tokens, key=step_key(store.key(segment, TENANT), 0))


def test_forget_takes_the_prefixes_computed_with_a_module_and_its_sessions():
    store = store_of(100, 0)
    add(store, A, B)
    root, question = store.device.prefixes.root(TENANT), PathStep(start=10, tokens=(1, 2, 3))
    own_words = PathStep(start=0, tokens=(5, 5))
    quoting = PathStep(start=0, tokens=A.tokens, sources=frozenset({store.key(A)}))
    for steps, session in (
        ([placed(A, store), question], "asks about A"),
        ([placed(B, store), question], "asks about B"),
        ([own_words], "asks about A"),
        ([quoting], None),
    ):
        rows = [(step, [] if step.key else store.device.reserve_rows(len(step.tokens))) for step in steps]
        store.device.put_prefix(root, rows, session)
    assert store.forget({store.key(A, TENANT)}) == 1
    for gone in ([placed(A, store), question], [own_words], [quoting]):
        assert store.device.prefixes.match(TENANT, gone).parent is None
    assert store.device.prefixes.match(TENANT, [placed(B, store), question]).step == question
    store.check_integrity()


def test_what_is_forgotten_while_it_is_read_is_found_by_nobody_and_free_in_the_end():
    store = store_of(100, 0)
    entry = build(store, A)
    path = [placed(A, store), PathStep(start=10, tokens=(1, 2, 3))]
    rows = [(path[0], []), (path[1], store.device.reserve_rows(3))]
    store.device.put_prefix(store.device.prefixes.root(TENANT), rows, None)
    prefix = store.device.pin_prefix(TENANT, path)
    assert store.forget({store.key(A, TENANT)}) == 1
    assert find(store, A).entry is None
    assert store.device.prefixes.match(TENANT, path).parent is None
    again = build(store, A)  # somebody needs the same text meanwhile
    later = [(PathStep(start=13, tokens=(4,)), store.device.reserve_rows(1))]
    store.device.put_prefix(prefix, later, None)
    assert store.device.allocator.free_slots == 100 - 10 - 3 - 10
    store.device.release_prefix(prefix)
    store.device.release(entry)
    store.device.release(again)
    assert store.device.allocator.free_slots == 100 - 10
    store.check_integrity()


def test_a_forgotten_module_was_not_evicted():
    """Was wrong once: a key once evicted is called "evicted" for ever, even after it was forgotten."""
    store = store_of(10, 0)
    add(store, A, B, A)
    store.forget({store.key(A, TENANT)})
    assert find(store, A).reason != "evicted"


names = st.sampled_from("abcdef")
actions = st.lists(
    st.tuples(
        st.sampled_from(["get", "get", "get", "look", "drop", "prefix", "evict", "forget", "remove", "keep"]), names
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(actions, st.sampled_from([0, 11, 30, 300]), st.sampled_from([0, 2_000, BIG]))
def test_any_history_keeps_the_books_of_all_tiers(history, host, disk):
    """Contents belong to their keys wherever they come from, budgets hold, what is forgotten does not come back."""
    with TemporaryDirectory() as folder:
        store = store_of(37, host * SHAPE.bytes_per_token, Path(folder) if disk else None, disk)
        pinned, gone = {}, set[str]()
        for action, name in history:
            segment = segment_of(name, name * (4 + ord(name) % 5))
            key = store.key(segment)
            try:
                if action == "get" and name not in pinned:
                    found = find_loaded(store, segment)
                    assert found.entry is None or name not in gone
                    pinned[name] = build(store, segment) if found.entry is None else found.entry
                    gone.discard(name)
                elif action == "look" and name not in pinned:
                    found = store.find(segment, TENANT)  # and leave before it is loaded
                    if found.entry is not None:
                        store.device.release(found.entry)
                elif action == "drop" and name in pinned:
                    store.device.release(pinned.pop(name))
                elif action == "prefix":
                    step = PathStep(start=0, tokens=segment.tokens)
                    root, own = store.device.prefixes.root(TENANT), store.device.reserve_rows(len(segment.tokens))
                    store.device.put_prefix(root, [(step, own)], None)
                    prefix = store.device.pin_prefix(TENANT, [step])
                    store.device.count_prefix_use(prefix)
                    store.device.release_prefix(prefix)
                elif action == "evict":
                    store.device.evict(key)
                elif action == "keep":
                    store.keep({key})
                elif action in ("forget", "remove") and name not in pinned:
                    _ = store.forget({key}) if action == "forget" else store.remove(key)
                    assert not store.has(key)
                    gone.add(name)
            except CapacityError:
                assert pinned or store.is_loading
            for held_name, entry in pinned.items():
                expected = segment_of(held_name, held_name * (4 + ord(held_name) % 5))
                assert torch.equal(store.arena.read(entry.extent), rows_of(expected))
            if not store.is_loading:
                used = [one.extent for one in store.device.entries.values()]
                used += [extent for node in store.device.prefixes.nodes() for extent in node.extents]
                store.device.allocator.check_integrity(used)
            store.device.prefixes.check_integrity()
            store.host.check_integrity()
        for entry in pinned.values():
            store.device.release(entry)
        store.close()
        store.collect_loads()
        store.check_integrity()
        if store.disk is not None:
            assert store.disk.num_bytes <= disk


def test_a_desk_shows_its_host_memory(tmp_path):
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), host_memory=64 << 20) as desk:
        desk.prepare()
        finish(desk, "How long do returns take?")
        key = next(row.id for row in desk.overview().modules if row.document.endswith("returns.md"))
        desk.module_care.evict(key)
        overview = desk.overview()
        assert {row.id: row.tier for row in overview.modules}[key] == "host"
        assert 0 < overview.tier_bytes["host"] < overview.tier_capacity["host"] == 64 << 20
        assert overview.evictions["host"] == 0
        assert desk.module_care.verify(key).largest_difference < 1e-3
        answer = finish(desk, "How long do returns take?")
        assert "host" in {module.source for module in answer.modules}
