"""The database: transactions, and one clear line for whatever can be wrong with a file.

Read-only files and full disks are real ones to SQLite (mode=ro, max_page_count): permission bits do not stop
root, as which the tests may run.
"""

import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from refusals import one_line
from sqlalchemy import event, select
from sqlalchemy.exc import IntegrityError

from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage import sqlite, tables
from app.storage.database import Database, open_database

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "desk.sqlite3"


def store(database: Database, key: str, value: str) -> None:
    with database.write() as session:
        session.add(tables.FactRow(key=key, value=value))


def refused(url: str) -> DeskError:
    with pytest.raises(DeskError) as caught:
        open_database(url).close()
    assert "\n" not in str(caught.value)
    return caught.value


def test_read_then_write_in_many_threads_loses_nothing(database: Database) -> None:
    """A deferred transaction fails here at once: its snapshot is stale when it comes to write."""
    failures: list[Exception] = []

    def raise_it() -> None:
        try:
            for _ in range(25):
                with database.write() as session:
                    fact = session.get(tables.FactRow, "n") or tables.FactRow(key="n", value="0")
                    session.merge(tables.FactRow(key="n", value=str(int(fact.value) + 1)))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=raise_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with database.read() as session:
        assert session.get_one(tables.FactRow, "n").value == "100"


def test_a_read_is_one_view_and_does_not_stop_a_write(database: Database) -> None:
    with database.read() as reader:
        assert reader.scalar(select(tables.FactRow.value)) is None
        with database.write() as writer:
            writer.add(tables.FactRow(key="a", value="1"))
        assert reader.scalar(select(tables.FactRow.value)) is None
    with database.read() as reader:
        assert reader.scalar(select(tables.FactRow.value)) == "1"


def test_broken_constraints_stay_what_they_are(database: Database) -> None:
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(tables.MessageRow(id="m", conversation_id="none", position=0, role="user", text="", created=NOW))


def test_times_come_back_aware_and_equal(database: Database) -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=9)))
    with database.write() as session:
        session.add(tables.ConversationRow(id="c", title="", created=elsewhere, updated=NOW))
    with database.read() as session:
        row = session.get_one(tables.ConversationRow, "c")
        assert (row.created, row.updated) == (NOW, NOW)
        assert row.created.tzinfo is UTC


@pytest.mark.parametrize(
    ("given", "stored"),
    [("Grüße 退款 😀\r\n", "Grüße 退款 😀\r\n"), ("half \ud83d pair", "half \\ud83d pair"), ("a\0b", "a\\x00b")],
)
def test_any_text_can_be_stored_and_found(database: Database, given: str, stored: str) -> None:
    with database.write() as session:
        session.add(tables.FactRow(key=given, value=given))
    with database.read() as session:
        assert session.scalar(select(tables.FactRow.value).where(tables.FactRow.key == given)) == stored


def test_folder_with_an_awkward_name(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "a b%20c?x=1#é'")
    settings.data_dir.mkdir()
    open_database(settings.database_url).close()
    assert [file.name for file in settings.data_dir.iterdir()] == ["warmdesk.sqlite3"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("desk.sqlite3", "the database URL is not valid"),
        ("nosuch://host/desk", "unknown kind of database"),
        ("sqlite://", "a database in memory"),
        ("sqlite:///:memory:", "a database in memory"),
        ("sqlite:///file:desk?mode=memory&uri=true", "a database in memory"),
        ("postgresql+psycopg2cffi://me:secret@host/desk", "needs the Python package psycopg2cffi"),
    ],
)
def test_urls_that_are_no_use(url: str, words: str) -> None:
    error = refused(url)
    assert error.code == "database-url"
    assert words in str(error)
    assert "secret" not in str(error)


def test_not_a_database(path: Path) -> None:
    path.write_bytes(b"Dear diary" * 1000)
    error = refused(f"sqlite:///{path}")
    assert error.code == "database-damaged"
    assert f"the database {path} is not a database" in str(error)


def test_a_damaged_database_and_a_missing_folder(path: Path) -> None:
    open_database(f"sqlite:///{path}").close()
    data = bytearray(path.read_bytes())
    data[200:] = b"\xaa" * (len(data) - 200)
    path.write_bytes(data)
    assert refused(f"sqlite:///{path}").code == "database-damaged"
    assert refused(f"sqlite:///{path.parent}/none/desk.sqlite3").code == "database-unreachable"


def test_read_only(path: Path) -> None:
    open_database(f"sqlite:///{path}").close()
    read_only = open_database(f"sqlite:///file:{path}?mode=ro&uri=true")
    with closing(read_only):
        with read_only.read() as session:
            assert session.scalar(select(tables.FactRow.value)) is None
        with pytest.raises(DeskError, match="is read-only") as caught:
            store(read_only, "a", "1")
    assert caught.value.code == "database-read-only"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_full_disk_undoes_the_transaction(database: Database) -> None:
    def limit(raw: sqlite3.Connection, entry: object) -> None:
        raw.execute("PRAGMA max_page_count = 60").close()

    event.listen(database.engine, "connect", limit)
    database.engine.dispose()
    with one_line("disk-full", "the disk is full"):
        store(database, "big", "x" * 500_000)
    with database.read() as session:
        assert session.scalars(select(tables.FactRow.key)).all() == []


def test_another_writer_does_not_finish(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_database(f"sqlite:///{path}").close()
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 50)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert refused(f"sqlite:///{path}").code == "database-busy"
    finally:
        other.close()


def test_closing_leaves_one_file(path: Path) -> None:
    database = open_database(f"sqlite:///{path}")
    store(database, "a", "1")
    assert len(list(path.parent.iterdir())) == 3
    database.close()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_deleted_text_is_gone_from_the_disk(database: Database, path: Path) -> None:
    def on_disk() -> bool:
        return any(b"4929-secret-number" in file.read_bytes() for file in path.parent.iterdir())

    store(database, "a", "4929-secret-number" * 1000)
    assert on_disk()
    with database.write() as session:
        session.delete(session.get_one(tables.FactRow, "a"))
    assert on_disk(), "otherwise flush_log would not be needed"
    database.flush_log()
    assert not on_disk()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_deleted_text_waits_in_the_log_for_a_reader_and_holds_up_nobody(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 600_000)  # who waited so long would not end
    store(database, "a", "1")
    log = path.with_name(f"{path.name}-wal")
    with database.read() as reader:
        reader.scalars(select(tables.FactRow.key)).all()
        store(database, "b", "2")
        flushing = threading.Thread(target=database.flush_log)
        flushing.start()
        flushing.join(60)
        assert not flushing.is_alive()
        assert log.stat().st_size
        database.tidy()
        assert log.stat().st_size
    database.tidy()
    assert not log.stat().st_size
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    database.flush_log()
    other.close()
