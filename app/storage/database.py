"""Opens the database and gives sessions, one short transaction each.

    with database.read() as session: ...     one consistent view
    with database.write() as session: ...    the write lock from the start, committed at the end

A session ends with its block, and no block calls a model. A write waits for the lock for up to 30 seconds. What can
be wrong with the file or the server (read-only, full disk, damaged, busy, not reached, written by a newer Warmdesk)
becomes one clear DeskError; broken constraints are our mistakes and stay as they are. A database that goes away says so
in the log once, and once when it is back, whoever used it.

Not covered: what the two kinds of databases do differently (`sqlite`, `postgres`), who may use a data folder (`lock`),
the tables (`tables`), their changes (`migrate`).
"""

import logging
import math
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Engine, Row, Select, create_engine, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    NotSupportedError,
    PendingRollbackError,
    ProgrammingError,
    TimeoutError,
)
from sqlalchemy.orm import Session, sessionmaker

from app.domain.errors import DeskError
from app.storage import postgres, sqlite
from app.storage.backup import back_up, remove_backups
from app.storage.migrate import is_new, migrate, missing_revisions
from app.storage.problems import MIGRATES, WRITES

T = TypeVar("T")
Work = Literal["documents", "folders"]
"""What only one desk of a database may do at a time: changing documents, reading synchronised folders."""

log = logging.getLogger(__name__)

_OUR_MISTAKES = (IntegrityError, ProgrammingError, DataError, NotSupportedError)


class Database:
    """The open database. Safe to use from any thread; made by `open_database`.

    is_shared: whether other desks, with data folders of their own, may use it at the same time.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.is_shared = engine.dialect.name == "postgresql"
        reads, writes = (postgres.READS, postgres.WRITING) if self.is_shared else ({}, {})
        self.sessions = sessionmaker(engine.execution_options(**reads), expire_on_commit=False)
        self._writers = sessionmaker(engine.execution_options(**{WRITES: True}, **writes), expire_on_commit=False)
        self._is_there, self._failures = False, 0  # who opens it says what is wrong then
        self._lock = threading.Lock()
        self._has_deleted_text = False  # in SQLite's log

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads. Raises DeskError."""
        with self._used(), self.sessions.begin() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that may read and write; undone if the block raises. Raises DeskError."""
        with self._used(), self._writers.begin() as session:
            yield session

    @contextmanager
    def migration(self) -> Iterator[Connection]:
        """A transaction that may change tables; undone if the block raises. Raises DeskError."""
        with self._used(), self._writers.begin() as session:
            yield session.connection(execution_options={MIGRATES: True})
        self.engine.dispose()  # this connection of SQLite ignores foreign keys

    def rows(self, query: Select[*tuple[Any, ...]]) -> Sequence[Row[*tuple[Any, ...]]]:
        """What a query finds, in a transaction of its own. Raises DeskError."""
        return self._read(lambda session: session.execute(query).all())

    def values(self, query: Select[T]) -> Sequence[T]:
        """The first column of what a query finds. Raises DeskError."""
        return self._read(lambda session: session.scalars(query).all())

    def _read(self, find: Callable[[Session], T]) -> T:
        """What `find` gives; it is called again if the connection broke off, because it changes nothing."""
        try:
            with self.read() as session:
                return find(session)
        except DeskError as error:
            if error.code != postgres.LOST:
                raise
        with self.read() as session:
            return find(session)

    @contextmanager
    def alone(self, work: Work) -> Iterator[bool]:
        """Gives whether no other desk does this work; if so, none begins it before the end of the block. A database
        that is not shared has one desk. Raises DeskError.
        """
        if not self.is_shared:
            yield True
            return
        with self._used():
            connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            with self._used():
                is_ours = postgres.take_lock(connection, work)
            yield is_ours
        finally:
            with suppress(DBAPIError, PendingRollbackError):  # without a connection the lock is back already
                postgres.give_locks_back(connection)
            connection.close()

    def flush_log(self) -> None:
        """After a deletion: empty SQLite's write-ahead log, which still holds the deleted text. If somebody reads or
        writes just then, this happens at a later call, at `tidy`, or when the database is closed. PostgreSQL reuses the
        room of what was deleted by itself, in its own time.
        """
        if not self.is_shared:
            with self._raw() as raw:
                self._has_deleted_text = not sqlite.empty_log(raw)

    def tidy(self) -> None:
        """Do what `flush_log` could not do; called from time to time. Raises DeskError."""
        if self._has_deleted_text:
            self.flush_log()

    def back_up(self, migration: str) -> None:
        """Make a copy of a SQLite file before this migration, and say so. Raises DeskError."""
        if not self.is_shared:
            with self._raw() as raw:
                copy = back_up(raw, migration)
            log.warning("%s is brought up to date (%s); as it was it is kept in %s", self.name, migration, copy)

    def remove_backups(self, made_before: datetime | None = None) -> None:
        """Delete the copies that were made before migrations: all of them, or those made before a time."""
        if not self.is_shared:
            with self._raw() as raw:
                remove_backups(raw, math.inf if made_before is None else made_before.timestamp())

    @contextmanager
    def _raw(self) -> Iterator[sqlite3.Connection]:
        """SQLite's own connection outside a transaction, for what works only there."""
        with self._used(), self.engine.connect() as connection:
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, sqlite3.Connection)
            try:
                yield raw
            except sqlite3.Error as error:
                raise DBAPIError(None, None, error) from error

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Turns database errors that a person can correct into DeskError, and notes whether the database is there."""
        failures = self._failures
        try:
            with _explained(self.name):
                yield
        except DeskError as error:
            if error.is_away:
                self._note_failure(error)
            raise
        if not self._is_there and failures == self._failures:  # what began before a failure says nothing of now
            self._note_success()

    def _note_failure(self, problem: DeskError) -> None:
        """Say once that a database is away that was there."""
        with self._lock:
            was_there, self._is_there = self._is_there, False
            self._failures += 1
        if was_there:
            log.warning("%s", problem)

    def _note_success(self) -> None:
        """Say once that it is back."""
        with self._lock:
            was_there, self._is_there = self._is_there, True
        if not was_there and self._failures:
            log.warning("%s answers again", self.name)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def open_database(url: str, *, upgrade: bool = True) -> Database:
    """Connect and bring the tables up to date; a SQLite file is created, its folder and a PostgreSQL database are not.

    url: SQLAlchemy URL of a SQLite file or a PostgreSQL database. upgrade: whether an older database is brought up to
    date, after a copy of a SQLite file was made (`backup`); unset for those who do not hold the data folder, because
    its desk may be running: then an older database is an error, "database-older", and so is one that is not there or
    has no tables yet, "no-database". Raises DeskError.
    """
    file = sqlite_file(url)
    database = _connected(url, is_reader=not upgrade)
    if not upgrade and file is not None and not file.exists():
        raise _no_desk_in(database)
    try:
        with database.read() as session:
            if database.is_shared:
                postgres.check_encoding(session.connection(), database.name)
            missing = missing_revisions(session.connection(), database.name)
            has_no_tables = is_new(session.connection())
        if has_no_tables and not upgrade:
            raise _no_desk_in(database)
        if missing and not upgrade:
            raise DeskError(
                f"{database.name} was written by an older Warmdesk, and this command does not change it: start or "
                "restart `warmdesk serve`, which brings it up to date",
                code="database-older",
            )
        if missing and not has_no_tables:
            database.back_up(missing[0].revision)
        if upgrade:
            with database.migration() as connection:
                migrate(connection, database.name)
    except BaseException:
        database.close()
        raise
    return database


def _no_desk_in(database: Database) -> DeskError:
    return DeskError(f"{database.name} is not there yet, or empty: ingest documents first", code="no-database")


def checked_version(url: str) -> str:
    """Kind and version of the database of this URL, and the address of a server. A file is read to its end. Changes
    nothing. Raises DeskError, also for a file that is damaged.
    """
    file, database = sqlite_file(url), _connected(url, is_reader=True)
    if file is not None and not file.exists():
        return f"SQLite {sqlite3.sqlite_version}"
    try:
        with database.read() as session:
            if not database.is_shared:
                sqlite.check_whole(session.connection(), database.name)
                return f"SQLite {sqlite3.sqlite_version}"
            postgres.check_encoding(session.connection(), database.name)
            return f"PostgreSQL {session.scalar(text('SHOW server_version'))}, {database.name}"
    finally:
        database.close()


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite database; None for a database of another kind. Raises DeskError."""
    parsed = _parsed(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        raise DeskError(
            "the database URL is not one: write it like sqlite:////folder/file.sqlite3 or "
            "postgresql+psycopg://user:password@host/database",
            code="database-url",
        ) from None


def _connected(url: str, *, is_reader: bool) -> Database:
    """The database of a URL, not looked at yet. Raises DeskError; no message has a password in it."""
    parsed = _parsed(url)
    kind = parsed.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise DeskError(
            f"unknown kind of database {kind!r}: the URL begins with sqlite:// or postgresql+psycopg://",
            code="database-url",
        )
    name = sqlite.name_of(parsed) if kind == "sqlite" else postgres.name_of(parsed)
    engine = _engine(parsed, name)
    (sqlite if kind == "sqlite" else postgres).set_up(engine, is_reader=is_reader)
    return Database(engine, f"the database {name}")


def _engine(url: URL, name: str) -> Engine:
    try:
        if url.get_backend_name() == "sqlite":
            return create_engine(url, hide_parameters=True)  # errors are logged, and those are customers' words
        return create_engine(url, hide_parameters=True, connect_args=postgres.connecting(url), **postgres.POOL)
    except NoSuchModuleError:
        raise DeskError(f"unknown kind of database in {name}", code="database-url") from None
    except ImportError as error:
        package = error.name or "psycopg"
        how = "run pip install '.[postgres]' in Warmdesk's source folder" if package == "psycopg" else "install it"
        raise DeskError(f"the database {name} needs the Python package {package}: {how}", code="database-url") from None


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turns database errors that a person can correct into DeskError."""
    try:
        yield
    except TimeoutError as error:
        raise DeskError(
            f"{name} is busy: all connections of this desk are in use; try again", code="database-busy"
        ) from error
    except DBAPIError as error:
        kind = sqlite if isinstance(error.orig, sqlite3.Error) else postgres
        problem = kind.problem_of(error)
        if problem is not None:
            raise DeskError(f"{name} {problem.what}: {problem.cure}", code=problem.code) from error
        if isinstance(error, _OUR_MISTAKES):
            raise
        reason = " ".join(str(error.orig).split())
        raise DeskError(f"{name} cannot be used: {reason}", code="database-error") from error
