"""SQLite: connections, transactions and explanations of errors, with code that `postgres` also uses."""

import sqlite3
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from app.domain.errors import DeskError

WRITES: Final = "warmdesk_writes"
"""Execution option of connections whose transactions hold the write lock from their start."""

MIGRATES: Final = "warmdesk_migrates"
"""Execution option of a transaction that changes tables: it waits for other writers, and has no time limit."""


class Problem(NamedTuple):
    """A problem that a person can fix. code: of the DeskError. what: the problem in words. cure: the fix."""

    code: str
    what: str
    cure: str


BUSY_TIMEOUT_MS = 30_000
"""Maximum time that a writer waits for others, long enough for a slow disk."""
_LOG_TIMEOUT_MS = 50  # maximum time that emptying the log waits for readers, because all writers wait for it

_DAMAGED = Problem("database-damaged", "is damaged", "restore a backup, or move the file away and ingest again")
# By the prefix of SQLite's error name.
_PROBLEMS = {
    "SQLITE_NOTADB": Problem("database-damaged", "is not a database", "move the file away, or restore a backup"),
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_READONLY": Problem("database-read-only", "is read-only", "make the file and its folder writable"),
    "SQLITE_PERM": Problem("database-read-only", "cannot be opened", "make the file and its folder writable"),
    "SQLITE_CANTOPEN": Problem(
        "database-unreachable", "cannot be opened", "check that its folder exists and is writable"
    ),
    "SQLITE_FULL": Problem("disk-full", "cannot grow: the disk is full", "free some space; nothing was changed"),
    "SQLITE_BUSY": Problem("database-busy", "is busy", "another process is writing to it; try again"),
    "SQLITE_IOERR": Problem("disk-error", "cannot be read or written", "check whether the disk is full or failing"),
}


def name_of(url: URL) -> str:
    if not url.database or ":memory:" in url.database or "mode=memory" in str(url):
        raise DeskError("a database in memory is lost at exit: give the URL of a file", code="database-url")
    return url.database


def set_up(engine: Engine, *, is_reader: bool) -> None:
    """Prepare an engine before its first connection. is_reader: the file must exist, and is not changed."""
    if is_reader:
        event.listen(engine, "do_connect", _create_nothing)
    else:
        event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA journal_mode = WAL").close())
    event.listen(engine, "connect", _set_up_connection)
    event.listen(engine, "begin", _begin)


def check_whole(connection: Connection, name: str) -> None:
    """Check the integrity of the whole database. Raises DeskError for damage. Changed values are not detected."""
    found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
    if found != "ok":
        reason = " ".join(str(found).split())
        raise DeskError(f"{name} {_DAMAGED.what} ({reason}): {_DAMAGED.cure}", code=_DAMAGED.code)


def empty_log(raw: sqlite3.Connection) -> bool:
    """Copy the write-ahead log into the file and truncate it. Returns False if a reader still needs it."""
    raw.execute("PRAGMA wal_checkpoint(PASSIVE)").close()  # most of the work, without blocking others
    raw.execute(f"PRAGMA busy_timeout = {_LOG_TIMEOUT_MS}").close()
    try:
        is_busy, *_ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        raw.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}").close()
    return not is_busy


def problem_of(error: DBAPIError) -> Problem | None:
    name = getattr(error.orig, "sqlite_errorname", "")
    return next((problem for prefix, problem in _PROBLEMS.items() if name.startswith(prefix)), None)


def _create_nothing(dialect: Dialect, entry: ConnectionPoolEntry, given: list[Any], named: dict[str, Any]) -> None:
    if not named.get("uri"):
        given[0], named["uri"] = f"{Path(given[0]).absolute().as_uri()}?mode=rw", True


def _set_up_connection(raw: object, entry: ConnectionPoolEntry) -> None:
    assert isinstance(raw, sqlite3.Connection)
    # None: only `_begin` begins transactions. Else Python's driver begins them itself, and later.
    raw.isolation_level = None
    for pragma in (
        f"busy_timeout = {BUSY_TIMEOUT_MS}",
        "synchronous = NORMAL",
        "foreign_keys = ON",
        "temp_store = MEMORY",
        "secure_delete = ON",  # deleted text is overwritten
    ):
        raw.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    # A transaction that reads first and writes later cannot wait for the lock, so it takes the lock at its start.
    options = connection.get_execution_options()
    if options.get(MIGRATES, False):  # recreating a table would delete the rows that refer to it
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(WRITES, False) else "BEGIN")
