"""The store: where modules are found, why they are missing, what is evicted, and that the accounting is right."""

import threading
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cache.errors import CapacityError
from cache.memory.arena import Arena
from cache.memory.device import CacheEntry
from cache.memory.disk import DiskTier, LoadFailed, ModuleHeader
from cache.memory.kv_shape import KVShape, KVStorage
from cache.memory.prefix_tree import PathStep
from cache.memory.store import Lookup, Store
from cache.prompt.plan import Segment

SHAPE = KVShape(layers=2, kv_heads=2, head_dim=4, dtype="float32")
BIG = 1 << 30
TENANT = "public"


def segment_of(name: str, text: str | None = None, prefix: Segment | None = None, start: int = 0) -> Segment:
    """A segment of the bytes of a text; ten of the name's if there is none."""
    return Segment(name=name, tokens=tuple((text or name.ljust(10, "."))[:99].encode()), start=start, prefix=prefix)


A, B, C, D = (segment_of(name) for name in "abcd")


def store_of(slots: int = 100, folder: Path | None = None, fingerprint: str = "model", capacity: int = BIG) -> Store:
    disk = None if folder is None else DiskTier(folder, capacity)
    return Store(Arena(SHAPE, slots, torch.device("cpu")), fingerprint, disk)


def build(store: Store, segment: Segment, tenant: str = TENANT) -> CacheEntry:
    """Encode a segment, as the encoder does; rows depend on its tokens only. Returned pinned."""
    extent = store.device.reserve(len(segment.tokens))
    store.arena.write(extent, rows_of(segment))
    return store.put(segment, tenant, extent)


def rows_of(segment: Segment) -> torch.Tensor:
    size = (2, SHAPE.layers, len(segment.tokens), SHAPE.kv_heads, SHAPE.head_dim)
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(segment.tokens)))


def add(store: Store, *segments: Segment) -> None:
    for segment in segments:
        store.device.release(build(store, segment))


def find_loaded(store: Store, segment: Segment, tenant: str = TENANT) -> Lookup:
    """Look a segment up until it is loaded. The source is where it was found first."""
    first = found = store.find(segment, tenant)
    while found.loading is not None:
        wait([found.loading], timeout=20)
        found = store.find(segment, tenant)
    return found if found.entry is None else replace(found, source=first.source)


def find(store: Store, segment: Segment, tenant: str = TENANT) -> Lookup:
    found = find_loaded(store, segment, tenant)
    if found.entry is not None:
        store.device.release(found.entry)
    return found


def use(store: Store, segment: Segment) -> None:
    """Find a segment for a request that begins, and let it go."""
    entry = store.find(segment, TENANT).entry
    assert entry is not None
    store.device.count_use([entry])
    store.device.release(entry)


@pytest.fixture
def store(tmp_path):
    store = store_of(folder=tmp_path)
    yield store
    store.close()


def test_miss_reasons(store):
    prefix = segment_of("system")
    add(store, prefix, segment_of("doc", "old text", prefix, 10))
    assert find(store, segment_of("other")).reason == "never built"
    assert find(store, segment_of("doc", "new text", prefix, 10)).reason == "document changed"
    assert (
        find(store, segment_of("doc", "old text", segment_of("system", "edited"), 10)).reason
        == "model or template changed"
    )
    assert find(store, segment_of("doc", "old text", prefix, 11)).reason == "placement"
    assert find(store, segment_of("renamed", "old text", prefix, 10)).source == "device"


def test_tenants_do_not_share(store):
    add(store, A)
    found = find(store, A, "other")
    assert (found.source, found.reason) == ("computed", "never built")
    assert find(store, segment_of("a", "other"), "other").reason == "never built", "was wrong once: it had changed"
    with pytest.raises(ValueError, match="tenant"):
        store.find(A, "not a tenant")


def test_rows_of_another_shape_are_load_failed(tmp_path):
    for rows in (torch.zeros(2, 2, 9, 2, 4), torch.zeros(2, 2, 10, 2, 4, dtype=torch.float16)):
        store = store_of(folder=tmp_path)
        key = store.key(A, TENANT)
        header = ModuleHeader(
            key=key, name="a", tenant="public", fingerprint="model", prefix="", tokens="", start=0, num_tokens=10
        )
        assert store.disk is not None
        store.disk.write(header, rows)
        assert find(store, A).reason == "load failed"
        assert list(tmp_path.iterdir()) == []
        store.check_integrity()
        store.close()


def test_pinned_modules_and_prefixes_are_never_evicted():
    store = store_of(slots=40)
    pinned = build(store, A)
    add(store, B)
    path = [PathStep(start=0, tokens=(1,) * 10)]
    store.device.put_prefix(store.device.prefixes.root(TENANT), [(path[0], store.device.reserve_rows(10))], None)
    prefix = store.device.pin_prefix(TENANT, path)
    extents = [store.device.reserve(10), store.device.reserve(10)]
    assert store.device.evictions == {"module": 1}
    with pytest.raises(CapacityError):
        store.device.reserve(1)
    assert find(store, A).entry is pinned
    assert store.device.prefixes.match(TENANT, path) is prefix
    store.device.free(extents)
    store.device.release_prefix(prefix)
    store.device.release(pinned)
    store.check_integrity()
    assert store.device.reserve(40).length == 40
    assert store.device.evictions == {"module": 2, "prefix": 1}


def test_a_capacity_error_says_how_much_and_what_to_do():
    store = store_of(slots=20)
    entry = build(store, A)
    with pytest.raises(CapacityError) as caught:
        store.device.reserve(15)
    assert str(caught.value) == (
        "15 tokens of KV memory are needed in one piece, 10 are free and the rest of 20 is in use: "
        "raise --memory, or send fewer or shorter prompts"
    )
    store.device.release(entry)


def test_what_cannot_fit_evicts_nothing():
    """Was wrong once: one question that is too long, alone or beside pinned entries, cost everything that was warm."""
    store = store_of(slots=40)
    pinned = build(store, A)
    add(store, B, C)
    for length in (41, 31):
        with pytest.raises(CapacityError):
            store.device.reserve(length)
        assert len(store.device.entries) == 3
    store.device.release(pinned)


def test_the_least_valuable_module_is_evicted_first():
    store = store_of(slots=30)
    add(store, A, B, C)
    for segment in (A, A, C):
        use(store, segment)
    add(store, D)
    assert find(store, B).reason == "evicted"
    assert find(store, A).source == find(store, C).source == "device"


def test_what_is_on_disk_goes_before_what_must_be_computed(tmp_path):
    store = store_of(slots=20, folder=tmp_path)
    add(store, A, B)
    store.flush()
    assert store.disk is not None
    store.disk.remove(store.key(A, TENANT))
    for segment in (A, B, B):
        use(store, segment)
    add(store, C)
    assert store.key(A, TENANT) in store.device.entries
    assert store.key(B, TENANT) not in store.device.entries
    store.close()


def test_a_used_module_outlives_an_unused_one_on_disk_as_in_memory(tmp_path):
    """Was wrong once: priced when it was put, an unused module counted what computing costs; the used one, priced after
    it was written, what loading costs, a hundredth.
    """
    store = store_of(slots=20, folder=tmp_path)
    add(store, A, B)
    store.flush()
    use(store, A)
    add(store, C)
    assert store.key(A, TENANT) in store.device.entries
    assert store.key(B, TENANT) not in store.device.entries
    store.close()


def test_looking_a_module_up_again_and_again_is_no_use():
    store = store_of(slots=20)
    add(store, A, B)
    for _ in range(9):
        find(store, A)
    use(store, B)
    assert [store.device.entries[store.key(one)].hits for one in (A, B)] == [0, 1]
    add(store, C)
    assert store.key(B, TENANT) in store.device.entries


def test_much_used_but_long_ago_is_evicted_in_the_end():
    store = store_of(slots=20)
    add(store, A)
    for _ in range(5):
        use(store, A)
    for i in range(20):
        add(store, segment_of(str(i)))
    assert find(store, A).source == "device", "it is still worth more than what came once"
    for i in range(200):
        add(store, segment_of(str(i)))
    assert find(store, A).reason == "evicted"


def test_what_comes_back_is_known_for_its_uses():
    """Was wrong once: what was evicted began anew, however popular it had been, so it was the next victim again."""
    store = store_of(slots=20)
    add(store, A)
    for _ in range(5):
        use(store, A)
    assert store.device.evict(store.key(A))
    add(store, A, B)
    use(store, B)
    add(store, C)
    assert store.key(A, TENANT) in store.device.entries
    assert store.key(B, TENANT) not in store.device.entries


def test_what_is_to_be_kept_is_evicted_last():
    store = store_of(slots=30)
    add(store, A, B, C)
    store.keep({store.key(A)})
    use(store, B)  # used more, but not to be kept
    add(store, D)
    assert {one: store.has(store.key(one)) for one in (A, B, C)} == {A: True, B: True, C: False}
    store.keep(frozenset())
    use(store, D)
    store.device.release(build(store, C))
    assert not store.has(store.key(A))
    store.keep({store.key(one) for one in (B, C, D)})
    add(store, A)
    assert store.has(store.key(A)), "there is room where all is to be kept"
    store.check_integrity()


def test_files_that_are_to_be_kept_go_last(tmp_path):
    store = store_of(folder=tmp_path)
    add(store, A, B)
    store.flush()
    assert store.disk is not None
    store.keep({store.key(A)})
    store.disk.capacity = store.disk.num_bytes
    add(store, C)
    store.close()
    assert [store.key(one) in store.disk for one in (A, B, C)] == [True, False, True]


def test_a_module_is_taken_out_of_memory_unless_it_is_in_use(store):
    entry = build(store, A)
    assert not store.device.evict(store.key(A))
    assert not store.remove(store.key(A))
    store.device.release(entry)
    assert store.device.evict(store.key(A))
    assert not store.device.evict(store.key(A)), "it is not there any more"
    assert store.tier(store.key(A)) == "disk"
    assert torch.equal(store.rows(store.key(A)), rows_of(A))
    assert find(store, A).source == "disk"
    assert torch.equal(store.rows(store.key(A)), rows_of(A))
    assert store.remove(store.key(A))
    assert not store.has(store.key(A))
    with pytest.raises(LoadFailed):
        store.rows(store.key(A))
    store.check_integrity()


def test_rows_are_taken_in_pieces_and_evict_no_more_than_they_need():
    """Was wrong once: rows needed one piece, so that fitting a request evicted every other module, too."""
    store = store_of(slots=400)
    many = [segment_of(str(i), str(i) * 40) for i in range(10)]
    held = [build(store, one) for one in many]
    for entry in held[::2]:
        store.device.release(entry)
    rows = store.device.reserve_rows(70)
    assert sum(extent.length for extent in rows) == 70
    assert store.device.evictions == {"module": 2}
    with pytest.raises(CapacityError, match="131 tokens of KV memory are needed, 130 are free"):
        store.device.reserve_rows(131)
    with pytest.raises(CapacityError):
        store.device.reserve_rows(100, spare=31)
    assert store.device.evictions == {"module": 2}
    store.device.extend_rows(rows, 10)
    assert store.device.evictions == {"module": 2}, "what is behind the last piece is free"
    store.device.free(rows)
    for entry in held[1::2]:
        store.device.release(entry)
    store.check_integrity()


def test_a_module_takes_the_place_of_neighbours_that_are_worth_least():
    """Was wrong once: victims went by value alone, wherever they were, until a piece happened to be long enough."""
    store = store_of(slots=100)
    many = [segment_of(str(i)) for i in range(10)]
    add(store, *many)
    for i, segment in enumerate(many):
        for _ in range(3 if i in (4, 5) else 2 + i % 2 * 2):  # the least are apart; 4 and 5 are the cheapest together
            use(store, segment)
    store.device.release(build(store, segment_of("long", "l" * 20)))
    assert store.device.evictions["module"] == 2
    store.check_integrity()


class FinishesWhileAsked(DiskTier):
    """A tier whose pending write ends just after someone looked for the file in vain, once `is_watched` is set."""

    finish: threading.Event
    finished: threading.Event
    is_watched = False

    def write(self, header: ModuleHeader, rows: torch.Tensor, *storage: KVStorage) -> None:
        self.finish.wait(5)
        super().write(header, rows, *storage)

    def __contains__(self, key: str) -> bool:
        there = super().__contains__(key)
        if self.is_watched:
            self.finish.set()
            self.finished.wait(5)
        return there


def test_a_module_whose_write_ends_meanwhile_is_not_missed(tmp_path):
    """Was wrong once: a write that ended between looking at the disk and at the pending writes was seen by neither."""
    disk = FinishesWhileAsked(tmp_path, BIG)
    disk.finish, disk.finished = threading.Event(), threading.Event()
    store = Store(Arena(SHAPE, 10, torch.device("cpu")), "model", disk)
    entry = build(store, A)
    store.device.release(entry)
    extent = store.device.reserve(10)  # evicts A while its write is pending

    def wait() -> None:
        store.flush()
        disk.finished.set()

    threading.Thread(target=wait).start()
    disk.is_watched = True
    assert store.has(store.key(A, TENANT))
    store.device.allocator.free(extent)
    disk.finish.set()
    store.close()


def test_the_writer_survives_an_unexpected_error(store, monkeypatch):
    """Was wrong once: anything but an OSError ended the writer's thread, and later the engine waited for ever."""
    assert store.disk is not None
    assert store.writer is not None
    write = store.disk.write
    monkeypatch.setattr(store.disk, "write", None)
    add(store, A)
    store.flush()
    monkeypatch.setattr(store.disk, "write", write)
    add(store, B)
    store.flush()
    assert [store.key(one) in store.disk for one in (A, B)] == [False, True]
    assert store.writer.failures == 1


def test_integrity_finds_pins_and_lost_slots():
    store = store_of()
    entry = build(store, A)
    with pytest.raises(AssertionError, match="pinned while idle"):
        store.check_integrity()
    store.device.release(entry)
    store.check_integrity()
    store.device.reserve(1)
    with pytest.raises(AssertionError):
        store.check_integrity()


def test_of_a_forgotten_module_no_use_is_remembered():
    store = store_of(slots=20)
    add(store, A, B)
    use(store, A)
    store.forget({store.key(A, TENANT)})
    rehearsals = store.device._queue.half_life._rehearsals
    assert [set(rehearsal._marks) for rehearsal in rehearsals] == [{store.key(B, TENANT)}] * 2


def test_what_is_dropped_and_not_evicted_does_not_stay_in_the_queue():
    store = store_of()
    for n in range(1000):
        path = [PathStep(start=0, tokens=(n,) * 3)]
        store.device.put_prefix(store.device.prefixes.root(TENANT), [(path[0], store.device.reserve_rows(3))], None)
        store.device.drop_prefixes(TENANT)
    assert len(store.device._queue._heap) < 200


def test_names_are_remembered_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("cache.memory.store.REMEMBERED_NAMES", 3)
    store = store_of()
    add(store, *(segment_of(f"m{number}") for number in range(6)))
    assert [name for _, name in store._known_names] == ["m3", "m4", "m5"]
