"""A copy of a SQLite database beside it, made before a migration changes it.

The newest copies are kept, so that one can go back to the version before. They still hold what is deleted later, so
forgetting a document removes them (`remove_backups`). Not covered: copies of PostgreSQL databases, which have tools of
their own; backups of a whole desk (`archiving`).
"""

import math
import sqlite3
from pathlib import Path

from app.storage.files import PARTIAL
from durable import replacing

ENDING = ".before-"
"""What stands between the database's name and the migration's."""
KEPT = 2
"""Copies that are kept of one database: each is as large as it."""


def back_up(raw: sqlite3.Connection, migration: str) -> Path:
    """Copy an open database to a file beside it, complete or not at all, in place of one of the same name; returns it.
    Older copies go, but for the newest. The connection is in no transaction. Raises sqlite3.Error and OSError.
    """
    file = _file(raw)
    copy = file.with_name(f"{file.name}{ENDING}{migration}")
    for partial in _unfinished(file):
        partial.unlink(missing_ok=True)
    with replacing(copy, _partial(file)) as temporary:
        raw.execute("VACUUM INTO ?", [str(temporary)]).close()
    others = [one for one in _copies(file) if one != copy]
    for old in sorted(others, key=lambda one: one.stat().st_mtime_ns, reverse=True)[KEPT - 1 :]:
        old.unlink()
    return copy


def remove_backups(raw: sqlite3.Connection, made_before: float = math.inf) -> None:
    """Delete the copies of an open database that `back_up` made before a time (seconds since 1970), by default all of
    them, and those that it did not finish.
    """
    file = _file(raw)
    old = [one for one in _copies(file) if one.stat().st_mtime < made_before]
    for copy in (*old, *_unfinished(file)):
        copy.unlink(missing_ok=True)


def _copies(file: Path) -> list[Path]:
    return [one for one in file.parent.iterdir() if one.name.startswith(file.name + ENDING)]


def _unfinished(file: Path) -> list[Path]:
    """Of processes that were killed: only one at a time may change the database."""
    return [one for one in file.parent.iterdir() if one.name.startswith(_partial(file))]


def _partial(file: Path) -> str:
    return f"{PARTIAL}{file.name}{ENDING}"


def _file(raw: sqlite3.Connection) -> Path:
    [path] = [path for _, name, path in raw.execute("PRAGMA database_list") if name == "main"]
    return Path(path)
