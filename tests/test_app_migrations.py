"""The database's history: all revisions lead to the tables, in one transaction or not at all."""

import json
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.runtime.migration import MigrationContext
from made_database import LATER, add_revision
from postgres_server import EMPTY, PostgresServer
from refusals import one_line
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import URL

from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage import migrate, tables
from app.storage.archive import back_up_folder, restore_folder
from app.storage.conversation_care import ConversationCare
from app.storage.database import Database, open_database
from app.storage.history import History

HERE = Path(__file__).parent


@pytest.fixture
def path(tmp_path):
    return tmp_path / "desk.sqlite3"


@pytest.fixture(params=["sqlite", "postgres"])
def empty_urls(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'one.sqlite3'}", f"sqlite:///{tmp_path / 'other.sqlite3'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database(EMPTY) as one, server.database(EMPTY) as other:
        yield one, other


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
    return {name: " ".join(sql.split()) for name, sql in rows if name != "sqlite_sequence"}


def store(database: Database, key: str, value: str) -> None:
    with database.write() as session:
        session.add(tables.FactRow(key=key, value=value))


def first_tables(url: str) -> None:
    """Make the tables of the first revision, as `tests/first_tables_KIND.sql` holds them."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in (HERE / f"first_tables_{engine.dialect.name}.sql").read_text().splitlines():
            connection.execute(text(statement.replace(":", r"\:")))
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('0001')"))
    engine.dispose()


def test_all_revisions_lead_to_the_tables_of_a_new_database(empty_urls):
    """A table changed without a revision fails here, and shows the code of the revision."""
    first, new = empty_urls
    first_tables(first)
    for url in empty_urls:
        with closing(open_database(url)) as database, database.read() as session:
            context = MigrationContext.configure(session.connection())
            needed = produce_migrations(context, tables.Base.metadata).upgrade_ops
            assert needed is not None
            code = render_python_code(needed, render_as_batch=True, migration_context=context)
            assert needed.is_empty(), code
    assert constraints(first) == constraints(new)


def constraints(url: str) -> list[str]:
    """Indexes and foreign keys with all their options: Alembic does not compare the conditions of indexes."""
    engine = create_engine(url)
    look = inspect(engine)
    found = [(name, one) for name in look.get_table_names() for one in look.get_indexes(name)]
    found += [(name, one) for name in look.get_table_names() for one in look.get_foreign_keys(name)]
    engine.dispose()
    return sorted(json.dumps(one, default=str) for one in found)


RECREATE = """
with op.batch_alter_table("conversations") as conversations:
    conversations.alter_column("title", new_column_name="name")
    conversations.add_column(sa.Column("mood", sa.Text))
"""


def test_a_revision_may_recreate_a_table_and_keeps_the_rows_that_refer_to_it(database_url, tmp_path, monkeypatch):
    with closing(open_database(database_url)) as database:
        question = History(database).record_question(History(database).start_conversation("退款?"), "退款?")
    add_revision(monkeypatch, tmp_path, RECREATE)
    with closing(open_database(database_url)) as database:
        assert database.values(text("SELECT name FROM conversations")) == ["退款?"]  # type: ignore[arg-type]
        assert database.values(text("SELECT id FROM messages")) == [question]  # type: ignore[arg-type]
        with database.write() as session:
            session.execute(text("DELETE FROM conversations"))
        assert database.values(text("SELECT id FROM messages")) == [], "foreign keys hold again"  # type: ignore[arg-type]


def test_a_revision_that_leaves_rows_without_their_parents_is_undone(path, tmp_path, monkeypatch):
    """PostgreSQL itself sees to it."""
    with closing(open_database(f"sqlite:///{path}")) as database:
        History(database).record_question(History(database).start_conversation("x"), "x")
    add_revision(monkeypatch, tmp_path, "op.execute('DELETE FROM conversations')")
    with pytest.raises(AssertionError, match="messages"):
        open_database(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM conversations").fetchone() == (1,)
    connection.close()


def test_a_database_that_is_opened_again_keeps_what_is_there(database_url):
    with closing(open_database(database_url)) as database:
        store(database, "a", "1")
    with closing(open_database(database_url)) as again, again.read() as session:
        names = session.scalars(text("SELECT version_num FROM alembic_version")).all()
        assert names == [migrate.revisions()[-1].revision]
        assert session.get_one(tables.FactRow, "a").value == "1"


@pytest.fixture
def older(path, tmp_path, monkeypatch):
    """A database of the revision before the latest, with one fact in it."""
    with closing(open_database(f"sqlite:///{path}")) as database:
        store(database, "a", "1")
    add_revision(monkeypatch, tmp_path)
    return path


def test_a_reader_leaves_an_older_database_alone_and_says_what_to_do(older):
    before, content = schema(older), older.read_bytes()
    with one_line("database-older", r"older Warmdesk.*restart `warmdesk serve`"):
        open_database(f"sqlite:///{older}", upgrade=False)
    assert (schema(older), older.read_bytes(), list(older.parent.iterdir())) == (before, content, [older])


def test_a_reader_makes_no_database(path):
    for content in (None, b""):
        with one_line("no-database", "does not exist or is empty: ingest documents first"):
            open_database(f"sqlite:///{path}", upgrade=False)
        assert [file.read_bytes() for file in path.parent.iterdir()] == ([] if content is None else [content])
        path.write_bytes(b"")


@pytest.mark.parametrize("upgrade", [True, False])
def test_an_emptied_database_beside_an_index_is_no_new_desk(path, upgrade):
    (path.parent / "passages.index").write_bytes(b"x")
    path.write_bytes(b"")
    with one_line("database-emptied", "is empty.*restore a backup"):
        open_database(f"sqlite:///{path}", upgrade=upgrade)


def test_a_reader_opens_what_is_up_to_date(tmp_path):
    path = tmp_path / "50% of #1? ü.sqlite3"
    url = URL.create("sqlite", database=str(path)).render_as_string()
    open_database(url).close()
    before = path.read_bytes()
    with closing(open_database(url, upgrade=False)) as database, database.read() as session:
        assert session.scalars(text("SELECT value FROM facts")).all() == []
    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], before)


def test_a_copy_is_made_before_a_migration_and_said_in_one_line(older, caplog):
    before = schema(older)
    open_database(f"sqlite:///{older}").close()
    copy = older.with_name(f"{older.name}.before-{LATER}")
    assert sorted(older.parent.iterdir()) == [older, copy]
    assert schema(copy) == before != schema(older)
    assert copy.stat().st_mode & 0o777 == 0o600
    [line] = caplog.messages
    assert str(copy) in line
    assert "\n" not in line
    caplog.clear()
    open_database(f"sqlite:///{older}").close()
    assert caplog.messages == []


def test_the_newest_copies_are_kept(older):
    with closing(open_database(f"sqlite:///{older}")) as database:
        for number, name in enumerate(("m100_one", "m099_two", "m101_three")):
            database.back_up(name)
            os.utime(older.with_name(f"{older.name}.before-{name}"), (2**31 + number, 2**31 + number))
    assert {path.name.partition(".before-")[2] for path in older.parent.glob("*.before-*")} == {
        "m099_two",
        "m101_three",
    }


def test_without_a_copy_there_is_no_migration(older, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = schema(older)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        open_database(f"sqlite:///{older}")
    assert (schema(older), list(older.parent.iterdir())) == (before, [older])


def test_copies_go_when_they_are_older_than_what_is_kept(older):
    now = datetime.now(UTC)
    with closing(open_database(f"sqlite:///{older}")) as database:
        care = ConversationCare(database)
        for unused_since, left in ((now - timedelta(days=1), 1), (now + timedelta(days=1), 0)):
            care.purge(now, unused_since)
            assert len(list(older.parent.glob("*.before-*"))) == left


def test_forgetting_a_document_removes_the_copies(older):
    with closing(open_database(f"sqlite:///{older}")) as database:
        assert len(list(older.parent.glob("*.before-*"))) == 1
        History(database).forget_document("/a.md")
    assert list(older.parent.iterdir()) == [older]


def test_what_a_killed_copy_left_goes_with_the_next_one_and_with_forgetting(older, monkeypatch):
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


def test_a_failing_migration_leaves_nothing_behind(database_url, tmp_path, monkeypatch):
    open_database(database_url).close()
    before = table_names(database_url)
    add_revision(monkeypatch, tmp_path, "op.execute('CREATE TABLE half (a INTEGER)')\nraise ZeroDivisionError")
    with pytest.raises(ZeroDivisionError):
        open_database(database_url)
    assert table_names(database_url) == before


def test_tables_that_cannot_be_made_leave_nothing_behind(empty_urls, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("alembic.runtime.migration.MigrationContext.stamp", fail)
    with pytest.raises(ZeroDivisionError):
        open_database(empty_urls[0])
    assert table_names(empty_urls[0]) == []


def test_newer_database_is_refused_and_left_alone(database_url):
    with closing(open_database(database_url)) as database, database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    before = table_names(database_url)
    with pytest.raises(DeskError) as caught:
        open_database(database_url)
    error = caught.value
    assert error.code == "database-newer"
    assert "newer Warmdesk (9999)" in str(error)
    assert table_names(database_url) == before


def test_a_backup_of_an_older_version_is_restored_and_brought_up_to_date(tmp_path, monkeypatch):
    settings = Settings(data_dir=tmp_path / "desk")
    settings.data_dir.mkdir()
    open_database(settings.database_url).close()
    add_revision(monkeypatch, tmp_path)
    made = back_up_folder(settings, tmp_path / "desk.tar.gz")
    assert made.manifest.schema == migrate.revisions()[-2].revision
    new = Settings(data_dir=tmp_path / "new")
    restore_folder(new, made.file)
    open_database(new.database_url).close()
    with closing(sqlite3.connect(new.data_dir / "warmdesk.sqlite3")) as connection:
        [[last]] = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    assert last == LATER
    assert len(list(new.data_dir.glob("*.before-*"))) == 1
