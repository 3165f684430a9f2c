"""The disk tier: bit-equal or gone."""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import cache.memory.disk
from cache.memory.disk import DiskTier, LoadFailed, ModuleHeader, nameless, read_header
from cache.memory.keys import digest
from cache.memory.kv_format import rounded

SHAPE = (2, 3, 5, 2, 4)
BIG = 1 << 30


def header_of(name: str) -> ModuleHeader:
    return ModuleHeader(
        key=digest(name),
        tenant="public",
        name=name,
        fingerprint="model",
        prefix="",
        tokens=digest(name),
        start=0,
        num_tokens=SHAPE[2],
    )


def rows_of(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)


A, B = header_of("a"), header_of("b")


def refuse(*args: object, **named: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def path_of(folder: Path, header: ModuleHeader) -> Path:
    (path,) = (path for path in folder.iterdir() if header.key.split(":")[1] in path.name)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_come_back_bit_for_bit_after_a_restart_too(tmp_path, dtype):
    tmp_path = tmp_path / "made" / "too"
    rows = rows_of(0, dtype)
    rows[0, 0, 0, 0, :3] = torch.tensor([float("nan"), float("-inf"), -0.0], dtype=dtype)
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows)
    for reader in (tier, DiskTier(tmp_path, BIG)):
        assert A.key in reader
        assert reader.headers() == [A]
        got = reader.read(A.key)
        assert got.dtype == dtype
        assert torch.equal(got.view(torch.uint8), rows.view(torch.uint8))
        assert reader.num_bytes == path_of(tmp_path, A).stat().st_size > rows.numel() * rows.itemsize
    with safe_open(path_of(tmp_path, A), framework="pt") as file:
        assert ModuleHeader(**json.loads(file.metadata()["header"])) == A, "what the library reads"
    part = rows[:, :, 1:4].transpose(3, 4)
    tier.write(replace(A, name="renamed"), part)
    assert torch.equal(tier.read(A.key).view(torch.uint8), part.contiguous().view(torch.uint8))
    assert [header.name for header in tier.headers()] == ["renamed"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 16
    path.write_bytes(content)


def other_file(path: Path, name: str = "kv", **metadata: str) -> None:
    save_file({name: torch.zeros(SHAPE)}, path, metadata or None)


def described(path: Path, length: int, description: bytes) -> None:
    path.write_bytes(length.to_bytes(8, "little") + description)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": lambda path: path.unlink(),
    "flipped": flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 8),
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "foreign": lambda path: other_file(path, "weight"),
    "without metadata": other_file,
    "half its metadata": lambda path: other_file(path, header='{"name": "x"}', checksum=""),
    "bad JSON": lambda path: other_file(path, header="{", checksum=""),
    "a list": lambda path: other_file(path, header="[]", checksum=""),  # was wrong once: the engine stopped
    "nested": lambda path: described(path, 100_000, b"[" * 100_000),
    "a length": lambda path: described(path, 1 << 60, path.read_bytes()[8:]),
}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_a_failed_load_and_gone(tmp_path, damage, restarted):
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0))
    tier.write(B, rows_of(1))
    path = path_of(tmp_path, A)
    DAMAGES[damage](path)
    if damage not in ("removed", "flipped"):
        assert read_header(path) == nameless(A.key)
    if restarted:
        tier = DiskTier(tmp_path, BIG)
    with pytest.raises(LoadFailed):
        tier.read(A.key)
    assert A.key not in tier
    assert tier.headers() == [B]
    assert torch.equal(tier.read(B.key), rows_of(1))


def test_a_file_under_another_key_is_not_believed(tmp_path):
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0))
    tier.write(B, rows_of(1))
    path_of(tmp_path, A).write_bytes(path_of(tmp_path, B).read_bytes())
    with pytest.raises(LoadFailed, match="another module"):
        tier.read(A.key)
    assert A.key not in tier
    assert torch.equal(tier.read(B.key), rows_of(1))


@pytest.mark.parametrize("storage", ["model", "int8"])
def test_whichever_byte_is_flipped_the_rows_are_never_wrong(tmp_path, storage):
    rows = rows_of(0)[:, :1, :2].contiguous()
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows, storage)
    path = path_of(tmp_path, A)
    sound = path.read_bytes()
    failed = 0
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        try:
            assert torch.equal(tier.read(A.key), rounded(rows, storage)), at
        except LoadFailed:
            failed += 1
            assert not path.exists()
    assert failed > rows.numel()


def test_the_least_recently_used_file_makes_room(tmp_path):
    headers = [header_of(name) for name in "abcd"]
    tier = DiskTier(tmp_path, BIG)
    for i, header in enumerate(headers[:3]):
        tier.write(header, rows_of(i))
        os.utime(path_of(tmp_path, header), (1000 + i, 1000 + i))
    size = tier.num_bytes // 3
    tier = DiskTier(tmp_path, 3 * size + size // 2)
    tier.read(headers[0].key)  # used last, from here on
    tier.write(headers[3], rows_of(3))
    assert {header.name for header in tier.headers()} == {"a", "c", "d"}
    assert headers[1].key not in tier
    assert tier.evictions == 1
    assert tier.num_bytes <= tier.capacity
    assert len(list(tmp_path.iterdir())) == 3


def test_what_was_just_written_is_not_the_one_to_go(tmp_path):
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0))
    os.utime(path_of(tmp_path, A), (4e9, 4e9))  # a clock that was wrong once
    tier = DiskTier(tmp_path, tier.num_bytes * 3 // 2)
    tier.write(B, rows_of(1))
    assert tier.headers() == [B]


@pytest.mark.parametrize("spare", [-1, 1])  # the rows alone are too large, or only with their header
def test_what_is_larger_than_the_tier_is_not_kept_and_costs_nothing_else(tmp_path, spare):
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0)[:, :1].contiguous())
    large = rows_of(1).repeat(1, 50, 1, 1, 1)
    tier.capacity = large.nbytes + spare
    tier.write(B, large)
    assert B.key not in tier
    assert tier.num_bytes <= tier.capacity
    assert A.key in tier
    assert [path for path in tmp_path.iterdir() if B.key.split(":")[1] in path.name] == []


def test_reading_counts_as_use_after_a_restart(tmp_path):
    tier = DiskTier(tmp_path, BIG)
    for header in (A, B):
        tier.write(header, rows_of(0))
        os.utime(path_of(tmp_path, header), (1000, 1000))
    DiskTier(tmp_path, BIG).read(A.key)
    entries = DiskTier(tmp_path, BIG).entries
    assert entries[A.key].last_used > entries[B.key].last_used == 1000


def test_a_tier_that_starts_over_its_limit_is_brought_under_it(tmp_path):
    """Was wrong once: a lowered limit took effect with the next write only."""
    tier = DiskTier(tmp_path, BIG)
    for header in (A, B):
        tier.write(header, rows_of(0))
    limit = tier.num_bytes * 3 // 4
    lowered = DiskTier(tmp_path, limit)
    lowered.clean_up()
    assert lowered.num_bytes <= limit


def test_damaged_files_count_or_go_at_start(tmp_path):
    """Was wrong once: unreadable files filled the disk for ever."""
    (tmp_path / ("b2-" + "0" * 64 + ".safetensors")).write_bytes(b"x" * 1000)
    tier = DiskTier(tmp_path, BIG)
    assert tier.num_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_error_while_syncing_or_renaming_leaves_the_old_file(tmp_path, monkeypatch, step):
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0))

    def fail(*args: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="Input/output"):
        tier.write(A, rows_of(1))
    with pytest.raises(OSError, match="Input/output"):
        tier.write(B, rows_of(1))
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 1
    assert tier.headers() == [A]
    assert torch.equal(tier.read(A.key), rows_of(0))


def test_leftovers_of_a_crash_are_removed_by_the_process_that_writes(tmp_path):
    (tmp_path / "b2-0.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    tier = DiskTier(tmp_path, BIG)
    assert len(list(tmp_path.iterdir())) == 2, "a second process that only reads removes nothing"
    tier.clean_up()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_writing_beside_reading(tmp_path):
    """One thread writes while another reads: what is read is whole, and files are evicted meanwhile."""
    headers = [header_of(str(i)) for i in range(8)]
    tier = DiskTier(tmp_path, BIG)
    tier.write(headers[0], rows_of(0))
    tier.capacity = tier.num_bytes * 4
    errors: list[BaseException] = []

    def write() -> None:
        try:
            for i in range(40):
                tier.write(headers[i % 8], rows_of(i % 8))
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    whole = 0
    while writer.is_alive() or not whole:
        for i, header in enumerate(headers):
            if header.key in tier:
                try:
                    assert torch.equal(tier.read(header.key), rows_of(i))
                    whole += 1
                except LoadFailed:  # evicted meanwhile
                    pass
    writer.join()
    assert errors == []
    assert tier.num_bytes <= tier.capacity


def test_a_file_evicted_while_it_is_read_is_no_error(tmp_path, monkeypatch):
    """Was wrong once: its time stamp could not be set, and the engine stopped."""
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0))
    honest = cache.memory.disk.checksum_of

    def slow(rows: Mapping[str, torch.Tensor]) -> str:
        tier.remove(A.key)  # what `_make_room` does on the other thread
        return honest(rows)

    monkeypatch.setattr(cache.memory.disk, "checksum_of", slow)
    with contextlib.suppress(LoadFailed):
        assert torch.equal(tier.read(A.key), rows_of(0))


def test_a_disk_that_fails_under_a_file_that_is_read_does_not_end_the_process(tmp_path, monkeypatch):
    """Was wrong once: the file was mapped, and what the disk cannot give is SIGBUS then."""
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0))
    honest = cache.memory.disk.checksum_of

    def failing(tensors: Mapping[str, torch.Tensor]) -> str:
        os.truncate(path_of(tmp_path, A), 0)
        return honest(tensors)

    monkeypatch.setattr(cache.memory.disk, "checksum_of", failing)
    assert torch.equal(tier.read(A.key), rows_of(0))


def test_a_file_that_gives_an_error_is_a_failed_load_and_gone(tmp_path, monkeypatch):
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0))

    def fail(path: Path) -> bytearray:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(cache.memory.disk, "read_file", fail)
    with pytest.raises(LoadFailed, match="Input/output error"):
        tier.read(A.key)
    assert A.key not in tier
    assert not [*tmp_path.iterdir()]


def test_a_file_that_may_not_be_touched_is_still_read(tmp_path, monkeypatch):
    """Was wrong once: in a read-only or shared folder."""
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0))

    monkeypatch.setattr(os, "utime", refuse)
    assert torch.equal(tier.read(A.key), rows_of(0))


def test_what_cannot_be_deleted_is_never_read_again_and_deleted_later(tmp_path, monkeypatch, caplog):
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0))
    used = tier.num_bytes
    monkeypatch.setattr(Path, "unlink", refuse)
    assert not tier.remove(A.key)
    assert A.key not in tier
    assert (tier.headers(), tier.num_bytes) == ([A], used), "what is still there is said to be"
    assert "cannot be deleted" in caplog.text
    with pytest.raises(LoadFailed):
        tier.read(A.key)
    monkeypatch.undo()
    tier.write(B, rows_of(1))
    assert [path.name for path in tmp_path.iterdir()] == [path_of(tmp_path, B).name]
    assert tier.headers() == [B]


def test_what_cannot_be_deleted_may_be_written_again(tmp_path, monkeypatch):
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0))
    monkeypatch.setattr(Path, "unlink", refuse)
    tier.remove(A.key)
    tier.write(A, rows_of(1))
    monkeypatch.undo()
    tier.write(B, rows_of(2))
    assert torch.equal(tier.read(A.key), rows_of(1))


def test_a_disk_that_deletes_nothing_costs_one_file_of_those_it_should_evict(tmp_path, monkeypatch):
    tier = DiskTier(tmp_path, BIG)
    for header in (A, B):
        tier.write(header, rows_of(0))
    tier.capacity = tier.num_bytes
    monkeypatch.setattr(Path, "unlink", refuse)
    tier.write(header_of("c"), rows_of(0))
    assert len(tier.entries) == 2
    tier.clean_up()


@pytest.mark.parametrize("call", ["mkdir", "glob", "stat", "exists"])
def test_a_folder_that_cannot_be_read_is_an_empty_tier(tmp_path, monkeypatch, call):
    """Was wrong once: every look-up of a module asked the disk, and an error of the disk ended the engine."""
    tier = DiskTier(tmp_path, BIG)
    tier.write(A, rows_of(0))
    monkeypatch.setattr(Path, call, refuse)
    assert A.key in tier, "without asking the disk"
    restarted = DiskTier(tmp_path / "not-there" if call == "mkdir" else tmp_path, BIG)
    restarted.clean_up()
    assert (A.key in restarted) == (call == "exists")
