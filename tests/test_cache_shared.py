"""Module files that several engines share, in a folder and in a store without folders."""

import logging
from typing import Any, ClassVar
from uuid import uuid4

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from test_cache_store import SHAPE, A, add, find
from tiny import build, make_segment

from cache.decoding.sampling import Sampling
from cache.engine.request import Request
from cache.errors import CacheError
from cache.memory import shared
from cache.memory.arena import Arena
from cache.memory.disk import LoadFailed, ModuleHeader
from cache.memory.shared import SharedTier
from cache.memory.store import Store
from cache.prompt.plan import Plan, Span
from cache.serving.local_engine import LocalEngine, start_engine
from cache.serving.messages import EngineSpec

ROWS = torch.arange(2 * 3 * 4 * 2 * 8, dtype=torch.float32).reshape(2, 3, 4, 2, 8)


class ObjectStore(MemoryFileSystem):  # type: ignore[misc]  # fsspec is not typed here
    """As S3 and its like are: no folders, no renaming, no appending, and removing twice is no error. late: what the
    next listings say, if they are old.
    """

    protocol = "objects"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    late: ClassVar[list[list[dict[str, Any]]]] = []

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """There are no folders."""

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[dict[str, Any]]:
        if self.late:
            return self.late.pop()
        found = [one for one in self.store if one.startswith(f"{path.rstrip('/')}/")]
        if not found:
            raise FileNotFoundError(path)
        return [{**self.info(one), "LastModified": self.modified(one)} for one in found]

    def rm_file(self, path: str) -> None:
        self.store.pop(path, None)

    def mv(self, *given: Any, **options: Any) -> None:
        raise NotImplementedError

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        assert mode in ("rb", "wb")
        return super().open(path, mode, **options)


fsspec.register_implementation(ObjectStore.protocol, ObjectStore)


@pytest.fixture(params=["folder", "memory", "objects"])
def location(request, tmp_path):
    return str(tmp_path / "shared") if request.param == "folder" else f"{request.param}://{uuid4().hex}"


def header(name: str) -> ModuleHeader:
    return ModuleHeader.of(make_segment(name, name), fingerprint="model", tenant="public")


def test_what_one_writes_the_others_find_and_read(location):
    one, other, module = SharedTier(location, 1 << 20), SharedTier(location, 1 << 20), header("a")
    one.write(module, ROWS)
    assert module.key not in other
    other.refresh()
    assert module.key in other
    assert other.headers() == [module]
    assert other.num_bytes == one.num_bytes > ROWS.numel() * 4
    assert torch.equal(other.read(module.key), ROWS)
    assert SharedTier(location, 1 << 20).headers() == [module]


def test_what_one_removes_is_gone_for_all(location):
    one, other, module = SharedTier(location, 1 << 20), SharedTier(location, 1 << 20), header("a")
    one.write(module, ROWS)
    other.refresh()
    assert one.remove(module.key)
    with pytest.raises(LoadFailed, match="another engine has removed it"):
        other.read(module.key)
    assert module.key not in other
    other.refresh()
    assert not other.entries
    assert other.remove(module.key)


def test_a_listing_that_is_late_brings_nothing_back(location):
    tier, removed, written = SharedTier(location, 1 << 20), header("removed"), header("written")
    tier.write(removed, ROWS)
    store, ls = tier._files_of, tier._files_of.ls

    def late(*given: object, **options: object) -> object:
        found = ls(*given, **options)
        tier.remove(removed.key)
        tier.write(written, ROWS)
        return found

    store.ls = late
    try:
        tier.refresh()
    finally:
        store.ls = ls
    assert set(tier.entries) == {written.key}


def test_a_store_that_lists_late_brings_nothing_back():
    location = f"objects://{uuid4().hex}"
    one, other, module = SharedTier(location, 1 << 20), SharedTier(location, 1 << 20), header("a")
    one.write(module, ROWS)
    before = one._files_of.ls(one._root)
    assert one.remove(module.key)
    ObjectStore.late[:] = [before, before]
    one.refresh()
    assert module.key not in one
    other.write(module, ROWS)
    one.refresh()
    assert module.key in one, "it was written again"
    assert not ObjectStore.late


def test_where_no_file_is_left_nothing_is_listed_and_nothing_said(location, caplog):
    one, other, module = SharedTier(location, 1 << 20), SharedTier(location, 1 << 20), header("a")
    one.write(module, ROWS)
    other.refresh()
    one.remove(module.key)
    with caplog.at_level(logging.WARNING):
        other.refresh()
        other.clean_up()
    assert module.key not in other
    assert not caplog.text


def test_the_oldest_go_where_there_is_too_much(location):
    tier, modules = SharedTier(location, 1 << 20), [header(name) for name in "abc"]
    tier.write(modules[0], ROWS)
    tier.capacity = tier.num_bytes * 2
    tier.kept = {modules[0].key}
    tier.write(modules[1], ROWS)
    tier.write(modules[2], ROWS)
    assert set(tier.entries) == {modules[0].key, modules[2].key}
    tier.refresh()
    assert set(tier.entries) == {modules[0].key, modules[2].key}


def test_damaged_and_foreign_files_are_misses(location):
    tier, module = SharedTier(location, 1 << 20), header("a")
    tier.write(module, ROWS)
    path = tier._place(module.key)
    data = bytearray(tier._files_of.cat_file(path))
    data[-1] ^= 1
    tier._files_of.pipe_file(path, bytes(data))
    tier._files_of.pipe_file(f"{tier._root}/notes.txt", b"by somebody")
    nested = (8192).to_bytes(8, "little") + b"[" * 8192
    tier._files_of.pipe_file(f"{tier._root}/b2-0.safetensors", nested)
    tier.refresh()
    with pytest.raises(LoadFailed, match="checksum"):
        tier.read(module.key)
    assert not tier._files_of.exists(path)
    assert tier._files_of.exists(f"{tier._root}/notes.txt")


def test_half_written_files_of_others_stay_until_they_are_old(tmp_path, monkeypatch):
    tier = SharedTier(str(tmp_path), 1 << 20)
    half = tmp_path / f"x.safetensors.1{shared.HALF}"
    half.write_bytes(b"half")
    tier.refresh()
    tier.clean_up()
    assert not tier.entries
    assert half.exists()
    monkeypatch.setattr(shared, "LEFT_OVER_S", -1.0)
    tier.clean_up()
    assert not half.exists()


def test_a_store_that_fails_costs_what_is_in_it_and_says_so(location, monkeypatch, caplog):
    tier, module = SharedTier(location, 1 << 20), header("a")
    tier.write(module, ROWS)

    def broken(*given: object, **options: object) -> None:
        raise ConnectionError("no store")

    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        for name in ("ls", "cat_file", "pipe_file", "rm_file"):
            patch.setattr(tier._files_of, name, broken)
        tier.refresh()
        with pytest.raises(LoadFailed):
            tier.read(module.key)
        with pytest.raises(OSError, match="no store"):
            tier.write(header("b"), ROWS)
        assert not tier.remove(module.key)
    assert "cannot be listed" in caplog.text
    with pytest.raises(LoadFailed, match="it was removed"):
        tier.read(module.key)
    tier.refresh()
    assert module.key not in tier
    tier.write(header("b"), ROWS)  # deletes what could not be deleted before
    assert not tier._files_of.exists(tier._place(module.key))


def test_a_store_that_does_not_answer_once_loses_no_file(location, monkeypatch):
    """Was wrong once: who could not reach it deleted the file for all."""
    tier = SharedTier(location, 1 << 20)
    writer, store = (Store(Arena(SHAPE, 20, torch.device("cpu")), "model", tier) for _ in range(2))
    add(writer, A)
    writer.close()

    def broken(path: str) -> bytes:
        raise ConnectionError("no store")

    with monkeypatch.context() as patch:
        patch.setattr(tier._files_of, "cat_file", broken)
        assert find(store, A).reason == "load failed"
    assert tier._files_of.exists(tier._place(store.key(A)))
    add(store, A)
    assert store.device.evict(store.key(A))
    assert find(store, A).source == "disk"
    store.close()


def test_headers_that_cannot_be_read_are_read_the_next_time(location, monkeypatch, caplog):
    tier = SharedTier(location, 1 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(tier, "_read_headers", lambda: 1 / 0)
        tier.refresh()
    assert "cannot be listed: division by zero" in caplog.text


def test_a_location_that_cannot_be_opened_is_named():
    with pytest.raises(CacheError, match=r"the shared modules in foo://x cannot be opened: .*foo"):
        SharedTier("foo://x", 1)


def test_an_engine_loads_what_another_encoded_and_forgets_it_for_both(location, tmp_path):
    module = make_segment("a", "Returns take 30 days from delivery.")
    question = Span(start=len(module.tokens), tokens=tuple(b"How long?"))
    request = Request(
        plan=Plan(spans=(Span(start=0, tokens=module.tokens, segment=module), question)),
        sampling=Sampling(max_tokens=8),
    )
    spec = EngineSpec(model=None, converted=tmp_path, modules=tmp_path, memory=1 << 20, disk=1 << 20, shared=location)
    engines: list[LocalEngine] = [start_engine(build(), spec) for _ in range(2)]
    try:
        first = engines[0].submit(request).completion
        engines[0].flush()
        disk = engines[1].store.disk
        assert isinstance(disk, SharedTier)
        disk.refresh()
        second = engines[1].submit(request).completion
        assert [use.source for use in second.modules] == ["disk"]
        assert second.tokens == first.tokens
        assert engines[1].forget({engines[1].key(module)}) == 1
        assert not disk._files_of.glob(f"{disk._root}/*{shared.disk.SUFFIX}")
    finally:
        for engine in engines:
            engine.close()
