"""The database's history: every earlier revision leads to the tables, in one transaction or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from app.domain.errors import DeskError
from app.storage import migrations, tables
from app.storage.database import Database, open_database


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
