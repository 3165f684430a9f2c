"""Backups: made beside a desk that writes, checked, refused where they are damaged, and put back."""

from __future__ import annotations

import errno
import io
import json
import sqlite3
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from desks import finish, small_desk, small_settings, write_pages
from fake_desk import FakeDesk

from app.cli.main import main
from app.desk.changes import Changes
from app.desk.doctor import data_folder, documents, run
from app.domain.callers import COMMAND_LINE
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage import archive, archiving, migrations, restoring, tables
from app.storage.archive import MANIFEST, ArchivedFile, Manifest, read_archive, write_archive
from app.storage.archiving import back_up_folder
from app.storage.database import open_database
from app.storage.lock import lock_data_folder
from app.storage.restoring import restore_folder
from app.web.command_socket import command_socket


@contextmanager
def served(folder: Path, desk: Any) -> Iterator[list[tuple[str, str, str]]]:
    """A desk that is served from a data folder; gives its audit log."""
    log: list[tuple[str, str, str]] = []
    changes = Changes(desk, lambda *entry: log.append(entry), COMMAND_LINE)
    with lock_data_folder(folder, "warmdesk serve"), command_socket(changes, folder):
        yield log


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command with --json; gives its document."""

    def call(*arguments: object) -> Any:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["warmdesk", *map(str, arguments), "--json"])
        with pytest.raises(SystemExit):
            main()
        return json.loads(capfd.readouterr().out)

    return call


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


def test_what_a_backup_holds(tmp_path: Path) -> None:
    settings = filled(tmp_path / "desk")
    made = back_up_folder(settings, tmp_path / "desk.tar.gz")
    assert names(made.manifest) == KEPT
    assert (made.left_out, made.note) == (("link.md",), "")
    assert (made.manifest.database, made.manifest.schema) == ("warmdesk.sqlite3", migrations.MIGRATIONS[-1].__name__)
    assert made.file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["desk", "desk.tar.gz"], "no scratch is left"
    more = back_up_folder(settings, tmp_path / "more.tar.gz", with_modules=True)
    assert names(more.manifest) == KEPT | {"modules/a.safetensors"}


def test_it_is_put_back_into_a_new_folder_which_may_be_elsewhere(tmp_path: Path) -> None:
    settings = filled(tmp_path / "desk")
    with closing(open_database(settings.database_url)) as database, database.write() as session:
        for path in (settings.data_dir / "uploads/shop/one.md", tmp_path / "desk-help/two.md"):
            session.execute(
                tables.DocumentRow.__table__.insert().values(
                    path=str(path), title="T", content_hash="h", loaded_at=tables.now(), num_passages=0, collection=""
                )
                if hasattr(tables, "now")
                else _document(str(path))
            )
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
