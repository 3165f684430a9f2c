"""The format of a backup: a tar file, compressed with gzip, whose last member `manifest.json` names all others with
their sizes and digests. Reading it always checks every byte.

Not covered: what belongs into a backup (`archiving`), and putting it back (`restoring`).
"""

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

from pydantic import TypeAdapter, ValidationError

from app.domain.errors import DeskError
from app.domain.progress import Progress, no_progress

FORMAT = 1
MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 256 << 20
_PIECE = 1 << 20
_COMPRESSION = 1  # most bytes are vectors, which hardly become smaller; text does even so


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """path: within the data folder, with slashes. size: in bytes. sha256: in hexadecimal."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an archive holds. version: of the Warmdesk that wrote it. created: ISO 8601. folder: the data folder it was
    made of. database: path of the SQLite database among the files, and schema its last migration; None: the database
    is elsewhere.
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
    """A file to be read once, whose digest is known then."""

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
    """Write files into an archive; gives its manifest. sources: path in the archive, and the file; one that is gone by
    then is left out. about: the manifest without its files. Raises OSError, and DeskError for a file that became
    shorter meanwhile.
    """
    listed, files = list(sources), list[ArchivedFile]()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=_COMPRESSION) as archive:
        for done, (name, path) in enumerate(listed):
            progress("archiving", done, len(listed))
            try:
                files.append(_add(archive, name, path))
            except FileNotFoundError:  # such as an index that was just replaced
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
            if error.errno is not None:  # of the system: a disk that is full, or fails
                raise
            raise DeskError(f"{path} became shorter while it was read: try again", code="backup-changed") from None
    return ArchivedFile(name, status.st_size, hashed.sha256)


def read_archive(file: Path, into: Path | None = None, progress: Progress = no_progress) -> Manifest:
    """Read an archive to its end and compare all it holds with its manifest. into: an empty folder for the files; None:
    they are only read. Raises DeskError "archive-damaged", also for files that would lie outside of the folder, and
    OSError.
    """
    found, manifest = dict[str, ArchivedFile](), b""
    try:
        with tarfile.open(file, "r:gz") as archive:
            for member in archive:
                if manifest or not member.isreg() or not _is_inside(member.name) or member.name in found:
                    raise _damaged(file, f"{member.name!r} does not belong there")
                if member.name == MANIFEST:
                    manifest = _content(archive, member, file)
                    continue
                found[member.name] = _take(archive, member, into)
                progress("checking", len(found), len(found))
            while archive.fileobj is not None and archive.fileobj.read(_PIECE):
                pass  # up to the checksum of the compressed whole
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(file, str(error)) from error
    about = _parse(manifest, file)
    for listed in about.files:
        if found.pop(listed.path, None) != listed:
            raise _damaged(file, f"{listed.path!r} is not as it was written")
    if found:
        raise _damaged(file, f"{min(found)!r} does not belong there")
    if about.database is not None and about.database not in {listed.path for listed in about.files}:
        raise _damaged(file, "the database is missing")
    return about


def _is_inside(name: str) -> bool:
    """Whether a name is a plain path below a folder, written in the one way it can be."""
    path = PurePosixPath(name)
    return str(path) == name and not path.is_absolute() and ".." not in path.parts and name != "."


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, file: Path) -> bytes:
    content = archive.extractfile(member)
    if content is None or member.size > _LARGEST_MANIFEST:
        raise _damaged(file, "its manifest cannot be read")
    return content.read()


def _take(archive: tarfile.TarFile, member: tarfile.TarInfo, into: Path | None) -> ArchivedFile:
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
    return DeskError(f"{file} is not a whole backup ({reason}): take another one", code="archive-damaged")
