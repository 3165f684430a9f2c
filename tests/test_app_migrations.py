"""The database's history: every earlier revision leads to the tables, in one transaction or not at all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from postgres_server import EMPTY, PostgresServer
from sqlalchemy import Connection, DateTime, LargeBinary, bindparam, create_engine, inspect, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL
from sqlalchemy.schema import CreateIndex, CreateTable

from app.cli.options import open_reader
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage import migrations, tables
from app.storage.conversation_care import ConversationCare
from app.storage.database import Database, open_database
from app.storage.history import History
from app.storage.library import Library
from app.storage.statistics import Statistics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "desk.sqlite3"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{path}")) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables, of either kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'desk.sqlite3'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database(EMPTY) as url:
        yield url


def table_names(url: str) -> list[str]:
    engine = create_engine(url)
    try:
        return inspect(engine).get_table_names()
    finally:
        engine.dispose()


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


FIRST_ROWS = (
    "INSERT INTO documents (path, title, content_hash, loaded_at, num_passages) "
    "VALUES ('/退款.md', 'Rückgabe', 'h', :now, 1)",
    "INSERT INTO passages (document_id, ordinal, heading_path, text, content_hash, num_tokens, embedding, module_key) "
    "VALUES (1, 0, '[\"Grüße\"]', 'Thirty days.', 'h', 3, :vector, 'b2:one')",
    "INSERT INTO conversations (id, title, created, updated) VALUES ('c', '退款?', :now, :now)",
    "INSERT INTO messages (id, conversation_id, position, role, text, created, refused) "
    "VALUES ('q', 'c', 0, 'user', '退款?', :now, false)",
    "INSERT INTO messages (id, conversation_id, position, role, question_id, text, tokens, created, refused, "
    "finish_reason, policy, exact) VALUES ('a', 'c', 1, 'assistant', 'q', 'Thirty days.', '[1, 2]', :now, false, "
    "'stop', 'fast', false)",
    "INSERT INTO message_citations (message_id, rank, document, title, passage, quote, score) "
    "VALUES ('a', 0, '/退款.md', 'Rückgabe', '1', 'Thirty days.', 0.5), ('a', 1, '/gone.md', '', '', '(removed)', 1)",
    "INSERT INTO message_timings VALUES ('a', 1, 2, 3, 4, 31.5, 99.9)",
    "INSERT INTO message_usage VALUES ('a', 100, 7, 20, 0, 30, 50)",
    "INSERT INTO message_modules (message_id, rank, key, name, document, passage, tokens, position, source, "
    "miss_reason, created) VALUES ('a', 0, 'b2:one', 'p', '/退款.md', '1', 50, 0, 'computed', 'new', :now)",
    "INSERT INTO feedback VALUES ('a', 'up', 'good', :now)",
    "INSERT INTO facts VALUES ('embedder', 'hash')",
)
"""What the first version wrote, as the tables were then."""


def test_what_the_first_version_wrote_comes_along_through_every_revision(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything, vector, now = migrations.MIGRATIONS, np.arange(4, dtype="<f4"), datetime(2026, 1, 2, 3, 4, 5, 678901)
    given = bindparam("now", now, DateTime()), bindparam("vector", vector.tobytes(), LargeBinary())
    for done in range(1, len(everything) + 1):
        monkeypatch.setattr(migrations.migrate, "__defaults__", (everything[:done],))
        with closing(open_database(empty_url)) as database, database.write() as session:
            for statement in FIRST_ROWS if done == 1 else ():
                session.execute(text(statement).bindparams(*(one for one in given if f":{one.key}" in statement)))
    monkeypatch.undo()
    with closing(open_database(empty_url)) as database:
        names = database.values(text("SELECT name FROM migrations"))  # type: ignore[arg-type]
        assert sorted(names) == sorted(migration.__name__ for migration in everything)
        history, library, statistics = History(database), Library(database), Statistics(database)
        assert [(one.title, one.turns) for one in history.conversations(query="退款")] == [("退款?", 2)]
        question, said = history.turns("c")
        assert question.created == said.created == now.replace(tzinfo=UTC)
        assert (said.feedback, said.reason) == ("up", "good")
        assert said.answer is not None
        assert (said.answer.outcome, said.answer.exact, said.answer.quoted) == ("answered", False, False)
        assert [(one.document, one.marks, one.see_also) for one in said.answer.citations] == [
            ("/退款.md", (), False),
            ("/gone.md", (), False),
        ]
        assert history.past("c")[1].tokens == (1, 2)
        assert list(history.forgotten()) == ["/gone.md"]
        [passage] = library.passages_of("/退款.md")
        assert (passage.heading_path, passage.collection, passage.module_key) == (("Grüße",), "", "b2:one")
        assert (library.vectors(4)[1] == vector).all()
        assert library.fact("embedder") == "hash"
        totals = statistics.totals()
        assert (totals.answers, totals.answered, totals.computed_tokens, totals.module_tokens) == (1, 1, 20, 50)
        assert [(one.reason, one.misses, one.tokens) for one in statistics.miss_reasons()] == [("new", 1, 50)]
        assert statistics.module_hits()["b2:one"].misses == 1


def test_each_migration_runs_once_and_keeps_what_is_there(database_url: str) -> None:
    with closing(open_database(database_url)) as database:
        store(database, "a", "1")
    with closing(open_database(database_url)) as again, again.read() as session:
        names = session.scalars(text("SELECT name FROM migrations")).all()
        assert sorted(names) == sorted(migration.__name__ for migration in migrations.MIGRATIONS)
        assert session.get_one(tables.FactRow, "a").value == "1"


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


def test_a_reader_makes_no_database(path: Path) -> None:
    for content in (None, b""):
        with pytest.raises(DeskError, match="is not there yet, or empty: ingest documents first") as caught:
            open_database(f"sqlite:///{path}", upgrade=False)
        assert caught.value.code == "no-database"
        assert [file.read_bytes() for file in path.parent.iterdir()] == ([] if content is None else [content])
        path.write_bytes(b"")


@pytest.mark.parametrize("name", ["desk.sqlite3", "50% of #1? ü.sqlite3"])
def test_a_reader_opens_what_is_up_to_date(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    url = URL.create("sqlite", database=str(tmp_path / name)).render_as_string()
    open_database(url).close()
    before = path.read_bytes()
    with closing(open_database(url, upgrade=False)) as database, database.read() as session:
        assert session.scalars(text("SELECT value FROM facts")).all() == []
    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], before)


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


def test_copies_go_when_they_are_older_than_what_is_kept(older: Path) -> None:
    now = datetime.now(UTC)
    with closing(open_database(f"sqlite:///{older}")) as database:
        care = ConversationCare(database)
        for unused_since, left in ((now - timedelta(days=1), 1), (now + timedelta(days=1), 0)):
            care.purge(now, unused_since)
            assert len(list(older.parent.glob("*.before-*"))) == left


def test_forgetting_a_document_removes_the_copies(older: Path) -> None:
    with closing(open_database(f"sqlite:///{older}")) as database:
        assert len(list(older.parent.glob("*.before-*"))) == 1
        History(database).forget_document("/a.md")
    assert list(older.parent.iterdir()) == [older]


def test_what_a_killed_copy_left_goes_with_the_next_one_and_with_forgetting(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was left for good: as large as the database, with texts that were forgotten since."""

    def killed(descriptor: int) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", killed)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(ZeroDivisionError):
            open_database(f"sqlite:///{older}")
    [left] = set(older.parent.iterdir()) - {older}
    assert left.stat().st_size == older.stat().st_size
    with closing(open_database(f"sqlite:///{older}")) as database:
        assert [path for path in older.parent.iterdir() if path.name.startswith(".")] == []
        left.touch()
        History(database).forget_document("/a.md")
    assert list(older.parent.iterdir()) == [older]


def test_failing_migration_leaves_nothing_behind(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def m002_broken(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE half (a int)"))
        raise ZeroDivisionError

    monkeypatch.setattr(migrations.migrate, "__defaults__", ((*migrations.MIGRATIONS, m002_broken),))
    with pytest.raises(ZeroDivisionError):
        open_database(empty_url)
    assert table_names(empty_url) == []


def test_newer_database_is_refused_and_left_alone(database_url: str) -> None:
    with closing(open_database(database_url)) as database, database.write() as session:
        session.execute(text("INSERT INTO migrations (name) VALUES ('m999_future')"))
    before = table_names(database_url)
    with pytest.raises(DeskError) as caught:
        open_database(database_url)
    error = caught.value
    assert error.code == "database-newer"
    assert "newer Warmdesk (m999_future)" in str(error)
    assert table_names(database_url) == before


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
