"""The database, a file or on a server: transactions, and one clear line for whatever can be wrong with it.

Read-only files and full disks are real ones to SQLite (mode=ro, max_page_count): permission bits do not stop
root, as which the tests may run.
"""

import sqlite3
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from postgres_server import EMPTY, GUARDED, PostgresServer
from refusals import one_line
from sqlalchemy import Connection, event, func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError
from waiting import wait_until

from app.domain.documents import NewDocument, NewPassage, SyncedFolder
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage import migrate, sqlite, tables
from app.storage import postgres as postgres_file
from app.storage.database import Database, checked_version, open_database
from app.storage.faq import SyncedFolderTable
from app.storage.library import Library
from app.storage.people import Accounts

PASSWORD = "opensesame"
ON_POSTGRES = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "desk.sqlite3"


def store(database: Database, key: str, value: str = "") -> None:
    with database.write() as session:
        session.add(tables.FactRow(key=key, value=value))


def refused(url: str) -> DeskError:
    with pytest.raises(DeskError) as caught:
        open_database(url).close()
    assert "\n" not in str(caught.value)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    return caught.value


def test_read_then_write_in_many_threads_loses_nothing(database):
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


def test_a_read_is_one_view_and_does_not_stop_a_write(database):
    with database.read() as reader:
        assert reader.scalar(select(tables.FactRow.value)) is None
        with database.write() as writer:
            writer.add(tables.FactRow(key="a", value="1"))
        assert reader.scalar(select(tables.FactRow.value)) is None
    with database.read() as reader:
        assert reader.scalar(select(tables.FactRow.value)) == "1"


def test_broken_constraints_stay_what_they_are(database):
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(tables.MessageRow(id="m", conversation_id="none", position=0, role="user", text="", created=NOW))


def test_times_come_back_aware_and_equal(database):
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
def test_any_text_can_be_stored_and_found(database, given, stored):
    with database.write() as session:
        session.add(tables.FactRow(key=given, value=given))
    with database.read() as session:
        assert session.scalar(select(tables.FactRow.value).where(tables.FactRow.key == given)) == stored


def test_folder_with_an_awkward_name(tmp_path):
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
        ("sqlite:///file:desk?mode=memory&uri=true", "a database in memory"),
        ("postgresql+psycopg2cffi://me:secret@host/desk", "needs the Python package psycopg2cffi"),
    ],
)
def test_urls_that_are_no_use(url, words):
    error = refused(url)
    assert error.code == "database-url"
    assert words in str(error)
    assert "secret" not in str(error)


def test_not_a_database(path):
    path.write_bytes(b"Dear diary" * 1000)
    error = refused(f"sqlite:///{path}")
    assert error.code == "database-damaged"
    assert f"the database {path} is not a database" in str(error)


def test_a_damaged_database_and_a_missing_folder(path):
    open_database(f"sqlite:///{path}").close()
    data = bytearray(path.read_bytes())
    data[200:] = b"\xaa" * (len(data) - 200)
    path.write_bytes(data)
    assert refused(f"sqlite:///{path}").code == "database-damaged"
    assert refused(f"sqlite:///{path.parent}/none/desk.sqlite3").code == "database-unreachable"


def test_a_damaged_value(path):
    """Found by chaos: zeros in a page that is well formed."""
    with closing(open_database(f"sqlite:///{path}")) as database:
        with database.write() as session:
            session.add(tables.ForgottenRow(path="a.md", forgotten=NOW))
            session.flush()
            session.execute(text("UPDATE forgotten_documents SET forgotten = :zeros"), {"zeros": "\0" * 26})
        with pytest.raises(DeskError, match=f"{path} is damaged .a value cannot be read.: restore a backup") as found:
            database.values(select(tables.ForgottenRow))
        assert found.value.code == "database-damaged"


def test_read_only(path):
    open_database(f"sqlite:///{path}").close()
    read_only = open_database(f"sqlite:///file:{path}?mode=ro&uri=true")
    with closing(read_only):
        with read_only.read() as session:
            assert session.scalar(select(tables.FactRow.value)) is None
        with one_line("database-read-only", "is read-only"):
            store(read_only, "a", "1")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_full_disk_undoes_the_transaction(database):
    def limit(raw: sqlite3.Connection, entry: object) -> None:
        raw.execute("PRAGMA max_page_count = 60").close()

    event.listen(database.engine, "connect", limit)
    database.engine.dispose()
    with one_line("disk-full", "the disk is full"):
        store(database, "big", "x" * 500_000)
    with database.read() as session:
        assert session.scalars(select(tables.FactRow.key)).all() == []


def test_another_writer_does_not_finish(path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 50)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert refused(f"sqlite:///{path}").code == "database-busy"
    finally:
        other.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_deleted_text_is_gone_from_the_disk(database, path):
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
def test_deleted_text_waits_in_the_log_for_a_reader_and_holds_up_nobody(database, path, monkeypatch):
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


def keys(database: Database) -> list[str]:
    return list(database.values(select(tables.FactRow.key).order_by(tables.FactRow.key)))


def guarded(url: str, **changes: str) -> str:
    parsed = make_url(url).set(**{"username": GUARDED, "password": PASSWORD, **changes})
    return parsed.render_as_string(hide_password=False)


def test_no_server_on_postgres():
    error = refused(f"postgresql+psycopg://desk:{PASSWORD}@127.0.0.1:9/desk")
    assert error.code == "database-unreachable"
    assert "postgresql+psycopg://desk:***@127.0.0.1:9/desk cannot be reached" in str(error)


def test_wrong_users_and_passwords_on_postgres(postgres, postgres_url):
    assert refused(guarded(postgres_url)).code == "database-login", "no such user"
    postgres.execute(f"CREATE USER {GUARDED} PASSWORD '{PASSWORD}'")
    try:
        for wrong in ({"password": PASSWORD[:-1]}, {"password": ""}):
            assert refused(guarded(postgres_url, **wrong)).code == "database-login"
        assert refused(guarded(postgres_url)).code == "database-read-only", "not the owner"
        version = checked_version(guarded(postgres_url))
        assert version.startswith("PostgreSQL 1")
        assert PASSWORD not in version
    finally:
        postgres.execute(f"DROP USER {GUARDED}")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://desk:{PASSWORD}@host:port/desk",
        f"postgresql://desk:{PASSWORD}@127.0.0.1:9/desk?nonsense={PASSWORD}",
        f"postgres://desk:{PASSWORD}@host/desk",
    ],
)
def test_no_password_in_an_error_on_postgres(url):
    assert PASSWORD not in str(refused(url))


def test_a_database_that_cannot_hold_all_texts_on_postgres(postgres):
    with postgres.database(EMPTY, "ENCODING 'SQL_ASCII'") as url:
        error = refused(url)
    assert error.code == "database-encoding"
    assert "--encoding=UTF8" in str(error)


@ON_POSTGRES
@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("53100", "disk-full"),
        ("25006", "database-read-only"),
        ("40P01", "database-busy"),
        ("58030", "disk-error"),
        ("XX001", "database-damaged"),
        ("57P01", "database-lost"),
    ],
)
def test_what_the_server_says_on_postgres(database, state, code):
    raising = text(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$")

    def write() -> None:
        with database.write() as session:
            session.add(tables.FactRow(key="a", value=""))
            session.flush()
            session.execute(raising)

    with one_line(code):
        write()
    assert keys(database) == [], "nothing was changed"


@ON_POSTGRES
def test_a_server_that_ends_is_not_a_missing_database_on_postgres(postgres, database):
    """It refuses connections in words that begin like those for a database that does not exist."""
    try:
        with database.read() as session:
            session.execute(select(1))
            postgres.end_when_unused()
            error = refused(postgres.url("postgres"))
    finally:
        postgres.stop()
        postgres.start()
    assert error.code == "database-lost"
    assert "is the server restarting?" in str(error)


def test_a_transaction_that_hangs_is_ended_by_the_server_on_postgres(postgres_url, monkeypatch):
    monkeypatch.setitem(postgres_file._SESSION, "idle_in_transaction_session_timeout", "200ms")
    with closing(open_database(postgres_url)) as hanging, closing(open_database(postgres_url)) as other:

        def hang() -> None:
            with hanging.write() as session:
                its = select(func.pg_backend_pid())
                number = session.scalar(its)
                there = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :its").bindparams(its=number)
                wait_until(lambda: other.values(there) == [0])  # type: ignore[arg-type]
                session.execute(its)

        with one_line("database-lost", "closed the connection"):
            hang()
        store(other, "b")


@ON_POSTGRES
def test_one_that_begins_while_another_migrates_waits_for_it_on_postgres(postgres, database, monkeypatch):
    """For longer than a writer waits for another."""
    monkeypatch.setitem(postgres_file._SESSION, "lock_timeout", "20ms")
    migrating, go_on = threading.Event(), threading.Event()

    def slow(connection: Connection, name: str) -> None:
        migrating.set()
        go_on.wait()
        migrate.migrate(connection, name)

    monkeypatch.setattr("app.storage.database.migrate", slow)
    long = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND clock_timestamp() - query_start > '0.1 s'"
    )
    with postgres.database(EMPTY) as url, ThreadPoolExecutor(2) as pool:
        first = pool.submit(open_database, url)
        migrating.wait()
        second = pool.submit(open_database, url)
        wait_until(lambda: second.done() or bool(database.values(text(long))))  # type: ignore[arg-type]
        go_on.set()
        for opened in (first, second):
            opened.result().close()


def break_connections(postgres: PostgresServer) -> None:
    postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'warmdesk'")


@ON_POSTGRES
def test_a_lock_goes_with_its_connection_on_postgres(postgres, database):
    with database.alone("documents") as is_ours:
        assert is_ours()
        break_connections(postgres)
        with database.alone("documents") as is_theirs:
            assert (is_ours(), is_ours(), is_theirs()) == (False, False, True)


@ON_POSTGRES
def test_a_connection_that_breaks_off_while_writing_on_postgres(postgres, database):
    def write() -> None:
        with database.write() as session:
            session.add(tables.FactRow(key="a", value=""))
            session.flush()
            break_connections(postgres)
            session.execute(select(1))

    with one_line("database-lost", "closed the connection"):
        write()
    assert keys(database) == []
    store(database, "b")
    assert keys(database) == ["b"]


@ON_POSTGRES
def test_a_connection_that_breaks_off_while_reading_is_tried_again_on_postgres(postgres, database):
    store(database, "a")
    broken: list[object] = []

    def break_once(*_: object) -> None:
        if not broken:
            broken.append(None)
            break_connections(postgres)

    event.listen(database.engine, "before_cursor_execute", break_once)
    assert keys(database) == ["a"]
    assert broken


def test_names_are_sorted_by_their_characters_whatever_the_database_does_on_postgres(postgres):
    names = ["Zebra", "apple", "Äpfel", "über", "zoo", "_", "1", "退款", "货运"]
    in_turn = sorted(names)
    with (
        postgres.database(EMPTY, "LOCALE_PROVIDER icu ICU_LOCALE 'de-DE' LOCALE 'C'") as url,
        closing(open_database(url)) as database,
    ):
        library, accounts, folders = Library(database), Accounts(database), SyncedFolderTable(database)
        now = datetime(2026, 1, 2, tzinfo=UTC)
        for name in names:
            document = NewDocument(path=name, title="", content_hash="", collection=name)
            passage = NewPassage(
                heading_path=(name,), text="", content_hash="", num_tokens=1, embedding=np.zeros((1, 2))
            )
            library.replace([(document, [passage])])
            accounts.add(name, "agent", "")
            folders.save(SyncedFolder(folder=name, collection="", every_minutes=5, next_run=now))
        assert database.values(select(tables.AccountRow.name).order_by(tables.AccountRow.name)) != in_turn
        assert [one.path for one in library.documents()] == in_turn
        assert [one.name for one in library.collection_sizes()] == library.collections() == in_turn
        assert library.headings() == [(name, (name,)) for name in in_turn]
        assert [one.name for one in accounts.all()] == in_turn
        assert [one.folder for one in folders.all()] == in_turn


def test_tables_of_another_program_are_not_taken_over_on_postgres(postgres):
    with postgres.database(EMPTY) as url:
        postgres.execute("CREATE TABLE documents (a int)", make_url(url).database or "")
        error = refused(url)
    assert error.code == "database-error"
    assert "tables of another program" in str(error)
