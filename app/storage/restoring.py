"""Restores a backup into a data folder: all of it, or nothing.

Everything is unpacked and checked in a temporary folder within the data folder, which may be the root of a volume. Then
it is put in place by renaming.

Out of scope: databases on a server; migrating an older database, which the server does when it opens it.
"""

import os
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from app.domain.errors import DeskError
from app.domain.progress import Progress, no_progress
from app.domain.settings import Settings
from app.storage.archive import FORMAT, Manifest, check_database, explained, is_left_out, read_archive
from app.storage.data_folder import LOCK_FILE, OWNER_FILE, lock_data_folder, swap
from app.storage.database import sqlite_file
from app.storage.files import REPLACED, STAGED, SettingsFile
from app.storage.migrate import revisions
from durable import scratch_folder, sync

_PATHS = (
    ("documents", "path"),
    ("message_citations", "document"),
    ("message_modules", "document"),
    ("forgotten_documents", "path"),
)
"""Columns with paths of files. Uploaded files are in the data folder."""


@dataclass(frozen=True, slots=True)
class Access:
    """Names of the accounts and API keys that a restore makes valid again, even if removed after the backup."""

    accounts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored backup. aside: the new folder of the replaced content; None: there was none. access: accounts and keys
    that are valid again. note: why the server would not use the database, or "".
    """

    folder: Path
    manifest: Manifest
    aside: Path | None
    access: Access
    note: str = ""


def restore_folder(
    settings: Settings, file: Path, progress: Progress = no_progress, *, force: bool = False
) -> Restored:
    """Check an archive, unpack it, and make it the data folder. force: also replace existing content, which is moved
    aside. If it raises DeskError, the folder is unchanged.
    """
    folder = settings.data_dir
    stays = {LOCK_FILE, OWNER_FILE, settings.models_folder.name, "lost+found"}  # no backup has these
    with explained(folder):
        if not file.is_file():
            raise DeskError(f"there is no file {str(file)!r}", code="no-such-file")
        manifest = read_archive(file, progress=progress)
        check_version(file, manifest)
        database = None if manifest.database is None else folder / manifest.database
        if database is not None and not _is_at(settings.database_url, database):
            message = f"the server would not use the database of {file}, which is restored to {database}"
            cure = "database_url names another one; restore without it, and set it afterwards"
            raise DeskError(f"{message}: {cure}", code="database-url")
        foreign = next((one.path for one in manifest.files if is_left_out(one.path, settings)), None)
        if foreign is not None:  # compiled code in models/ would run at the next start
            raise DeskError(
                f"{file} contains {foreign!r}, so it is not a backup: choose another one", code="archive-damaged"
            )
        with lock_data_folder(folder, "warmdesk restore"):
            found = [path for path in sorted(folder.iterdir()) if path.name not in stays]
            there = [path for path in found if not path.name.startswith((REPLACED, STAGED))]
            if there and not force:
                raise DeskError(
                    f"data folder {folder} is not empty: use another --data-dir, or --force, which moves it aside",
                    code="data-folder-not-empty",
                )
            with scratch_folder(folder, STAGED) as staged:
                manifest, access = read_archive(file, staged, progress), Access()
                if manifest.database is not None:
                    access = _prepare(staged / manifest.database, manifest.folder, str(folder.resolve()))
                for path in (staged, *staged.rglob("*")):
                    sync(path)
                note = _note(staged / settings.settings_file.name, database)
                aside = _aside(folder) if there else None
                old = [] if aside is None else [(path, aside / path.name) for path in there]
                swap(folder, [*old, *((path, folder / path.name) for path in sorted(staged.iterdir()))])
    return Restored(folder, manifest, aside, access, note)


def check_version(file: Path, manifest: Manifest) -> None:
    ours = version("warmdesk")
    known = {one.revision for one in revisions()}
    is_newer = manifest.format > FORMAT or _numbers(manifest.version) > _numbers(ours)
    if is_newer or (manifest.schema is not None and manifest.schema not in known):
        raise DeskError(
            f"{file} was written by a newer Warmdesk ({manifest.version}, {manifest.schema}): update this one, {ours}",
            code="archive-newer",
        )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _prepare(database: Path, before: str, now: str) -> Access:
    """Check a database, change its paths to the new data folder, and end all sessions."""
    try:
        with closing(sqlite3.connect(database)) as connection, connection:
            check_database(connection)
            for table, column in _PATHS if before != now else ():
                connection.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                    [now, len(before) + 1, len(before) + 1, before + os.sep],
                )
            connection.execute("DELETE FROM sessions")
            keys = _names(connection, "api_keys WHERE revoked IS NULL")
            return Access(_names(connection, "accounts"), keys)
    except sqlite3.Error as error:
        raise DeskError(f"the database of the backup cannot be used: {error}", code="archive-damaged") from error


def _names(connection: sqlite3.Connection, where: str) -> tuple[str, ...]:
    return tuple(name for [name] in connection.execute(f"SELECT name FROM {where} ORDER BY name"))


def _is_at(url: str, database: Path) -> bool:
    file = sqlite_file(url)
    return file is not None and file.resolve() == database.resolve()


def _note(settings_file: Path, database: Path | None) -> str:
    url = SettingsFile(settings_file).values().get("database_url")
    if database is None or url is None or _is_at(str(url), database):
        return ""
    return f"the restored settings (database_url) name another database than {database}: move this file to that place"


def _aside(folder: Path) -> Path:
    """Return a new folder name for the replaced content, unique even within one second."""
    now = f"{REPLACED}{datetime.now():%Y-%m-%d-%H%M%S}"
    names = (now, *(f"{now}-{number}" for number in range(2, 100)))
    return next(path for name in names if not (path := folder / name).exists())
