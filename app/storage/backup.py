"""Copies of a SQLite database beside it, made before a migration.

The newest copies are kept, so that the previous version can be used again. They still contain data that is deleted
later, so deleting a document removes them (`remove_backups`).

Out of scope: copies of PostgreSQL databases; backups of a whole data folder (`archive`).
"""

import math
import sqlite3
from pathlib import Path

from app.storage.files import PARTIAL
from durable import replacing

ENDING = ".before-"
"""The text between the name of the database and the revision."""
KEPT = 2
"""Number of copies of a database. Each is as large as the database."""


def back_up(raw: sqlite3.Connection, revision: str) -> Path:
    """Copy an open database to a file beside it, complete or not at all; returns the file. Older copies are deleted,
    except the newest. revision: the first one to run. The connection is in no transaction. Raises sqlite3.Error and
    OSError.
    """
    file = _file(raw)
    copy = file.with_name(f"{file.name}{ENDING}{revision}")
    for partial in _unfinished(file):
        partial.unlink(missing_ok=True)
    with replacing(copy, _partial(file)) as temporary:
        raw.execute("VACUUM INTO ?", [str(temporary)]).close()
    others = [one for one in _copies(file) if one != copy]
    for old in sorted(others, key=lambda one: one.stat().st_mtime_ns, reverse=True)[KEPT - 1 :]:
        old.unlink()
    return copy


def remove_backups(raw: sqlite3.Connection, made_before: float = math.inf) -> None:
    """Delete the copies of an open database made before a time (seconds since 1970), by default all, and unfinished
    ones.
    """
    file = _file(raw)
    old = [one for one in _copies(file) if one.stat().st_mtime < made_before]
    for copy in (*old, *_unfinished(file)):
        copy.unlink(missing_ok=True)


def _copies(file: Path) -> list[Path]:
    return [one for one in file.parent.iterdir() if one.name.startswith(file.name + ENDING)]


def _unfinished(file: Path) -> list[Path]:
    """Return the copies of killed processes. Only one process at a time may change the database."""
    return [one for one in file.parent.iterdir() if one.name.startswith(_partial(file))]


def _partial(file: Path) -> str:
    return f"{PARTIAL}{file.name}{ENDING}"


def _file(raw: sqlite3.Connection) -> Path:
    [path] = [path for _, name, path in raw.execute("PRAGMA database_list") if name == "main"]
    return Path(path)
