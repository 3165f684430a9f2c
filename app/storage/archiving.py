"""Making a backup: one archive of a data folder, also of one whose desk is being served.

The database is copied as it was at one moment. Then files beside it are copied one after another; each is whole, as the
desk replaces files and never writes into them, and an index that is a little older or newer is brought up to date
from the database. Not covered: databases on a server, which have tools of their own; what lies behind links.
"""

import errno
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict, Unpack

from app.domain.errors import DeskError
from app.domain.progress import Progress, no_progress
from app.domain.settings import Settings
from app.storage.archive import FORMAT, Manifest, read_archive, write_archive
from app.storage.backup import ENDING
from app.storage.database import sqlite_file
from app.storage.files import PARTIAL, REPLACED, STAGED, sync_folder
from app.storage.lock import LOCK_FILE, OWNER_FILE, SOCKET_FILE
from app.storage.swap import SWAP_FILE

DATABASE = "warmdesk.sqlite3"
"""Where a database stands in the archive that does not lie in the data folder."""
_ABANDONED_S = 86_400.0
EVALS = "evals"
"""What measurements keep for their next run."""
_NOT_FILES = frozenset({LOCK_FILE, OWNER_FILE, SOCKET_FILE, SWAP_FILE})


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was made and checked. num_bytes: of the archive. left_out: links of the data folder, which are not
    followed. note: what the archive lacks, "" if nothing.
    """

    file: Path
    num_bytes: int
    manifest: Manifest
    left_out: tuple[str, ...] = ()
    note: str = ""


class BackupOptions(TypedDict, total=False):
    """with_modules: take encoded passages, too, which the model would else read again. overwrite: whether the backup
    may take the place of a file.
    """

    with_modules: bool
    overwrite: bool


def back_up_folder(
    settings: Settings, file: Path, progress: Progress = no_progress, **options: Unpack[BackupOptions]
) -> Backup:
    """Write an archive, read it again, and only then give it its name. Raises DeskError; then there is nothing, or what
    was there before.
    """
    with_modules = options.get("with_modules", False)
    folder, file = settings.data_dir.resolve(), file.expanduser().absolute()
    if file.resolve().is_relative_to(folder):
        raise DeskError(f"{file} is in the data folder: write the backup to another one", code="backup-inside")
    if file.is_dir() or (file.exists() and not options.get("overwrite")):
        raise DeskError(f"{file} exists: give another name, or --force", code="file-exists")
    if not file.parent.is_dir():
        raise DeskError(f"there is no folder {file.parent}: make it first", code="no-such-file")
    database = sqlite_file(settings.database_url)
    note = "" if database is not None else "the database is on a server and not in the archive: save it with pg_dump"
    _remove_killed(file.parent)
    with explained(file), tempfile.TemporaryDirectory(dir=file.parent, prefix=PARTIAL) as scratch:
        copy, archive = Path(scratch, "database"), Path(scratch, "archive")
        about = _about(folder, with_modules)
        if database is not None:  # before files are listed: none that it knows may be missing
            inside = database.resolve().is_relative_to(folder)
            name = database.resolve().relative_to(folder).as_posix() if inside else DATABASE
            about = replace(about, database=name, schema=copy_database(database, copy))
        sources, left_out = _files(settings, database, with_modules)
        if about.database is not None:
            sources = [(about.database, copy), *((path, one) for path, one in sources if path != about.database)]
        with open(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            manifest = write_archive(out, sources, about, progress)
            out.flush()
            os.fsync(out.fileno())
        if read_archive(archive, progress=progress) != manifest:
            raise DeskError(f"{file} was not written as it should be: is its disk failing?", code="disk-error")
        archive.replace(file)
        sync_folder(file.parent)
    return Backup(file, file.stat().st_size, manifest, tuple(left_out), note)


def _remove_killed(folder: Path) -> None:
    """Remove what backups to this folder left that were killed: a copy of the database. One of today may be at work."""
    for copy in folder.glob(f"{PARTIAL}*/database"):
        with suppress(OSError):  # another backup has just removed it
            if time.time() - copy.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(copy.parent)


def _about(folder: Path, with_modules: bool) -> Manifest:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Manifest(
        format=FORMAT,
        version=version("warmdesk"),
        created=created,
        folder=str(folder),
        database=None,
        schema=None,
        with_modules=with_modules,
    )


def copy_database(database: Path, copy: Path) -> str | None:
    """Copy a SQLite database that may be in use, as it is at this moment, and check the copy; gives its last migration.
    Nobody waits for it. Raises DeskError.
    """
    if not database.exists():
        raise DeskError(f"there is no database {database}: is this the right --data-dir?", code="no-database")
    try:
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)  # all pages in one step, which is one reading transaction
            target.execute("PRAGMA journal_mode = DELETE")  # one file
            return check_database(target)
    except sqlite3.Error as error:
        if error.sqlite_errorname.startswith("SQLITE_FULL"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise DeskError(f"the database {database} cannot be copied: {error}", code="database-error") from error


def check_database(connection: sqlite3.Connection) -> str | None:
    """Read all of a database; gives its last migration. Raises DeskError if it is damaged, and sqlite3.Error."""
    [[found]] = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        raise DeskError(f"the database is damaged ({found}): restore a backup", code="database-damaged")
    [[last]] = connection.execute("SELECT max(name) FROM migrations").fetchall()
    return None if last is None else str(last)


def _files(settings: Settings, database: Path | None, with_modules: bool) -> tuple[list[tuple[str, Path]], list[str]]:
    """Files of a data folder by their path in it, and links. Neither has what can be made again, what belongs to a
    running process, and the database.
    """
    folder, files, links = settings.data_dir.resolve(), list[tuple[str, Path]](), list[str]()
    modules = None if with_modules else settings.modules_folder.name
    for place, folders, names in os.walk(folder):
        here = Path(place)
        for path in [here / name for name in (*folders, *names)]:
            if path.is_symlink():
                links.append(path.relative_to(folder).as_posix())
        if here == folder:
            folders[:] = [one for one in folders if one != modules and not is_left_out(one, settings)]
            names = [one for one in names if not is_left_out(one, settings)]
        for path in [here / name for name in names if not name.startswith(PARTIAL)]:
            if path.is_file() and not path.is_symlink() and not _is_of_database(path, database):
                files.append((path.relative_to(folder).as_posix(), path))
    return sorted(files), sorted(links)


def is_left_out(path: str, settings: Settings) -> bool:
    """Whether no backup holds a path of the data folder: what is computed again, and may be code that runs, and what
    belongs to a running process or to another backup. Also where a file system takes capitals for small letters.
    """
    name = path.partition("/")[0].casefold()
    own = {settings.models_folder.name, EVALS, f"{settings.settings_file.stem}.tmp", *_NOT_FILES}
    return name in own or name.startswith((REPLACED, STAGED))


def _is_of_database(path: Path, database: Path | None) -> bool:
    """Whether a file is the database, its log, or a copy from before a migration."""
    if database is None or path.parent != database.resolve().parent:
        return False
    return path.name in {database.name + end for end in ("", "-wal", "-shm", "-journal")} or path.name.startswith(
        database.name + ENDING
    )


@contextmanager
def explained(file: Path) -> Iterator[None]:
    """Turns errors of the system into one line. file: what is being made."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"{file} is not there yet, the disk is full: free some space, and do it again"
            raise DeskError(message, code="disk-full") from error
        where = f" ({error.filename})" if error.filename and error.filename != str(file) else ""
        raise DeskError(f"{file} cannot be made: {error.strerror or error}{where}", code="system") from error
