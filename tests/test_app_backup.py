"""Backups: made beside a desk that writes, checked, refused where they are damaged, and put back."""

import errno
import io
import json
import os
import re
import sqlite3
import tarfile
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from desks import finish, small_desk, write_pages
from killing import at_each_line, copy, kill_again, left_by_kills, tree
from refusals import one_line
from test_app_running_desk import served
from tiny_desk import small_settings

from app.access.identity import Keys
from app.desk.doctor import data_folder, documents, encoded_passages, run
from app.domain.callers import COMMAND_LINE
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage import archive as archiving
from app.storage import migrate, tables
from app.storage.archive import MANIFEST, Access, ArchivedFile, Manifest, back_up_folder, read_archive, restore_folder
from app.storage.data_folder import SWAP_FILE, lock_data_folder, undo_swap
from app.storage.database import open_database
from app.storage.files import old_copies
from app.storage.people import Accounts, Sessions


@pytest.fixture
def command(warmdesk):
    return lambda *words: json.loads(warmdesk(*words, "--json")[1])


def filled(folder: Path) -> Settings:
    """A data folder with a little of everything, without a model."""
    settings = Settings(data_dir=folder)
    folder.mkdir(parents=True, exist_ok=True)
    with closing(open_database(settings.database_url)) as database, database.write() as session:
        session.add(tables.FactRow(key="who", value="first"))
    for name, text in {
        "warmdesk.toml": f'visitor_secret = "{"s" * 40}"\n',
        "uploads/shop/one.md": "# One\n",
        "adapters/answers/adapter.safetensors": "weights",
        "passages.index": "vectors",
        "modules/a.safetensors": "keys and values",
        "models/big.gguf": "converted",
        "evals/vectors.npy": "measured",
        "warmdesk.sqlite3.before-m001": "older",
        "uploads/.upload-half": "half",
        "replaced-2026-01-01-000000/warmdesk.toml": "old",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link.md").symlink_to("/etc/hostname")
    return settings


def names(manifest: Manifest) -> set[str]:
    return {file.path for file in manifest.files}


def fact(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        [[value]] = connection.execute("SELECT value FROM facts WHERE key = 'who'").fetchall()
    return str(value)


KEPT = {
    *("warmdesk.sqlite3", "warmdesk.toml", "uploads/shop/one.md"),
    *("adapters/answers/adapter.safetensors", "passages.index"),
}


def test_what_a_backup_holds(tmp_path):
    settings = filled(tmp_path / "desk")
    made = back_up_folder(settings, tmp_path / "desk.tar.gz")
    assert names(made.manifest) == KEPT
    assert (made.left_out, made.note) == (("link.md",), "")
    assert (made.manifest.database, made.manifest.schema) == ("warmdesk.sqlite3", migrate.revisions()[-1].revision)
    assert made.file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["desk", "desk.tar.gz"], "no scratch is left"
    more = back_up_folder(settings, tmp_path / "more.tar.gz", with_modules=True)
    assert names(more.manifest) == KEPT | {"modules/a.safetensors"}


def test_it_is_put_back_into_a_new_folder_which_may_be_elsewhere(tmp_path):
    settings = filled(tmp_path / "desk")
    with closing(open_database(settings.database_url)) as database, database.write() as session:
        for path in (settings.data_dir / "uploads/shop/one.md", tmp_path / "desk-help/two.md"):
            when = datetime(2026, 1, 1, tzinfo=UTC)
            row = tables.DocumentRow(path=str(path), title="T", content_hash="h", loaded_at=when, num_passages=0)
            session.add(row)
    made = back_up_folder(settings, tmp_path / "desk.tar.gz")
    new = Settings(data_dir=tmp_path / "new")
    restored = restore_folder(new, made.file)
    assert restored.aside is None
    assert {path.relative_to(new.data_dir).as_posix() for path in new.data_dir.rglob("*") if path.is_file()} - {
        "warmdesk.lock"
    } == KEPT
    assert (new.data_dir / "warmdesk.toml").read_text() == (settings.data_dir / "warmdesk.toml").read_text()
    with closing(sqlite3.connect(new.data_dir / "warmdesk.sqlite3")) as connection:
        paths = {path for [path] in connection.execute("SELECT path FROM documents")}
    assert paths == {str(new.data_dir / "uploads/shop/one.md"), str(tmp_path / "desk-help/two.md")}


def test_a_restore_ends_sign_ins_and_names_who_may_come_in(tmp_path):
    settings = filled(tmp_path / "desk")
    with closing(open_database(settings.database_url)) as database:
        accounts, keys = Accounts(database), Keys(database)
        accounts.add("ann", "admin", "hash")
        ann = accounts.named("ann")
        assert ann is not None
        token = Sessions(database).start(ann)
        for name in ("old", "shop"):
            keys.create(name)
        keys.revoke("old")
    made = back_up_folder(settings, tmp_path / "desk.tar.gz")
    new = Settings(data_dir=tmp_path / "new")
    assert restore_folder(new, made.file).access == Access(("ann",), ("shop",))
    for one, is_signed_in in ((settings, True), (new, False)):
        with closing(open_database(one.database_url)) as database:
            assert (Sessions(database).account(token) is not None) == is_signed_in


def test_what_killed_processes_left_is_removed(tmp_path):
    settings = filled(tmp_path / "desk")
    for folder in (settings.data_dir, tmp_path):
        for name in (
            ".restore-half/warmdesk.sqlite3",
            ".upload-half/database",
        ):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text("what customers wrote")
    with lock_data_folder(settings.data_dir, "test"):
        pass
    assert [path.name for path in settings.data_dir.glob(".*")] == []
    back_up_folder(settings, tmp_path / "one.tar.gz")
    assert (tmp_path / ".upload-half").exists(), "somebody may be writing it"
    os.utime(tmp_path / ".upload-half/database", (0, 0))
    back_up_folder(settings, tmp_path / "two.tar.gz")
    assert not (tmp_path / ".upload-half").exists()
    assert old_copies(settings.data_dir) == [str(settings.data_dir / "replaced-2026-01-01-000000")]


def test_what_is_there_is_kept_aside_and_only_with_force(tmp_path):
    settings = filled(tmp_path / "desk")
    made = back_up_folder(settings, tmp_path / "desk.tar.gz")
    with closing(open_database(settings.database_url)) as database, database.write() as session:
        session.get_one(tables.FactRow, "who").value = "second"
    with one_line("data-folder-not-empty", "not empty"):
        restore_folder(settings, made.file)
    assert fact(settings.data_dir / "warmdesk.sqlite3") == "second"
    aside = restore_folder(settings, made.file, force=True).aside
    assert aside is not None
    assert (fact(settings.data_dir / "warmdesk.sqlite3"), fact(aside / "warmdesk.sqlite3")) == ("first", "second")
    assert not (settings.data_dir / "modules").exists(), "they may be of documents that are not there any more"
    assert (settings.data_dir / "models" / "big.gguf").exists(), "no backup holds these"
    assert (settings.data_dir / "replaced-2026-01-01-000000").is_dir()
    assert not list(settings.data_dir.glob(".restore-*"))
    aside = [restore_folder(settings, made.file, force=True).aside for _ in range(3)]  # within one second
    assert len({*aside}) == 3, "was wrong once: the second failed"
    assert all(one is not None and (one / "warmdesk.sqlite3").is_file() for one in aside)
    with lock_data_folder(settings.data_dir, "warmdesk serve"), one_line("data-folder-in-use"):
        restore_folder(settings, made.file, force=True)


def test_a_failure_while_it_takes_its_place_changes_nothing(tmp_path, monkeypatch):
    settings = filled(tmp_path / "desk")
    made = back_up_folder(settings, tmp_path / "desk.tar.gz")
    before = sorted(settings.data_dir.rglob("*"))
    rename, failed = Path.rename, list[Path]()

    def failing(path: Path, target: Path) -> Path:
        if target == settings.data_dir / "uploads" and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(DeskError, match="Input/output error"):
        restore_folder(settings, made.file, force=True)
    monkeypatch.undo()
    assert failed
    assert [path for path in sorted(settings.data_dir.rglob("*")) if path.name != "warmdesk.lock"] == before


def test_what_is_uploaded_while_the_database_is_copied_is_whole(tmp_path, monkeypatch):
    settings = filled(tmp_path / "desk")
    copy_database = archiving.copy_database

    def meanwhile(database: Path, copy: Path) -> str | None:
        (settings.uploads_folder / "new.md").write_text("# New")
        return copy_database(database, copy)

    monkeypatch.setattr(archiving, "copy_database", meanwhile)
    assert "uploads/new.md" in names(back_up_folder(settings, tmp_path / "desk.tar.gz").manifest)


def test_a_database_that_the_desk_would_not_use_is_not_put_back_unsaid(tmp_path):
    settings = filled(tmp_path / "desk")
    made = back_up_folder(settings, tmp_path / "desk.tar.gz")
    for url in (f"sqlite:///{tmp_path}/other.sqlite3", "postgresql://desk:secret@db/desk"):
        with pytest.raises(DeskError, match="database_url names another one") as caught:
            restore_folder(Settings(data_dir=tmp_path / "new", database_url=url), made.file)
        assert "secret" not in str(caught.value)
        assert not (tmp_path / "new").exists()
    assert restore_folder(Settings(data_dir=tmp_path / "new"), made.file).note == ""
    url = f"sqlite:///{tmp_path}/outside.sqlite3"
    open_database(url).close()
    settings.settings_file.write_text(f'database_url = "{url}"\n')
    made = back_up_folder(settings.model_copy(update={"database_url": url}), tmp_path / "outside.tar.gz")
    note = restore_folder(Settings(data_dir=tmp_path / "newer"), made.file).note
    assert f"names another database than {tmp_path}/newer/warmdesk.sqlite3" in note


def test_a_restore_that_is_killed_is_undone_or_whole(tmp_path):
    """Killed at each line, and again while it is undone. Was wrong once: the second kill lost the database."""
    settings = filled(tmp_path / "desk")
    folder, made = settings.data_dir, back_up_folder(settings, tmp_path / "desk.tar.gz")
    (folder / "uploads/shop/one.md").write_text("# Other")
    before = tree(folder)
    left = left_by_kills(folder, tmp_path / "one", lambda: restore_folder(settings, made.file, force=True))
    after = tree(folder)
    assert before != after

    def finish(killed: Path) -> None:
        with lock_data_folder(folder, "test"):
            pass
        is_whole = tree(killed).keys() >= after.keys() and not (killed / SWAP_FILE).exists()
        assert tree(folder) == (after if is_whole else before)

    assert len(left) > 15
    kill_again(left, folder, tmp_path / "two", finish)


def test_a_restore_that_is_interrupted_twice_is_undone(tmp_path, monkeypatch):
    """At every ninth line, and again at one of those that undo it, with Ctrl-C: what cleans up then still runs."""
    settings = filled(tmp_path / "desk")
    folder, made = settings.data_dir, back_up_folder(settings, tmp_path / "desk.tar.gz")
    (folder / "uploads/shop/one.md").write_text("# Other")
    copy(folder, tmp_path / "copy")
    before = tree(folder)

    for first in range(1, 200, 9):
        left = {"swap": first, "undo_swap": first * 7 % 40}

        def interrupt(frame: FrameType, left: dict[str, int] = left) -> None:
            left[frame.f_code.co_name] = left.get(frame.f_code.co_name, 0) - 1
            if left[frame.f_code.co_name] == 0:
                raise KeyboardInterrupt

        def undone(folder: Path, interrupt: Callable[[FrameType], None] = interrupt) -> bool:
            with at_each_line(interrupt):  # again, because an exception ends it
                return undo_swap(folder)

        with suppress(KeyboardInterrupt), monkeypatch.context() as context, at_each_line(interrupt):
            context.setattr("app.storage.data_folder.undo_swap", undone)
            restore_folder(settings, made.file, force=True)
        if not (folder / SWAP_FILE).exists() and (folder / "uploads/shop/one.md").read_text() == "# One\n":
            break  # it was over
        with lock_data_folder(folder, "test"):
            pass
        assert tree(folder) == before, first
        copy(tmp_path / "copy", folder)
    assert 20 < first < 199


def test_where_no_backup_is_written(tmp_path):
    settings = filled(tmp_path / "desk")
    (tmp_path / "there.tar.gz").write_text("something else")
    for file, code in (
        (settings.data_dir / "own.tar.gz", "backup-inside"),
        (tmp_path / "there.tar.gz", "file-exists"),
        (tmp_path / "nowhere" / "a.tar.gz", "no-such-file"),
    ):
        with one_line(code):
            back_up_folder(settings, file)
    assert (tmp_path / "there.tar.gz").read_text() == "something else"
    back_up_folder(settings, tmp_path / "there.tar.gz", overwrite=True)
    assert names(read_archive(tmp_path / "there.tar.gz")) == KEPT


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    settings = filled(tmp_path / "desk")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DeskError, match="the disk is full") as caught:
        back_up_folder(settings, tmp_path / "desk.tar.gz")
    assert (caught.value.code, list(tmp_path.iterdir())) == ("disk-full", [tmp_path / "desk"])
    monkeypatch.undo()
    connect = sqlite3.connect

    def small(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        if path.name == "database":
            connection.execute("PRAGMA max_page_count = 1")
        return connection

    monkeypatch.setattr(archiving.sqlite3, "connect", small)
    with one_line("disk-full", "the disk is full"):
        back_up_folder(settings, tmp_path / "desk.tar.gz")
    assert list(tmp_path.iterdir()) == [tmp_path / "desk"]


def test_a_damaged_database_is_not_backed_up(tmp_path):
    settings = filled(tmp_path / "desk")
    file = settings.data_dir / "warmdesk.sqlite3"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET rootpage = 2 WHERE name = 'facts'")
        connection.commit()
    with pytest.raises(DeskError, match=rf"^the database {file} (is damaged|cannot be copied)[^\n]+$"):
        back_up_folder(settings, tmp_path / "desk.tar.gz")
    assert list(tmp_path.iterdir()) == [tmp_path / "desk"]


def packed(file: Path, *members: tuple[tarfile.TarInfo, bytes], **about: object) -> Path:
    files = tuple(ArchivedFile(one.name, len(data), sha256(data).hexdigest()) for one, data in members)
    manifest: dict[str, Any] = {
        **{"format": 1, "version": "0.1.0", "created": "2026-01-01T00:00:00+00:00", "folder": "/desk"},
        **{"database": None, "schema": None, "with_modules": False, "files": files},
    }
    last = archiving._MANIFESTS.dump_json(Manifest(**manifest | about))
    with tarfile.open(file, "w:gz") as out:
        for member, data in (*members, (tarfile.TarInfo(MANIFEST), last)):
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return file


def named(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.mark.parametrize(
    "member",
    [
        *(named(name) for name in ("../out.txt", "/tmp/out.txt", "a/../../out.txt", "./a", "a//b")),
        *(named("link", kind, "/etc/passwd") for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)),
        *(named("thing", kind) for kind in (tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)),
    ],
    ids=lambda member: f"{member.name} {member.type!r}",
)
def test_nothing_is_written_outside_of_the_folder(tmp_path, member):
    file = packed(tmp_path / "bad.tar.gz", (member, b""))
    with pytest.raises(DeskError) as caught:
        restore_folder(Settings(data_dir=tmp_path / "a" / "desk"), file)
    assert (caught.value.code, list(tmp_path.iterdir())) == ("archive-damaged", [file])


@pytest.mark.parametrize(
    "name", ["models/decoder-1.so", "Models/decoder-1.so", "evals/vectors.npy", "warmdesk.swap.json", ".restore-1/a"]
)
def test_what_no_backup_holds_is_not_put_back(tmp_path, name):
    """Was wrong once: compiled code in models/ was restored, and run at the next start."""
    file = packed(tmp_path / "bad.tar.gz", (named("uploads/a.md"), b"# A"), (named(name), b"code"))
    with pytest.raises(DeskError, match=re.escape(f"contains {name!r}, so it is not a backup")) as caught:
        restore_folder(Settings(data_dir=tmp_path / "desk"), file)
    assert (caught.value.code, list(tmp_path.iterdir())) == ("archive-damaged", [file])


def test_an_archive_is_read_to_its_end_before_anything_is_changed(tmp_path):
    settings = filled(tmp_path / "desk")
    whole = back_up_folder(settings, tmp_path / "desk.tar.gz").file.read_bytes()
    bad = tmp_path / "bad.tar.gz"
    with tarfile.open(tmp_path / "desk.tar.gz") as opened:
        contents = [(member, opened.extractfile(member).read()) for member in opened]  # type: ignore[union-attr]

    def again(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for member, data in members:
                archive.addfile(member, io.BytesIO(data))
        return out.getvalue()

    first, *rest = contents
    altered = bytes([first[1][0] ^ 1]) + first[1][1:]
    for data in (
        *(whole[:end] for end in (0, 10, len(whole) // 2, len(whole) - 1)),
        whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:],  # the checksum: another bit may mean the same
        again(rest),
        again([(first[0], altered), *rest]),
        again(contents[:-1]),
        again([*contents, (named("later"), b"")]),
        again([first, first, *rest]),
        again([*contents[:-1], (named("more"), b""), contents[-1]]),
        b"no archive at all",
    ):
        bad.write_bytes(data)
        with pytest.raises(DeskError) as caught:
            restore_folder(settings, bad, force=True)
        assert caught.value.code == "archive-damaged", caught.value
        assert "\n" not in str(caught.value)
    assert fact(settings.data_dir / "warmdesk.sqlite3") == "first"
    assert len(list(settings.data_dir.glob("replaced-*"))) == 1, "the one of the beginning"


@pytest.mark.parametrize("about", [{"format": 2}, {"version": "99.0"}, {"schema": "m999_later"}])
def test_an_archive_of_a_newer_version_is_one_clear_line(tmp_path, about):
    file = packed(tmp_path / "newer.tar.gz", **about)
    with pytest.raises(DeskError, match="newer Warmdesk") as caught:
        restore_folder(Settings(data_dir=tmp_path / "desk"), file)
    assert (caught.value.code, list(tmp_path.iterdir())) == ("archive-newer", [file])


def test_a_database_on_a_server_is_named_with_its_tool(tmp_path):
    filled(tmp_path / "desk")
    settings = Settings(data_dir=tmp_path / "desk", database_url="postgresql://desk:secret@db/desk")
    made = back_up_folder(settings, tmp_path / "desk.tar.gz")
    assert "pg_dump" in made.note
    assert "secret" not in made.note
    assert (made.manifest.database, made.manifest.schema) == (None, None)
    restore_folder(Settings(data_dir=tmp_path / "new"), made.file)


def test_a_backup_of_a_desk_that_writes_is_one_moment_of_it(tmp_path):
    """Each transaction writes two facts that agree."""
    settings = filled(tmp_path / "desk")
    stop, is_writing = threading.Event(), threading.Event()

    def write() -> None:
        number = 0
        with closing(open_database(settings.database_url)) as database:
            while not stop.is_set():
                number += 1
                with database.write() as session:
                    for key in ("one", "two"):
                        session.merge(tables.FactRow(key=key, value=str(number) * 2000))
                is_writing.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert is_writing.wait(20)
        made = [back_up_folder(settings, tmp_path / f"{number}.tar.gz") for number in range(3)]
    finally:
        stop.set()
        writer.join(20)
    for number, one in enumerate(made):
        restore_folder(Settings(data_dir=tmp_path / f"new{number}"), one.file)
        with closing(sqlite3.connect(tmp_path / f"new{number}" / "warmdesk.sqlite3")) as connection:
            rows = connection.execute("SELECT value FROM facts WHERE key IN ('one', 'two')").fetchall()
        assert len(rows) == 2
        assert len(set(rows)) == 1


@pytest.mark.parametrize("is_served", [True, False])
def test_a_restored_desk_answers_as_before_and_is_healthy(tmp_path, command, is_served):
    question, file = "How long do returns take?", tmp_path / "desk.tar.gz"
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages")) as desk:
        before = finish(desk, question)
        if is_served:
            with served(tmp_path / "desk", desk) as log:
                made = command("backup", file, "--data-dir", tmp_path / "desk")
            assert log == [(COMMAND_LINE, "backup", str(file))]
    if not is_served:
        made = command("backup", file, "--data-dir", tmp_path / "desk")
    assert (made["backup"], made["with_modules"], made["database"]) == (str(file), False, "warmdesk.sqlite3")
    assert (made["bytes"], made["version"], made["note"]) == (file.stat().st_size, "0.1.0", "")
    again = command("backup", file, "--data-dir", tmp_path / "desk")
    assert again["error"]["code"] == "file-exists"
    restored = command("restore", file, "--data-dir", tmp_path / "new")
    assert (restored["restored"], restored["aside"], restored["files"]) == (str(tmp_path / "new"), None, made["files"])
    for check in (data_folder, documents):
        assert run(check, small_settings(tmp_path / "new")).ok
    assert re.match(r"0 of [1-9]\d* on disk, 0 MB", run(encoded_passages, small_settings(tmp_path / "new")).detail)
    with small_desk(tmp_path / "new") as desk:
        after = finish(desk, question)
        assert (after.answer, after.citations) == (before.answer, before.citations)
        assert len(desk.conversations("operator")) == 2
