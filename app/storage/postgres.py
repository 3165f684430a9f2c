"""PostgreSQL: connections, locks of a database, and explanations of errors.

A transaction that may write takes one lock of the whole database at its start. So there is one writer at a time, also
with several servers, as with SQLite. Data that the transaction has read stays valid until it ends, and no transaction
is undone because of another one. SERIALIZABLE would allow parallel writers, but every write would need retries. A write
takes milliseconds and the model takes seconds, so one writer is enough.

The locks are advisory locks, which PostgreSQL releases when a connection ends.
"""

from typing import Any, Final

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from app.domain.errors import DeskError
from app.storage.sqlite import MIGRATES, WRITES, Problem
from app.storage.tables import copy_conditions_for_postgresql

LOST: Final = "database-lost"
"""Error code of a lost connection. Work that only reads may be repeated."""
POOL: Final[dict[str, Any]] = {"pool_pre_ping": True, "pool_size": 5, "max_overflow": 10, "pool_timeout": 30}
"""Connections of a server. Each is tested before use, so that a restarted database causes no errors."""
READS: Final[dict[str, Any]] = {"isolation_level": "REPEATABLE READ"}
"""Transactions that only read have one consistent view."""
WRITING: Final[dict[str, Any]] = {"isolation_level": "READ COMMITTED"}
"""Statements of a writing transaction see the state after the lock was taken, not the state when it was requested.
"""
_CONNECTING: dict[str, Any] = {
    "connect_timeout": 5,
    "application_name": "warmdesk",
    "client_encoding": "utf8",
    **{"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 30_000},
}
"""Parameters of libpq; the URL may set others. A lost connection to the database host is noticed within a minute."""
_SESSION = {
    "timezone": "UTC",
    "lock_timeout": "30s",
    "statement_timeout": "5min",
    "idle_in_transaction_session_timeout": "1min",
}
_OURS = 0x5744
"""First number of our locks. The second one is in `_LOCKS`."""
_LOCKS = {"writing": 1, "documents": 2, "folders": 3}

_BUSY = Problem("database-busy", "is busy", "another server is writing, or there are too many connections; try again")
_LOST = Problem(LOST, "closed the connection", "is the server restarting? Try again")
_UNREACHABLE = Problem("database-unreachable", "cannot be reached", "check that it runs and that its address is right")
_LOGIN = Problem("database-login", "refuses the user or the password", "correct the setting database_url")
_PARAMETER = Problem("database-url", "has a wrong parameter in its URL", "correct the setting database_url")
_MISSING = Problem("database-missing", "does not exist", "create it with `createdb`, in UTF-8")
_READ_ONLY = Problem("database-read-only", "is read-only", "give the URL of the primary server, not of a replica")
_BY_STATE = {  # by the beginning of SQLSTATE
    "08": _LOST,
    "28": _LOGIN,
    "3D000": _MISSING,
    "25006": _READ_ONLY,
    "25P03": _LOST,  # a transaction was idle for too long
    "42501": Problem("database-read-only", "cannot be written by this user", "make this user its owner"),
    "42P07": Problem("database-error", "has tables of another program", "give Warmdesk a database of its own"),
    "40": _BUSY,
    "53100": Problem("disk-full", "cannot grow: its disk is full", "free some space; nothing was changed"),
    "53": _BUSY,
    "55P03": _BUSY,
    "57014": _BUSY,
    "57P": _LOST,
    "58": Problem("disk-error", "cannot be read or written", "check whether its disk is full or failing"),
    "XX": Problem("database-damaged", "is damaged", "look at the server's log, and restore a backup"),
}
_IN_WORDS = {  # a refused connection has no SQLSTATE
    "password": _LOGIN,
    "authentication": _LOGIN,
    "pg_hba.conf": _LOGIN,
    'role "': _LOGIN,
    'database "': _MISSING,
    "connection slots": _BUSY,
    "too many": _BUSY,
    "the database system is": _LOST,  # starting up, shutting down, in recovery mode
    "terminating connection": _LOST,
}


def name_of(url: URL) -> str:
    """Return a database's name for messages, without its password or parameters, which may contain a password."""
    return url.set(query={}).render_as_string()


def connecting(url: URL) -> dict[str, Any]:
    return {name: value for name, value in _CONNECTING.items() if name not in url.query}


def set_up(engine: Engine, *, is_reader: bool) -> None:
    """Prepare an engine before its first connection. is_reader: not used, because connecting changes nothing here."""
    copy_conditions_for_postgresql()
    event.listen(engine, "connect", _set_up_connection)
    event.listen(engine, "begin", _begin)


def check_encoding(connection: Connection, name: str) -> None:
    encoding = connection.scalar(text("SHOW server_encoding"))
    if encoding != "UTF8":
        raise DeskError(
            f"{name} is in {encoding}, which cannot store all texts: create it with `createdb --encoding=UTF8`",
            code="database-encoding",
        )


def take_lock(connection: Connection, which: str) -> bool:
    """Take a lock if it is free, and return whether it was. `give_locks_back` or closing the connection releases it."""
    numbers = {"ours": _OURS, "which": _LOCKS[which]}
    return bool(connection.scalar(text("SELECT pg_try_advisory_lock(:ours, :which)"), numbers))


def is_alive(connection: Connection) -> bool:
    """Return whether a connection, and with it its locks, still exists. SQLAlchemy would replace a lost connection."""
    if connection.invalidated:
        return False
    try:
        connection.execute(text("SELECT 1"))
    except DBAPIError:
        return False
    return True


def give_locks_back(connection: Connection) -> None:
    """Release the locks at once, because PostgreSQL notices a closed connection only a little later."""
    connection.execute(text("SELECT pg_advisory_unlock_all()"))


def problem_of(error: DBAPIError) -> Problem | None:
    if state := getattr(error.orig, "sqlstate", None):
        return next((problem for prefix, problem in _BY_STATE.items() if state.startswith(prefix)), None)
    if error.connection_invalidated:
        return _LOST
    if "connection option" in str(error.orig):  # found by libpq before it connects
        return _PARAMETER
    if not isinstance(error, OperationalError):
        return None
    _, is_answered, refusal = str(error.orig).partition("FATAL:")
    if not is_answered:
        return _LOGIN if "no password supplied" in str(error.orig) else _UNREACHABLE
    return next((problem for words, problem in _IN_WORDS.items() if words in refusal), None)


def _set_up_connection(raw: Any, entry: ConnectionPoolEntry) -> None:
    with raw.cursor() as cursor:
        for name, value in _SESSION.items():
            cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
    raw.commit()


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    migrates = options.get(MIGRATES, False)
    if migrates:  # another server may be migrating the database now
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
    if options.get(WRITES, False):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_OURS}, {_LOCKS['writing']})")
    if migrates:
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.exec_driver_sql(f"SET LOCAL {name} = 0")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_SESSION['lock_timeout']}'")
