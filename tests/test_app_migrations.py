"""The database's history: every earlier revision leads to the tables, in one transaction or not at all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from app.cli.options import open_reader
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage import migrations, tables
from app.storage.database import Database, open_database
from app.storage.history import History


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "desk.sqlite3"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{path}")) as opened:
        yield opened


def schema(path: Path) -> dict[str, str]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {name: " ".join(sql.split()) for name, sql in rows if name not in ("migrations", "sqlite_sequence")}


def store(database: Database, key: str, value: str) -> None:
    with database.write() as session:
        session.add(tables.FactRow(key=key, value=value))


def test_migrations_lead_to_the_tables(database: Database, path: Path, tmp_path: Path) -> None:
    """A table changed without a migration fails here."""
    fresh = create_engine(f"sqlite:///{tmp_path / 'fresh'}")
    tables.Base.metadata.create_all(fresh)
    fresh.dispose()
    assert schema(path) == schema(tmp_path / "fresh")


@pytest.mark.parametrize("done", range(len(migrations.MIGRATIONS)))
def test_upgrade_from_every_earlier_revision(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    everything = migrations.MIGRATIONS
    monkeypatch.setattr(migrations.migrate, "__defaults__", (everything[:done],))
    open_database(f"sqlite:///{path}").close()
    monkeypatch.undo()
    open_database(f"sqlite:///{path}").close()
    open_database(f"sqlite:///{tmp_path / 'fresh'}").close()
    assert schema(path) == schema(tmp_path / "fresh")


def test_each_migration_runs_once_and_keeps_what_is_there(database: Database, path: Path) -> None:
    store(database, "a", "1")
    again = open_database(f"sqlite:///{path}")
    with closing(again), again.read() as session:
        names = session.scalars(text("SELECT name FROM migrations")).all()
        assert names == [migration.__name__ for migration in migrations.MIGRATIONS]
        assert session.get_one(tables.FactRow, "a").value == "1"


def test_documents_forgotten_before_it_was_recorded_are_known(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = migrations.MIGRATIONS
    before = [one.__name__ for one in everything].index("m013_forgotten_documents")
    monkeypatch.setattr(migrations.migrate, "__defaults__", (everything[:before],))
    with closing(open_database(f"sqlite:///{path}")) as database, database.write() as session:
        for statement in (
            "INSERT INTO conversations (id, title, created, updated) VALUES ('c', '', '2026-01-01', '2026-01-01')",
            "INSERT INTO messages (id, conversation_id, position, role, text, created) "
            "VALUES ('m', 'c', 0, 'assistant', '(removed)', '2026-01-01')",
            "INSERT INTO message_citations (message_id, rank, document, title, passage, quote, score) "
            "VALUES ('m', 0, '/gone.md', '', '', '(removed)', 1), ('m', 1, '/kept.md', '', '', 'text', 1)",
        ):
            session.execute(text(statement))
    monkeypatch.undo()
    with closing(open_database(f"sqlite:///{path}")) as database, database.read() as session:
        assert session.scalars(text("SELECT path FROM forgotten_documents")).all() == ["/gone.md"]


@pytest.fixture
def older(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of the revision before the latest, with one fact in it."""
    monkeypatch.setattr(migrations.migrate, "__defaults__", (migrations.MIGRATIONS[:-1],))
    with closing(open_database(f"sqlite:///{path}")) as database:
        store(database, "a", "1")
    monkeypatch.undo()
    return path


def test_a_reader_leaves_an_older_database_alone_and_says_what_to_do(older: Path) -> None:
    before, content = schema(older), older.read_bytes()
    with pytest.raises(DeskError, match=r"older Warmdesk.*restart `warmdesk serve`") as caught:
        open_database(f"sqlite:///{older}", upgrade=False)
    assert caught.value.code == "database-older"
    assert (schema(older), older.read_bytes(), list(older.parent.iterdir())) == (before, content, [older])


def test_commands_that_only_read_are_such_readers(older: Path) -> None:
    settings = Settings(data_dir=older.parent)
    older.rename(older.parent / "warmdesk.sqlite3")
    assert settings.database_url.endswith("/warmdesk.sqlite3")
    with pytest.raises(DeskError, match="older Warmdesk"), open_reader(settings):
        pass


def test_a_reader_opens_what_is_up_to_date_and_what_is_new(path: Path) -> None:
    for _ in range(2):
        with closing(open_database(f"sqlite:///{path}", upgrade=False)) as database, database.read() as session:
            assert session.scalars(text("SELECT value FROM facts")).all() == []
    assert list(path.parent.iterdir()) == [path]


def test_a_copy_is_made_before_a_migration_and_said_in_one_line(older: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = schema(older)
    open_database(f"sqlite:///{older}").close()
    copy = older.with_name(f"{older.name}.before-{migrations.MIGRATIONS[-1].__name__}")
    assert sorted(older.parent.iterdir()) == [older, copy]
    assert schema(copy) == before != schema(older)
    assert copy.stat().st_mode & 0o777 == 0o600
    [line] = caplog.messages
    assert str(copy) in line
    assert "\n" not in line
    caplog.clear()
    open_database(f"sqlite:///{older}").close()
    assert caplog.messages == []


def test_the_newest_copies_are_kept(older: Path) -> None:
    with closing(open_database(f"sqlite:///{older}")) as database:
        for number, name in enumerate(("m100_one", "m099_two", "m101_three")):
            database.back_up(name)
            os.utime(older.with_name(f"{older.name}.before-{name}"), (2**31 + number, 2**31 + number))
    assert {path.name.partition(".before-")[2] for path in older.parent.glob("*.before-*")} == {
        "m099_two",
        "m101_three",
    }


def test_a_copy_takes_the_place_of_the_database_again(older: Path) -> None:
    """Going back: the copy is what the version before wrote, and the next version can bring it up to date again."""
    before = schema(older)
    with closing(open_database(f"sqlite:///{older}")) as database:
        store(database, "later", "is lost")
    [copy] = older.parent.glob("*.before-*")
    copy.replace(older)
    assert schema(older) == before
    with closing(open_database(f"sqlite:///{older}")) as database, database.read() as session:
        assert "is lost" not in session.scalars(text("SELECT value FROM facts")).all()


def test_without_a_copy_there_is_no_migration(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = schema(older)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        open_database(f"sqlite:///{older}")
    assert (schema(older), list(older.parent.iterdir())) == (before, [older])


def test_forgetting_a_document_removes_the_copies(older: Path) -> None:
    with closing(open_database(f"sqlite:///{older}")) as database:
        assert len(list(older.parent.glob("*.before-*"))) == 1
        History(database).forget_document("/a.md")
    assert list(older.parent.iterdir()) == [older]


def test_failing_migration_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def m002_broken(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE half (a)"))
        raise ZeroDivisionError

    monkeypatch.setattr(migrations.migrate, "__defaults__", ((*migrations.MIGRATIONS, m002_broken),))
    with pytest.raises(ZeroDivisionError):
        open_database(f"sqlite:///{path}")
    assert schema(path) == {}


def test_newer_database_is_refused_and_left_alone(database: Database, path: Path) -> None:
    with database.write() as session:
        session.execute(text("INSERT INTO migrations (name) VALUES ('m999_future')"))
    before = schema(path)
    with pytest.raises(DeskError) as caught:
        open_database(f"sqlite:///{path}")
    error = caught.value
    assert error.code == "database-newer"
    assert "newer Warmdesk (m999_future)" in str(error)
    assert schema(path) == before


def test_tables_of_another_program_are_not_taken_over(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE documents (a)")
    connection.close()
    with pytest.raises(DeskError) as caught:
        open_database(f"sqlite:///{path}")
    error = caught.value
    assert error.code == "database-error"
    assert "table documents already exists" in str(error)
    assert list(schema(path)) == ["documents"]


def test_tables_can_be_written_for_postgresql() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for table in tables.Base.metadata.sorted_tables:
        assert str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            assert str(CreateIndex(index).compile(dialect=dialect))
