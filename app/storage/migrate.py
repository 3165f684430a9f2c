"""Migrates a database to the current tables. Alembic runs the revisions in `migrations`.

A new database gets the tables of `tables` at once, and is marked with the latest revision. In an older database the
missing revisions run in the caller's transaction. A database of a newer Warmdesk is refused, because its migrations
cannot be undone.

A SQLite file is copied first. The newest copies stay, so that the previous version can be used again. The copies would
keep data that is deleted later, so deleting a document removes the copies (`remove_backups`).

Out of scope: copies of PostgreSQL databases; backups of a whole data folder (`archive`).
"""

import math
import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from app.domain.errors import DeskError
from app.storage.files import PARTIAL
from app.storage.tables import Base
from durable import replacing

if TYPE_CHECKING:  # Alembic is imported only when something is migrated
    from alembic.script import Script, ScriptDirectory

ENDING = ".before-"  # the text between the name of the database and the revision
KEPT = 2


def back_up(raw: sqlite3.Connection, revision: str) -> Path:
    """Copy an open database to a file in its folder, completely or not at all. Return the file. Only the newest
    `KEPT` copies stay. revision: the first one to run. The connection must not be in a transaction. Raises
    sqlite3.Error and OSError.
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
    """Delete unfinished copies of an open database, and copies made before a time; by default all copies."""
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


REVISIONS = Path(__file__).with_name("migrations")


def revisions() -> "Sequence[Script]":
    return tuple(_scripts(REVISIONS).walk_revisions())[::-1]


def is_new(connection: Connection) -> bool:
    return not inspect(connection).has_table("alembic_version")


def missing_revisions(connection: Connection, name: str) -> "Sequence[Script]":
    """Return the revisions that a database lacks, oldest first. Raises DeskError "database-newer"."""
    if not is_new(connection) and _stored(connection) == _newest():
        return ()
    from alembic.runtime.migration import MigrationContext

    known = revisions()
    names = [one.revision for one in known]
    done = MigrationContext.configure(connection).get_current_heads()
    if unknown := sorted(set(done) - set(names)):
        raise DeskError(
            f"{name} was written by a newer Warmdesk ({unknown[-1]}): update Warmdesk, or use another --data-dir",
            code="database-newer",
        )
    return known[names.index(done[0]) + 1 :] if done else known


def _stored(connection: Connection) -> set[str]:
    return set(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())


def _newest() -> set[str]:
    """Return the latest revision, read from the files' text, because importing Alembic takes long."""
    files = "".join(file.read_text(encoding="utf-8") for file in REVISIONS.glob("*.py"))
    known, below = (
        set(re.findall(rf"^{name} = ['\"](.+)['\"]$", files, re.M)) for name in ("revision", "down_revision")
    )
    return known - below


def migrate(connection: Connection, name: str) -> None:
    """Create the tables, or run the missing revisions, within the caller's transaction. With SQLite, foreign keys are
    off in it, so that a revision can recreate a table without deleting the rows that refer to it. Raises the DeskError
    of `missing_revisions`.
    """
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    context, missing = MigrationContext.configure(connection), missing_revisions(connection, name)
    if is_new(connection):
        Base.metadata.create_all(connection, checkfirst=False)  # another program's table of that name is an error
    elif missing:
        with Operations.context(context):
            for revision in missing:
                revision.module.upgrade()
        if connection.dialect.name == "sqlite":
            orphan = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
            assert orphan is None, f"a revision deleted rows to which others refer: {orphan}"
    context.stamp(_scripts(REVISIONS), "head")


@cache
def _scripts(folder: Path) -> "ScriptDirectory":
    from alembic.script import ScriptDirectory

    return ScriptDirectory(folder, version_locations=[folder])
