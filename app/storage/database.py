"""Opens the database and gives sessions, one short transaction each.

    with database.read() as session: ...     one consistent view
    with database.write() as session: ...    the write lock from the start, committed at the end

A session ends with its block, and no block calls a model. SQLite waits for the write lock for up to five seconds.
Problems with the file (read-only, full disk, not a database, damaged, busy, written by a newer Warmdesk) become one
clear DeskError; broken constraints are our mistakes and stay as they are.

Not covered: who may use a data folder (`lock`), the tables (`tables`), their history (`migrations`).
"""

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, Row, Select, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from app.domain.errors import DeskError
from app.storage.backup import back_up, remove_backups
from app.storage.migrations import MIGRATIONS, migrate, missing_migrations

T = TypeVar("T")

log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 5000
_WRITES = "warmdesk_writes"
_OUR_MISTAKES = (IntegrityError, ProgrammingError, DataError, NotSupportedError)

# By the beginning of SQLite's name for the error: our code, what happened, what to do.
_PROBLEMS = {
    "SQLITE_NOTADB": ("database-damaged", "is not a database", "move the file away, or restore a backup"),
    "SQLITE_CORRUPT": ("database-damaged", "is damaged", "restore a backup, or move the file away and ingest again"),
    "SQLITE_READONLY": ("database-read-only", "is read-only", "make the file and its folder writable"),
    "SQLITE_PERM": ("database-read-only", "may not be opened", "make the file and its folder writable"),
    "SQLITE_CANTOPEN": ("database-unreachable", "cannot be opened", "does its folder exist, and may it be written?"),
    "SQLITE_FULL": ("disk-full", "cannot grow: the disk is full", "free some space; nothing was changed"),
    "SQLITE_BUSY": ("database-busy", "is busy", "another process is writing to it; try again"),
    "SQLITE_IOERR": ("disk-error", "cannot be read or written", "is the disk full or failing?"),
}


class Database:
    """The open database. Safe to use from any thread; made by `open_database`."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.sessions = sessionmaker(engine, expire_on_commit=False)
        self._writers = sessionmaker(engine.execution_options(**{_WRITES: True}), expire_on_commit=False)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads. Raises DeskError."""
        with explained(self.name), self.sessions.begin() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that may read and write; undone if the block raises. Raises DeskError."""
        with explained(self.name), self._writers.begin() as session:
            yield session

    def rows(self, query: Select[*tuple[Any, ...]]) -> Sequence[Row[*tuple[Any, ...]]]:
        """What a query finds, in a transaction of its own. Raises DeskError."""
        with self.read() as session:
            return session.execute(query).all()

    def values(self, query: Select[T]) -> Sequence[T]:
        """The first column of what a query finds. Raises DeskError."""
        with self.read() as session:
            return session.scalars(query).all()

    def flush_log(self) -> None:
        """After a deletion: empty SQLite's write-ahead log, which still holds the deleted text. If a reader prevents
        it, this happens at a later call, or when the database is closed.
        """
        if self.engine.dialect.name == "sqlite":
            with self._raw() as raw:
                raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()

    def back_up(self, migration: str) -> None:
        """Make a copy of a SQLite file before this migration, and say so. Raises DeskError."""
        if self.engine.dialect.name == "sqlite":
            with self._raw() as raw:
                copy = back_up(raw, migration)
            log.warning("%s is brought up to date (%s); as it was it is kept in %s", self.name, migration, copy)

    def remove_backups(self) -> None:
        """Delete the copies that were made before migrations."""
        if self.engine.dialect.name == "sqlite":
            with self._raw() as raw:
                remove_backups(raw)

    @contextmanager
    def _raw(self) -> Iterator[sqlite3.Connection]:
        """SQLite's own connection outside a transaction, for what works only there."""
        with explained(self.name), self.engine.connect() as connection:
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, sqlite3.Connection)
            try:
                yield raw
            except sqlite3.Error as error:
                raise DBAPIError(None, None, error) from error

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def open_database(url: str, *, upgrade: bool = True) -> Database:
    """Connect and bring the tables up to date; the file is created, its folder is not.

    url: SQLAlchemy URL of a SQLite file or a PostgreSQL database. upgrade: whether an older database is brought up to
    date, after a copy of it was made (`backup`); unset for those who do not hold the data folder, because its desk may
    be running: then an older database is an error. Raises DeskError.
    """
    parsed = _parsed(url)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    name = parsed.database if is_sqlite else parsed.render_as_string(hide_password=True)
    if is_sqlite and (not name or ":memory:" in name or "mode=memory" in url):
        raise DeskError("a database in memory is gone at exit: give the URL of a file", code="database-url")
    assert name is not None
    try:
        engine = create_engine(parsed, hide_parameters=True)  # errors are logged, and those are customers' words
    except NoSuchModuleError:
        raise DeskError(f"unknown kind of database in {name}", code="database-url") from None
    except ImportError as error:
        raise DeskError(
            f"the database {name} needs the Python package {error.name}: install it", code="database-url"
        ) from None
    if is_sqlite:
        event.listen(engine, "connect", _set_up_connection)
        event.listen(engine, "begin", _begin)
    database = Database(engine, f"the database {name}")
    try:
        with database.read() as session:
            missing = [one.__name__ for one in missing_migrations(session.connection(), database.name)]
        is_new = len(missing) == len(MIGRATIONS)
        if missing and not is_new and not upgrade:
            raise DeskError(
                f"{database.name} was written by an older Warmdesk, and this command does not change it: start or "
                "restart `warmdesk serve`, which brings it up to date",
                code="database-older",
            )
        if missing and not is_new:
            database.back_up(missing[0])
        if missing or upgrade:
            with database.write() as session:
                migrate(session.connection(), database.name)
    except BaseException:
        database.close()
        raise
    return database


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite database; None for a database of another kind. Raises DeskError."""
    parsed = _parsed(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError:
        raise DeskError(
            "the database URL is not one: write it like sqlite:////folder/file.sqlite3", code="database-url"
        ) from None


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turns database errors that a person can correct into DeskError."""
    try:
        yield
    except _OUR_MISTAKES:
        raise
    except DBAPIError as error:
        sqlite_name = getattr(error.orig, "sqlite_errorname", "")
        for prefix, (code, what, cure) in _PROBLEMS.items():
            if sqlite_name.startswith(prefix):
                raise DeskError(f"{name} {what}: {cure}", code=code) from error
        reason = " ".join(str(error.orig).split())
        raise DeskError(f"{name} cannot be used: {reason}", code="database-error") from error


def _set_up_connection(raw: object, entry: ConnectionPoolEntry) -> None:
    assert isinstance(raw, sqlite3.Connection)
    # Otherwise Python's driver begins transactions itself, and later; with None, only `_begin` does.
    raw.isolation_level = None
    for pragma in (
        f"busy_timeout = {BUSY_TIMEOUT_MS}",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
        "temp_store = MEMORY",
        "secure_delete = ON",  # forgotten text is overwritten, not only unlinked
    ):
        raw.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    # A transaction that reads first and writes later cannot wait for the lock: it must hold it from the start.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
