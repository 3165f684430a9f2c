"""A small disk that gets full, by the desk or by others: encoded passages make room, and everything else goes on."""

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from desks import finish, small_desk, write_pages
from waiting import wait_until

import cache.memory.background
from app.api.metrics import Meter
from app.cli.reports import print_overview
from app.desk.disk_room import make_room
from app.domain.errors import DeskError
from app.storage.data_folder import lock_data_folder
from cache.memory.disk import free_space

DISK, FLOOR = 8 << 20, 1 << 20
QUESTION = "How long do returns take?"


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    size = f"size={DISK},mode=700"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("this user may mount no file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, leave: int) -> None:
    """Somebody else's file takes all but this much, in place of the one before."""
    (disk / "others").unlink(missing_ok=True)
    with suppress(OSError), open(disk / "others", "wb") as others:
        while (room := free_space(disk, 0).free - leave) > 0:
            others.write(bytes(min(room, 1 << 16)))
            others.flush()


def test_a_small_disk_under_ingest_answers_and_a_backup(disk, monkeypatch, capsys, pages):
    """Was wrong once: encoded passages took the last byte of the disk from the database."""
    monkeypatch.setattr(cache.memory.background, "LOOK_S", 0.02)
    with small_desk(disk / "desk", disk_floor=FLOOR) as desk:
        modules = desk.settings.modules_folder
        desk.ingest([pages])
        desk.engine.flush()
        kept = len([*modules.iterdir()])
        assert kept > 1
        said = finish(desk, QUESTION).answer
        overview = desk.overview()
        assert overview.disk_space is not None
        assert not overview.disk_space.is_short
        fill(disk, FLOOR - overview.tier_bytes["disk"] // 2)
        wait_until(lambda: 0 < len([*modules.iterdir()]) < kept)
        assert finish(desk, QUESTION).answer == said
        fill(disk, FLOOR // 2)
        wait_until(lambda: not [*modules.iterdir()])
        desk.forget("returns.md")
        desk.ingest([pages])
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
        assert desk.back_up(disk / "backup.tar.gz").file.is_file()


def test_a_disk_without_a_free_byte_is_one_line_until_there_is_room(disk, pages):
    with small_desk(disk / "desk", disk_floor=FLOOR) as desk:
        desk.ingest([pages])
        said = finish(desk, QUESTION)
        wait_until(lambda: desk.missing() == ())
        (pages / "more.md").write_text("# More\n\nThe desk opens at nine.\n")
        before = [*disk.rglob("*")]
        for _ in range(3):  # the log of the database has some room of its own
            fill(disk, 0)
            with suppress(DeskError):
                finish(desk, QUESTION)
        for work in (
            lambda: finish(desk, QUESTION),
            lambda: desk.ingest([pages]),
            lambda: desk.back_up(disk / "b.tar.gz"),
        ):
            fill(disk, 0)
            with pytest.raises((DeskError, OSError), match=r"disk is full|No space left") as caught:
                work()
            assert "\n" not in str(caught.value)
        fill(disk, DISK)
        assert finish(desk, QUESTION).answer == said.answer
        assert desk.ingest([pages]).failed == []
        assert len(desk.documents()) == 5
        assert {*disk.rglob(".*")} <= {*before}, "files that were begun"
        assert desk.back_up(disk / "b.tar.gz").file.is_file()


def test_a_desk_that_opens_on_a_full_disk_makes_room_first(disk, tmp_path):
    """Was wrong once: it did not open, beside gigabytes that may go."""
    with small_desk(disk / "desk", disk_floor=FLOOR) as desk:
        desk.ingest([write_pages(tmp_path / "pages")])
        desk.engine.flush()
        settings = desk.settings
    make_room(settings)
    assert [*settings.modules_folder.iterdir()]
    fill(disk, 0)
    with lock_data_folder(settings.data_dir, "test", lambda: make_room(settings)):
        assert not [*settings.modules_folder.iterdir()]
