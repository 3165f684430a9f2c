"""Encoded modules leave a part of the disk free: they make room for others, and are not written where there is none."""

import os
import shutil
import threading
from pathlib import Path

import pytest
from full_disk import SmallDisk, Usage
from test_cache_disk import BIG, header_of, path_of, rows_of
from waiting import wait_until

import cache.memory.background
from cache.errors import CacheError
from cache.memory.background import DiskWriter
from cache.memory.disk import DiskTier, free_space
from cache.memory.shared import SharedTier

FLOOR = 1 << 20
MODULES = [header_of(name) for name in "abcdef"]


@pytest.fixture
def disk(tmp_path, monkeypatch):
    size = sum(file.stat().st_size for file in written(DiskTier(tmp_path / "one", BIG), 1).folder.iterdir())
    (tmp_path / "modules").mkdir()
    disk = SmallDisk(tmp_path / "modules", FLOOR + 4 * size + size // 2)
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    return disk


def written(tier: DiskTier, number: int) -> DiskTier:
    for order, header in enumerate(MODULES[:number]):
        tier.write(header, rows_of(order))
        os.utime(path_of(Path(getattr(tier, "location", "") or tier.folder), header), (1000 + order, 1000 + order))
        tier.entries[header.key].last_used = 1000 + order
    return tier


def names(tier: DiskTier) -> str:
    return "".join(sorted(header.name for header in tier.headers()))


def test_what_stays_free_of_a_disk(monkeypatch):
    for total, floor in ((1 << 40, 512 << 20), (2 << 30, (2 << 30) // 20)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, total=total: Usage(total, 0, total))
        assert free_space("/", None).floor == floor
        assert free_space("/", 5).floor == 5


@pytest.mark.parametrize("is_shared", [False, True])
def test_modules_make_room_for_others_the_least_used_first(disk, is_shared, caplog):
    tier = SharedTier(str(disk.folder), BIG, FLOOR) if is_shared else DiskTier(disk.folder, BIG, FLOOR)
    written(tier, 4)
    assert names(tier) == "abcd"
    tier.kept = {MODULES[0].key}
    written(tier, 6)
    assert names(tier) == "adef", "as under a smaller capacity"
    assert tier.evictions > 0
    assert disk.usage().free >= FLOOR
    disk.others = disk.usage().free - FLOOR + 1
    tier.keep_floor()
    assert MODULES[0].key in tier, "it goes last"
    assert len(tier.entries) == 3
    disk.others = disk.total
    with pytest.raises(OSError, match="must stay free"):
        tier.write(header_of("new"), rows_of(9))
    assert [file for file in disk.folder.iterdir() if file.is_file()] == [], "all else went for it"
    assert caplog.text.count("encoded modules are removed") == 1
    assert tier.space is not None
    assert tier.space.is_short
    disk.others = 0
    tier.write(header_of("new"), rows_of(9))
    assert names(tier) == "new"


def test_a_tier_begins_under_its_floor_and_does_not_fail(disk, caplog):
    written(DiskTier(disk.folder, BIG), 4)
    disk.others = disk.total
    tier = DiskTier(disk.folder, BIG, FLOOR)
    tier.clean_up()
    assert names(tier) == ""
    assert "modules cannot be stored on disk" in caplog.text


def test_with_nothing_to_write_the_disk_is_looked_at_too(disk, monkeypatch):
    monkeypatch.setattr(cache.memory.background, "LOOK_S", 0.01)
    tier = written(DiskTier(disk.folder, BIG, FLOOR), 4)
    writer = DiskWriter(tier, "model")
    disk.others = disk.usage().free
    wait_until(lambda: names(tier) == "")
    writer.close()


def test_a_full_disk_is_said_once_and_again_after_a_success(disk, monkeypatch, caplog):
    """Was wrong once: only the first failure of a process was."""
    writer = DiskWriter(DiskTier(disk.folder, BIG, FLOOR), "model")
    for others, failures, said in ((disk.total, 2, 1), (0, 2, 1), (disk.total, 4, 2)):
        disk.others = others
        for number, header in enumerate(MODULES[:2]):
            writer.submit(header, rows_of(number))
        writer.wait()
        assert writer.failures == failures
        assert caplog.text.count("modules cannot be stored on disk") == said
    writer.close()


def test_who_waits_for_a_disk_that_hangs_is_told(disk, monkeypatch):
    monkeypatch.setattr(cache.memory.background, "HANG_S", 0.1)
    goes_on, tier = threading.Event(), DiskTier(disk.folder, BIG)
    monkeypatch.setattr(tier, "write", lambda *_: goes_on.wait(60))
    writer = DiskWriter(tier, "model")
    writer.submit(MODULES[0], rows_of(0))
    with pytest.raises(CacheError, match=r"^the disk has written no module for 0\.1 s: check the disk"):
        writer.wait()
    writer.close()
    goes_on.set()
    writer._thread.join(20)
