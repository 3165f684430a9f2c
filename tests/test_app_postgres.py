"""PostgreSQL: one clear line for whatever can be wrong with the server, and what happens when it goes away."""

import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime

import numpy as np
import pytest
from postgres_server import EMPTY, GUARDED, PostgresServer
from refusals import one_line
from sqlalchemy import Connection, event, func, select, text
from sqlalchemy.engine import make_url
from waiting import wait_until

from app.domain.documents import NewDocument, NewPassage, SyncedFolder
from app.domain.errors import DeskError
from app.storage import migrate, tables
from app.storage import postgres as postgres_file
from app.storage.database import Database, checked_version, open_database
from app.storage.faq import SyncedFolderTable
from app.storage.library import Library
from app.storage.people import Accounts

PASSWORD = "opensesame"


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    with closing(open_database(postgres_url)) as opened:
        yield opened


def store(database: Database, key: str) -> None:
    with database.write() as session:
        session.add(tables.FactRow(key=key, value=""))


def keys(database: Database) -> list[str]:
    return list(database.values(select(tables.FactRow.key).order_by(tables.FactRow.key)))


def refused(url: str) -> DeskError:
    with pytest.raises(DeskError) as caught:
        open_database(url).close()
    assert "\n" not in str(caught.value)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    return caught.value


def guarded(url: str, **changes: str) -> str:
    parsed = make_url(url).set(**{"username": GUARDED, "password": PASSWORD, **changes})
    return parsed.render_as_string(hide_password=False)


def test_no_server_on_postgres() -> None:
    error = refused(f"postgresql+psycopg://desk:{PASSWORD}@127.0.0.1:9/desk")
    assert error.code == "database-unreachable"
    assert "postgresql+psycopg://desk:***@127.0.0.1:9/desk cannot be reached" in str(error)


def test_no_such_database_on_postgres(postgres: PostgresServer) -> None:
    error = refused(postgres.url("nowhere"))
    assert error.code == "database-missing"
    assert "createdb" in str(error)


def test_wrong_users_and_passwords_on_postgres(postgres: PostgresServer, postgres_url: str) -> None:
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
def test_no_password_in_an_error_on_postgres(url: str) -> None:
    assert PASSWORD not in str(refused(url))


def test_a_database_that_cannot_hold_all_texts_on_postgres(postgres: PostgresServer) -> None:
    with postgres.database(EMPTY, "ENCODING 'SQL_ASCII'") as url:
        error = refused(url)
    assert error.code == "database-encoding"
    assert "--encoding=UTF8" in str(error)


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("53100", "disk-full"),
        ("25006", "database-read-only"),
        ("53300", "database-busy"),
        ("40P01", "database-busy"),
        ("57014", "database-busy"),
        ("55P03", "database-busy"),
        ("58030", "disk-error"),
        ("XX001", "database-damaged"),
        ("57P01", "database-lost"),
    ],
)
def test_what_the_server_says_on_postgres(database: Database, state: str, code: str) -> None:
    raising = text(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$")

    def write() -> None:
        with database.write() as session:
            session.add(tables.FactRow(key="a", value=""))
            session.flush()
            session.execute(raising)

    with one_line(code):
        write()
    assert keys(database) == [], "nothing was changed"


def test_a_server_that_ends_is_not_a_missing_database_on_postgres(postgres: PostgresServer, database: Database) -> None:
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


def test_a_transaction_that_hangs_is_ended_by_the_server_on_postgres(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres_file._SESSION, "idle_in_transaction_session_timeout", "200ms")
    with closing(open_database(postgres_url)) as hanging, closing(open_database(postgres_url)) as other:

        def hang() -> None:
            with hanging.write() as session:
                its = select(func.pg_backend_pid())
                number = session.scalar(its)
                there = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :its").bindparams(its=number)
                wait_until(lambda: other.values(there) == [0])  # type: ignore[arg-type]
                session.execute(its)

        with one_line("database-lost", "broke off the connection"):
            hang()
        store(other, "b")


def test_one_that_begins_while_another_migrates_waits_for_it_on_postgres(
    postgres: PostgresServer, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than a writer waits for another."""
    monkeypatch.setitem(postgres_file._SESSION, "lock_timeout", "20ms")
    migrating, go_on = threading.Event(), threading.Event()

    def slow(connection: Connection) -> bool:
        migrating.set()
        go_on.wait()
        return is_new(connection)

    is_new = migrate.is_new
    monkeypatch.setattr(migrate, "is_new", slow)
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


def test_a_connection_that_breaks_off_while_writing_on_postgres(postgres: PostgresServer, database: Database) -> None:
    def write() -> None:
        with database.write() as session:
            session.add(tables.FactRow(key="a", value=""))
            session.flush()
            break_connections(postgres)
            session.execute(select(1))

    with one_line("database-lost", "broke off the connection"):
        write()
    assert keys(database) == []
    store(database, "b")
    assert keys(database) == ["b"]


def test_a_connection_that_breaks_off_while_reading_is_tried_again_on_postgres(
    postgres: PostgresServer, database: Database
) -> None:
    store(database, "a")
    broken: list[object] = []

    def break_once(*_: object) -> None:
        if not broken:
            broken.append(None)
            break_connections(postgres)

    event.listen(database.engine, "before_cursor_execute", break_once)
    assert keys(database) == ["a"]
    assert broken


def test_names_are_sorted_by_their_characters_whatever_the_database_does_on_postgres(postgres: PostgresServer) -> None:
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


def test_tables_of_another_program_are_not_taken_over_on_postgres(postgres: PostgresServer) -> None:
    with postgres.database(EMPTY) as url:
        postgres.execute("CREATE TABLE documents (a int)", make_url(url).database or "")
        error = refused(url)
    assert error.code == "database-error"
    assert "tables of another program" in str(error)
