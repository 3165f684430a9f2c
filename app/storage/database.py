"""Opens the database and provides sessions, one short transaction each.

    with database.read() as session: ...     one consistent view
    with database.write() as session: ...    the write lock from the start, committed at the end

A session ends with its block, and no block calls a model. A write waits up to 30 seconds for the lock. Each error that
a person can fix (read-only, full disk, damaged, busy, unreachable, written by a newer Warmdesk) becomes a DeskError.
Violated constraints are programming errors, so their exceptions are not changed. The log has one line when the database
becomes unreachable, and one when it is reachable again.
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
from app.storage.migrate import back_up, is_new, migrate, missing_revisions, remove_backups
from app.storage.sqlite import MIGRATES, WRITES

T = TypeVar("T")
Work = Literal["documents", "folders"]
"""Names of locks. Only one server of a database at a time may change documents or read synchronised folders."""

log = logging.getLogger(__name__)

_OUR_MISTAKES = (IntegrityError, ProgrammingError, DataError, NotSupportedError)


class Database:
    """The open database. Safe to use from any thread; made by `open_database`.

    is_shared: whether other servers, with their own data folders, may use it at the same time.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.is_shared = engine.dialect.name == "postgresql"
        reads, writes = (postgres.READS, postgres.WRITING) if self.is_shared else ({}, {})
        self.sessions = sessionmaker(engine.execution_options(**reads), expire_on_commit=False)
        self._writers = sessionmaker(engine.execution_options(**{WRITES: True}, **writes), expire_on_commit=False)
        self._is_there, self._failures = False, 0  # False: the caller, not the log, reports a failed start
        self._lock = threading.Lock()
        self._has_deleted_text = False  # in SQLite's write-ahead log

    @contextmanager
    def read(self) -> Iterator[Session]:
        with self._used(), self.sessions.begin() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        with self._used(), self._writers.begin() as session:
            yield session

    @contextmanager
    def migration(self) -> Iterator[Connection]:
        with self._used(), self._writers.begin() as session:
            yield session.connection(execution_options={MIGRATES: True})
        if not self.is_shared:
            self.engine.dispose()  # this connection ignores foreign keys

    def rows(self, query: Select[*tuple[Any, ...]]) -> Sequence[Row[*tuple[Any, ...]]]:
        return self._read(lambda session: session.execute(query).all())

    def values(self, query: Select[T]) -> Sequence[T]:
        return self._read(lambda session: session.scalars(query).all())

    def _read(self, find: Callable[[Session], T]) -> T:
        """Return the result of `find`, which only reads. If the connection was lost, `find` is called again. Raises
        DeskError, also for a value of a wrong type, which a damaged database may contain.
        """
        try:
            with self.read() as session:
                return find(session)
        except DeskError as error:
            if error.code != postgres.LOST:
                raise
        except (ValueError, LookupError) as error:
            reason = f"{self.name} is damaged (a value cannot be read)"
            raise DeskError(f"{reason}: restore a backup", code="database-damaged") from error
        with self.read() as session:
            return find(session)

    @contextmanager
    def alone(self, work: Work) -> Iterator[Callable[[], bool]]:
        """Hold the lock for this work during the block, if it is free. Yield a function that returns whether the lock
        is held now: a lost connection releases it.
        """
        if not self.is_shared:
            yield lambda: True
            return
        with self._used():
            connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            with self._used():
                is_ours = postgres.take_lock(connection, work)
            yield lambda: is_ours and postgres.is_alive(connection)
        finally:
            with suppress(DBAPIError, PendingRollbackError):  # a lost connection has released the lock
                postgres.give_locks_back(connection)
            connection.close()

    def flush_log(self) -> None:
        """Empty SQLite's write-ahead log after a deletion, because it still contains the deleted text. If the database
        is in use, a later call, `tidy` or closing empties it. PostgreSQL reuses the space of deleted rows by itself.
        """
        if not self.is_shared:
            with self._raw() as raw:
                self._has_deleted_text = not sqlite.empty_log(raw)

    def tidy(self) -> None:
        if self._has_deleted_text:
            self.flush_log()

    def back_up(self, revision: str) -> None:
        """Copy a SQLite file before a migration, and log it. revision: the first one to run. Raises DeskError."""
        if not self.is_shared:
            with self._raw() as raw:
                copy = back_up(raw, revision)
            log.warning("%s is migrated (%s); a copy of the old database is %s", self.name, revision, copy)

    def remove_backups(self, made_before: datetime | None = None) -> None:
        if not self.is_shared:
            with self._raw() as raw:
                remove_backups(raw, math.inf if made_before is None else made_before.timestamp())

    @contextmanager
    def _raw(self) -> Iterator[sqlite3.Connection]:
        with self._used(), self.engine.connect() as connection:
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, sqlite3.Connection)
            try:
                yield raw
            except sqlite3.Error as error:
                raise DBAPIError(None, None, error) from error

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Turn database errors that a person can fix into DeskError, and record whether the database is reachable."""
        failures = self._failures
        try:
            with _explained(self.name):
                yield
        except DeskError as error:
            if error.is_away and self._notes(is_there=False):
                log.warning("%s", error)
            raise
        is_proved = failures == self._failures  # work that began before a failure proves nothing
        if is_proved and not self._is_there and self._notes(is_there=True) and failures:
            log.warning("%s is reachable again", self.name)

    def _notes(self, *, is_there: bool) -> bool:
        """Record whether the database is reachable, and return whether this has changed."""
        with self._lock:
            was_there, self._is_there = self._is_there, is_there
            self._failures += not is_there
        return was_there != is_there

    def close(self) -> None:
        self.engine.dispose()


class Store:
    """Base class for access to tables. Safe to use from any thread; each method is a transaction. Raises DeskError."""

    def __init__(self, database: Database) -> None:
        self._database = database


def open_database(url: str, *, upgrade: bool = True) -> Database:
    """Connect to the database and migrate it. A missing SQLite file is created, but not its folder or a PostgreSQL
    database. upgrade: create or migrate tables; a SQLite file is copied first (`migrate`). False: only read, because a
    server may be running. Raises DeskError; without `upgrade`, "database-older" for an older database, "no-database"
    for a missing or empty one. An empty SQLite file in a folder with an index of passages is "database-emptied".
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
        if has_no_tables and file is not None and (file.parent / "passages.index").exists():
            raise DeskError(
                f"{database.name} is empty, but its folder has an index of passages: restore a backup; for a new desk, "
                "use another folder",
                code="database-emptied",
            )
        if has_no_tables and not upgrade:
            raise _no_desk_in(database)
        if missing and not upgrade:
            raise DeskError(
                f"{database.name} was written by an older Warmdesk, and this command does not change it: start or "
                "restart `warmdesk serve`, which migrates it",
                code="database-older",
            )
        if missing and not has_no_tables:
            database.back_up(missing[0].revision)
        if missing and upgrade:
            with database.migration() as connection:
                migrate(connection, database.name)
    except BaseException:
        database.close()
        raise
    return database


def _no_desk_in(database: Database) -> DeskError:
    return DeskError(f"{database.name} does not exist or is empty: ingest documents first", code="no-database")


def checked_version(url: str) -> str:
    """Return a database's kind and version, and a server's URL. A SQLite file is checked whole. Raises DeskError."""
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
    parsed = _parsed(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        raise DeskError(
            "the database URL is not valid: write it like sqlite:////folder/file.sqlite3 or "
            "postgresql+psycopg://user:password@host/database",
            code="database-url",
        ) from None


def _connected(url: str, *, is_reader: bool) -> Database:
    """Return the database of a URL, unchecked. Raises DeskError; no message contains a password."""
    parsed = _parsed(url)
    kind = parsed.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise DeskError(
            f"unknown kind of database {kind!r}: the URL must begin with sqlite:// or postgresql+psycopg://",
            code="database-url",
        )
    name = sqlite.name_of(parsed) if kind == "sqlite" else postgres.name_of(parsed)
    engine = _engine(parsed, name)
    (sqlite if kind == "sqlite" else postgres).set_up(engine, is_reader=is_reader)
    return Database(engine, f"the database {name}")


def _engine(url: URL, name: str) -> Engine:
    try:
        if url.get_backend_name() == "sqlite":
            return create_engine(url, hide_parameters=True)  # errors are logged, and parameters are customers' words
        return create_engine(url, hide_parameters=True, connect_args=postgres.connecting(url), **postgres.POOL)
    except NoSuchModuleError:
        raise DeskError(f"unknown kind of database in {name}", code="database-url") from None
    except ImportError as error:
        package = error.name or "psycopg"
        how = "run pip install '.[postgres]' in Warmdesk's source folder" if package == "psycopg" else "install it"
        raise DeskError(f"the database {name} needs the Python package {package}: {how}", code="database-url") from None


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise DeskError(
            f"{name} is busy: all connections of this server are in use; try again", code="database-busy"
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
