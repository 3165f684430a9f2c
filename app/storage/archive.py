"""Backups of a data folder, written while the server runs, and restored as a whole or not at all.

An archive is a tar file, compressed with gzip. Its last member `manifest.json` names all others with their sizes and
digests. Reading an archive always checks every byte. The copy of the database is its state at one moment. Then the
files of the data folder are copied one after another. Each file is complete, because the server replaces files and
never writes into them. If an index is a little older or newer, it is updated from the database. A restore unpacks and
checks everything in a temporary folder within the data folder (it may be the root of a volume), then renames the files.

Out of scope: databases on a server, which have their own backup tools, and files to which links point.
"""

import errno
import gzip
import hashlib
import io
import os
import re
import shutil
import sqlite3
import tarfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import IO, TypedDict, Unpack

from pydantic import TypeAdapter, ValidationError

from app.domain.errors import DeskError
from app.domain.progress import Progress, no_progress
from app.domain.settings import Settings
from app.storage.data_folder import LOCK_FILE, OWNER_FILE, SOCKET_FILE, SWAP_FILE, lock_data_folder, swap
from app.storage.database import sqlite_file
from app.storage.files import PARTIAL, REPLACED, STAGED, SettingsFile
from app.storage.migrate import ENDING, revisions
from durable import put_in_place, scratch_folder, sync

FORMAT = 1
MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 256 << 20
_PIECE = 1 << 20
_COMPRESSION = 1  # most bytes are vectors, which hardly compress; text compresses well at any level


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file in an archive. path: within the data folder, with slashes. size: in bytes. sha256: in hexadecimal."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of an archive. version: the Warmdesk version that wrote it. created: ISO 8601. folder: the data
    folder that was copied. database: path of the SQLite database in the archive; schema: its revision. None: the
    database is on a server.
    """

    format: int
    version: str
    created: str
    folder: str
    database: str | None
    schema: str | None
    with_modules: bool
    files: tuple[ArchivedFile, ...] = ()


_MANIFESTS = TypeAdapter(Manifest)


class _Hashed(io.RawIOBase):
    """A file that computes its digest while it is read once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest = file, hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        return data

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def write_archive(
    out: IO[bytes], sources: Iterable[tuple[str, Path]], about: Manifest, progress: Progress = no_progress
) -> Manifest:
    """Write files into an archive and return its manifest. sources: pairs of a path in the archive and a file; missing
    files are skipped. about: the manifest without its files. Raises OSError, and DeskError if a file becomes shorter
    during the copy.
    """
    listed, files = list(sources), list[ArchivedFile]()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=_COMPRESSION) as archive:
        for done, (name, path) in enumerate(listed):
            progress("archiving", done, len(listed))
            try:
                files.append(_add(archive, name, path))
            except FileNotFoundError:  # for example an index that was just replaced
                continue
        manifest = replace(about, files=tuple(files))
        data = _MANIFESTS.dump_json(manifest)
        archive.addfile(_member(MANIFEST, len(data)), io.BytesIO(data))
    progress("archiving", len(listed), len(listed))
    return manifest


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


def _add(archive: tarfile.TarFile, name: str, path: Path) -> ArchivedFile:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        member, hashed = _member(name, status.st_size), _Hashed(file)
        member.mtime = int(status.st_mtime)
        try:
            archive.addfile(member, hashed)
        except OSError as error:
            if error.errno is not None:  # a system error: the disk is full or fails
                raise
            raise DeskError(f"{path} became shorter while it was read: try again", code="backup-changed") from None
    return ArchivedFile(name, status.st_size, hashed.sha256)


def read_archive(file: Path, into: Path | None = None, progress: Progress = no_progress) -> Manifest:
    """Read a whole archive and compare its content with its manifest. into: an empty folder for the files; None: only
    check them. Raises DeskError "archive-damaged", also for files that would be outside the folder, and OSError.
    """
    found, manifest = dict[str, ArchivedFile](), b""
    try:
        with tarfile.open(file, "r:gz") as archive:
            for member in archive:
                if manifest or not member.isreg() or not _is_inside(member.name) or member.name in found:
                    raise _damaged(file, f"unexpected member {member.name!r}")
                if member.name == MANIFEST:
                    content = archive.extractfile(member)
                    if content is None or member.size > _LARGEST_MANIFEST:
                        raise _damaged(file, "its manifest cannot be read")
                    manifest = content.read()
                    continue
                found[member.name] = _unpack(archive, member, into)
                progress("checking", len(found), len(found))
            while archive.fileobj is not None and archive.fileobj.read(_PIECE):
                pass  # read to the end, to check gzip's checksum
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(file, str(error)) from error
    about = _parse(manifest, file)
    for listed in about.files:
        if found.pop(listed.path, None) != listed:
            raise _damaged(file, f"{listed.path!r} is missing or was changed")
    if found:
        raise _damaged(file, f"{min(found)!r} is not in its manifest")
    if about.database is not None and about.database not in {listed.path for listed in about.files}:
        raise _damaged(file, "the database is missing")
    return about


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return str(path) == name and not path.is_absolute() and ".." not in path.parts and name != "."


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, into: Path | None) -> ArchivedFile:
    if into is not None:
        archive.extract(member, into, filter="data")
    content = archive.extractfile(member) if into is None else (into / member.name).open("rb")
    assert content is not None  # a plain file
    with content, _Hashed(content) as hashed:
        while hashed.read(_PIECE):
            pass
        return ArchivedFile(member.name, member.size, hashed.sha256)


def _parse(manifest: bytes, file: Path) -> Manifest:
    if not manifest:
        raise _damaged(file, "it has no manifest at its end")
    try:
        return _MANIFESTS.validate_json(manifest)
    except ValidationError:
        raise _damaged(file, "its manifest cannot be read") from None


def _damaged(file: Path, reason: str) -> DeskError:
    return DeskError(f"{file} is not a complete backup ({reason}): choose another one", code="archive-damaged")


DATABASE = "warmdesk.sqlite3"  # path in the archive of a database that is outside the data folder
_ABANDONED_S = 86_400.0
EVALS = "evals"  # folder of files that measurements reuse in their next run
_NOT_FILES = frozenset({LOCK_FILE, OWNER_FILE, SOCKET_FILE, SWAP_FILE})


@dataclass(frozen=True, slots=True)
class Backup:
    """A finished and checked backup. num_bytes: size of the archive. left_out: links in the data folder, which are
    skipped. note: text about a missing part, or "".
    """

    file: Path
    num_bytes: int
    manifest: Manifest
    left_out: tuple[str, ...] = ()
    note: str = ""


class BackupOptions(TypedDict, total=False):
    """Options of a backup. with_modules: include encoded passages; without them, a restore needs to encode passages
    again. overwrite: the backup may replace an existing file.
    """

    with_modules: bool
    overwrite: bool


def back_up_folder(
    settings: Settings, file: Path, progress: Progress = no_progress, **options: Unpack[BackupOptions]
) -> Backup:
    """Write an archive, check it, then rename it to `file`. If this raises DeskError, an existing file is unchanged."""
    with_modules = options.get("with_modules", False)
    folder, file = settings.data_dir.resolve(), file.expanduser().absolute()
    if file.resolve().is_relative_to(folder):
        raise DeskError(f"{file} is in the data folder: write the backup to another folder", code="backup-inside")
    if file.is_dir() or (file.exists() and not options.get("overwrite")):
        raise DeskError(f"{file} exists: give another name, or --force", code="file-exists")
    if not file.parent.is_dir():
        raise DeskError(f"there is no folder {file.parent}: create it first", code="no-such-file")
    database = sqlite_file(settings.database_url)
    note = "" if database is not None else "the database is on a server and not in the archive: save it with pg_dump"
    _remove_killed(file.parent)
    with explained(file), scratch_folder(file.parent, PARTIAL) as scratch:
        copy, archive = scratch / "database", scratch / "archive"
        about = Manifest(
            format=FORMAT,
            version=version("warmdesk"),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            folder=str(folder),
            database=None,
            schema=None,
            with_modules=with_modules,
        )
        if database is not None:  # before listing files: the archive then has all files that the database names
            inside = database.resolve().is_relative_to(folder)
            name = database.resolve().relative_to(folder).as_posix() if inside else DATABASE
            about = replace(about, database=name, schema=copy_database(database, copy))
        sources, left_out = _files(settings, database, with_modules)
        if about.database is not None:
            sources = [(about.database, copy), *((path, one) for path, one in sources if path != about.database)]
        with open(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            manifest = write_archive(out, sources, about, progress)
        if read_archive(archive, progress=progress) != manifest:
            raise DeskError(f"{file} was not written correctly: check its disk", code="disk-error")
        put_in_place(archive, file)
    return Backup(file, file.stat().st_size, manifest, tuple(left_out), note)


def _remove_killed(folder: Path) -> None:
    """Remove temporary copies that killed backups left in this folder, if a day old: newer ones may be in use."""
    for copy in folder.glob(f"{PARTIAL}*/database"):
        with suppress(OSError):  # another backup has just removed it
            if time.time() - copy.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(copy.parent)


def copy_database(database: Path, copy: Path) -> str | None:
    """Copy the current state of a SQLite database without blocking writers, and check it. Return its revision."""
    if not database.exists():
        raise DeskError(f"there is no database {database}: is this the right --data-dir?", code="no-database")
    try:
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)  # all pages in one step, which is one reading transaction
            target.execute("PRAGMA journal_mode = DELETE")  # one file
            return check_database(target, database)
    except sqlite3.Error as error:
        if error.sqlite_errorname.startswith("SQLITE_FULL"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise DeskError(f"the database {database} cannot be copied: {error}", code="database-error") from error


def check_database(connection: sqlite3.Connection, file: Path) -> str | None:
    """Check the integrity of a database and return its revision. file: the path shown in errors. Raises DeskError if it
    is damaged, and sqlite3.Error.
    """
    [[found]] = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        problem = found.splitlines()[-1]  # the line above names the database of the connection
        raise DeskError(f"the database {file} is damaged ({problem}): restore a backup", code="database-damaged")
    [[last]] = connection.execute("SELECT max(version_num) FROM alembic_version").fetchall()
    return None if last is None else str(last)


def _files(settings: Settings, database: Path | None, with_modules: bool) -> tuple[list[tuple[str, Path]], list[str]]:
    """Return the files to back up, each with its path in the archive, and the links, which are skipped."""
    folder, files, links = settings.data_dir.resolve(), list[tuple[str, Path]](), list[str]()
    modules = None if with_modules else settings.modules_folder.name
    for place, folders, names in os.walk(folder):
        here = Path(place)
        paths = [here / name for name in (*folders, *names)]
        links += [path.relative_to(folder).as_posix() for path in paths if path.is_symlink()]
        if here == folder:
            folders[:] = [one for one in folders if one != modules and not is_left_out(one, settings)]
            names = [one for one in names if not is_left_out(one, settings)]
        for path in [here / name for name in names if not name.startswith(PARTIAL)]:
            if path.is_file() and not path.is_symlink() and not _is_of_database(path, database):
                files.append((path.relative_to(folder).as_posix(), path))
    return sorted(files), sorted(links)


def is_left_out(path: str, settings: Settings) -> bool:
    """Return whether backups exclude a path of the data folder. They exclude files that can be recomputed (some are
    code) and files of a running process or a restore. Case is ignored, because some file systems ignore it.
    """
    name = path.partition("/")[0].casefold()
    own = {settings.models_folder.name, EVALS, *_NOT_FILES}
    return name in own or name.startswith((REPLACED, STAGED))


def _is_of_database(path: Path, database: Path | None) -> bool:
    if database is None or path.parent != database.resolve().parent:
        return False
    own = {database.name + end for end in ("", "-wal", "-shm", "-journal")}
    return path.name in own or path.name.startswith(database.name + ENDING)


@contextmanager
def explained(file: Path) -> Iterator[None]:
    """Turn an OSError into a DeskError with a one-line message. file: the file being written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"{file} cannot be written, the disk is full: free some space and try again"
            raise DeskError(message, code="disk-full") from error
        where = f" ({error.filename})" if error.filename and error.filename != str(file) else ""
        raise DeskError(f"{file} cannot be written: {error.strerror or error}{where}", code="system") from error


_PATHS = (
    ("documents", "path"),
    ("message_citations", "document"),
    ("message_modules", "document"),
    ("forgotten_documents", "path"),
)
"""Columns with paths of files. Uploaded files are in the data folder."""


@dataclass(frozen=True, slots=True)
class Access:
    """Names of the accounts and valid API keys in a restored backup. Those removed after the backup are valid again."""

    accounts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored backup. aside: the folder to which the replaced content was moved; None: there was none. access:
    accounts and keys that are valid again. note: the reason why the server would not use the database, or "".
    """

    folder: Path
    manifest: Manifest
    aside: Path | None
    access: Access
    note: str = ""


def restore_folder(
    settings: Settings, file: Path, progress: Progress = no_progress, *, force: bool = False
) -> Restored:
    """Check an archive, unpack it, and make it the data folder. force: replace existing content, which is then moved
    aside. If this raises DeskError, the folder is unchanged.
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
            message = f"{file} restores its database to {database}, but database_url names another one"
            cure = "restore without the setting database_url and set it afterwards"
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
                    f"data folder {folder} is not empty: use another --data-dir, or --force to move its content aside",
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
            f"{file} is from a newer Warmdesk ({manifest.version}, {manifest.schema}): update Warmdesk (now {ours})",
            code="archive-newer",
        )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _prepare(database: Path, before: str, now: str) -> Access:
    """Check a database, change its paths to the new data folder, and end all sessions."""
    try:
        with closing(sqlite3.connect(database)) as connection, connection:
            check_database(connection, database)
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
    return f"the restored setting database_url names another database than {database}: correct it or move this file"


def _aside(folder: Path) -> Path:
    """Return a new folder name for the replaced content, unique even within one second."""
    now = f"{REPLACED}{datetime.now():%Y-%m-%d-%H%M%S}"
    names = (now, *(f"{now}-{number}" for number in range(2, 100)))
    return next(path for name in names if not (path := folder / name).exists())
