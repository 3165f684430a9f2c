"""The data folder's lock: one process at a time, and free again however a process ends.

Permission bits do not stop root, as which the tests may run, so an unwritable folder is a simulated system
error.
"""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from app.domain.errors import DeskError
from app.storage.data_folder import lock_data_folder

HOLD = """
import sys
from pathlib import Path
from app.storage.data_folder import lock_data_folder
with lock_data_folder(Path(sys.argv[1]), "warmdesk serve"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder; killed at the end at the latest."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def refused(folder: Path) -> DeskError:
    with pytest.raises(DeskError) as caught, lock_data_folder(folder, "warmdesk ask"):
        pass
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def test_second_process_is_told_who_is_in_the_way(tmp_path):
    with holder(tmp_path) as process:
        since = json.loads((tmp_path / "warmdesk.lock.json").read_text())["since"][-5:]
        error = refused(tmp_path)
    assert error.code == "data-folder-in-use"
    assert f"in use by process {process.pid} (warmdesk serve, since {since}): stop it" in str(error)


def test_killed_process_leaves_the_folder_free(tmp_path):
    with holder(tmp_path) as process:
        process.kill()  # SIGKILL: nothing of ours runs any more
        process.wait()
        assert (tmp_path / "warmdesk.lock.json").exists()
        with lock_data_folder(tmp_path, "warmdesk ask"):
            assert json.loads((tmp_path / "warmdesk.lock.json").read_text())["pid"] == os.getpid()


def test_free_after_the_block_and_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), lock_data_folder(tmp_path, "warmdesk ingest"):
        _ = 1 / 0
    for _ in range(2):
        with lock_data_folder(tmp_path, "warmdesk ingest"):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["warmdesk.lock"]


def test_who_looks_whether_a_folder_is_held_is_in_nobodys_way(tmp_path, monkeypatch):
    monkeypatch.setattr("app.storage.data_folder.LOOKED_S", 30)
    look = FileLock(tmp_path / "warmdesk.lock", thread_local=False)
    look.acquire()
    threading.Timer(0.05, look.release).start()
    with lock_data_folder(tmp_path, "warmdesk serve"):
        pass


def test_the_note_of_a_holder_may_be_missing_or_of_an_earlier_day(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    with lock_data_folder(tmp_path, "warmdesk serve"):
        for folder in (tmp_path, tmp_path, tmp_path / "link"):  # a refusal does not disturb the holder
            assert f"process {os.getpid()} (warmdesk serve" in str(refused(folder))
        for text in ("", "[]", '{"pid": 1}', '{"pid": null, "purpose": "x", "since": "2026-01-01T10:00"}'):
            (tmp_path / "warmdesk.lock.json").write_text(text)
            assert "in use by another process: stop it" in str(refused(tmp_path))
        note = {"pid": 7, "purpose": "warmdesk serve", "since": "2020-02-03T10:42"}
        (tmp_path / "warmdesk.lock.json").write_text(json.dumps(note))
        assert "(warmdesk serve, since 2020-02-03 10:42)" in str(refused(tmp_path))


def test_only_this_user_may_enter_a_folder_also_one_that_is_made(tmp_path):
    (tmp_path / "desk").mkdir(mode=0o755)
    for folder in (tmp_path / "deep" / "desk", tmp_path / "desk"):
        with lock_data_folder(folder, "warmdesk serve"):
            assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_somebody_else_that_may_be_written_is_used(tmp_path, monkeypatch):
    def refuse(folder: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    tmp_path.chmod(0o770)
    monkeypatch.setattr(Path, "chmod", refuse)
    with lock_data_folder(tmp_path, "warmdesk serve"):
        assert tmp_path.stat().st_mode & 0o777 == 0o770


def test_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "desk").write_text("")
    for folder in (tmp_path / "desk", tmp_path / "desk" / "below"):
        error = refused(folder)
        assert error.code == "data-folder-unusable"
        assert "a file is in its place" in str(error)


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (errno.EACCES, "data-folder-unusable", "Permission denied"),
        (errno.EROFS, "data-folder-unusable", "Read-only file system"),
        (errno.ENOSPC, "disk-full", "the disk is full"),
    ],
)
@pytest.mark.parametrize("where", ["mkdir", "replace"])
def test_folder_that_cannot_be_written(tmp_path, monkeypatch, where, number, code, words):
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path))

    monkeypatch.setattr(Path, where, fail)
    error = refused(tmp_path)
    monkeypatch.undo()
    assert error.code == code
    assert words in str(error)
    with lock_data_folder(tmp_path, "warmdesk ask"):
        pass  # the failure has left nothing locked
