"""A disk that gets full, by the desk or by others: encoded passages make room, and everything else goes on."""

import shutil
from pathlib import Path

import pytest
from desks import finish, small_desk, write_pages
from full_disk import SmallDisk
from waiting import wait_until

import cache.memory.disk_writer
from app.api.metrics import Meter
from app.cli.reports import print_overview
from app.desk.repeating import make_room
from app.storage.lock import lock_data_folder

FLOOR = 1 << 20
QUESTION = "How long do returns take?"


def test_a_small_disk_under_ingest_answers_and_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Was wrong once: encoded passages took the last byte of the disk from the database."""
    disk = SmallDisk(tmp_path, 1 << 40)
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    monkeypatch.setattr(cache.memory.disk_writer, "LOOK_S", 0.02)
    with small_desk(tmp_path / "desk", disk_floor=FLOOR) as desk:
        modules = desk.settings.modules_folder
        desk.ingest([write_pages(tmp_path / "pages")])
        desk.engine.flush()
        kept = len([*modules.iterdir()])
        assert kept > 1
        said = finish(desk, QUESTION).answer
        overview = desk.overview()
        assert overview.disk_space is not None
        assert not overview.disk_space.is_short
        disk.others = disk.usage().free - FLOOR + desk.overview().tier_bytes["disk"] // 2  # somebody else's
        wait_until(lambda: 0 < len([*modules.iterdir()]) < kept)
        assert finish(desk, QUESTION).answer == said
        disk.others = disk.total
        wait_until(lambda: not [*modules.iterdir()])
        desk.forget("returns.md")
        desk.ingest([tmp_path / "pages"])
        desk.engine.flush()
        assert [*modules.iterdir()] == []
        assert finish(desk, QUESTION).answer
        overview = desk.overview()
        assert overview.disk_space is not None
        assert overview.disk_space.is_short
        print_overview(overview)
        assert "the disk is nearly full" in capsys.readouterr().out
        text = Meter(desk).text().decode()
        assert "warmdesk_disk_floor_bytes 1.048576e+06" in text
        assert 'warmdesk_unwritten_passages_total{reason="failed"} 0' not in text
        assert desk.back_up(tmp_path / "backup.tar.gz").file.is_file()


def test_a_desk_that_opens_on_a_full_disk_makes_room_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Was wrong once: it did not open, beside gigabytes that may go."""
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), disk_floor=FLOOR) as desk:
        desk.engine.flush()
        settings = desk.settings
    assert [*settings.modules_folder.iterdir()]
    disk = SmallDisk(tmp_path, 1 << 40)
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    make_room(settings)
    assert [*settings.modules_folder.iterdir()]
    disk.others = disk.total
    with lock_data_folder(settings.data_dir, "test", lambda: make_room(settings)):
        assert not [*settings.modules_folder.iterdir()]
