"""Files that were uploaded: kept in the data folder, because a document is known by its path.

A file is kept under its own name, in a folder of its collection; one without a collection in the folder of uploads
itself. Keeping and ingesting are one step: a file is kept only if it is a document of the desk afterwards. One that was
begun and not finished is noted (`app.storage.begun`).
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from app.domain.errors import DeskError
from app.domain.progress import Progress, no_progress
from app.knowledge.ingest import Ingestion, IngestReport
from app.storage.begun import BegunWork
from app.storage.files import PARTIAL, replace_file
from retrieval.documents.document import content_hash
from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import MAX_BYTES
from retrieval.reading.reader import FileReader
from retrieval.text.characters import readable
from retrieval.text.printing import printable

LONGEST_NAME = 150


class Uploads:
    """The uploaded files of a desk. folder: where they are kept; it is made when it is needed. begun: notes."""

    def __init__(self, folder: Path, ingestion: Ingestion, begun: BegunWork) -> None:
        self._folder, self._ingestion, self._library, self._begun = folder, ingestion, ingestion.library, begun

    def take(self, name: str, data: bytes, progress: Progress, collection: str = "") -> IngestReport:
        """Keep a file and ingest it, in place of one of the same name and collection. Raises DeskError for a bad name,
        too much data, a file that cannot be read, and while documents are taken in already; OSError. Unless the file
        is a document of the desk by then, everything is as before.
        """
        with self._ingestion.alone():
            file = self._place(safe_name(name), collection)
            path = str(file.resolve())
            before, former = self._library.find(path), file.read_bytes() if file.exists() else None
            noted = str(file.relative_to(self._folder))
            self._begun.note("upload", {noted: collection})
            try:
                keep_file(file, data)
                report = self._ingestion.run_alone([file], progress, collection=collection, warm=False)
                if report.failed:
                    raise DeskError(f"{printable(file.name)}: {report.failed[0].reason}", code="unreadable")
            except BaseException:
                if self._library.find(path) == before:
                    _put_back(file, None if before is None else former)
                    self._begun.done("upload", [noted])
                raise
            self._begun.done("upload", [noted])
            return report

    def finish(self) -> None:
        """Take in the files whose upload was begun and not finished, and delete those that are no documents. Raises as
        `take`.
        """
        if not (left := self._begun.left("upload")):
            return
        with self._ingestion.alone():
            for partial in self._folder.rglob(f"{PARTIAL}*"):
                partial.unlink(missing_ok=True)
            for name, collection in left.items():
                file = self._folder / name
                path = file.resolve()
                if file.is_file() and path.is_relative_to(self._folder.resolve()):  # a note may be of another's backup
                    self._ingestion.run_alone([file], no_progress, collection=collection, warm=False)
                    if self._library.find(str(path)) is None:
                        file.unlink()
                self._begun.done("upload", [name])

    def delete(self, path: Path, before: datetime | None = None) -> None:
        """Delete a file if it is our own copy; one of the user stays. before: also one that was kept later."""
        if not path.is_relative_to(self._folder.resolve()):
            return
        with suppress(FileNotFoundError):
            if before is None or path.stat().st_mtime <= before.timestamp():
                path.unlink()

    def _place(self, name: str, collection: str) -> Path:
        plain = self._folder / name
        there = self._library.find(str(plain.resolve()))
        is_its_own = collection == "" if there is None else collection == there.collection  # once all were kept here
        return plain if is_its_own else self._folder / collection_folder(collection) / name


def out_of_step(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """Paths of uploads that are not as their documents: one of the two is missing, or they differ. Notes tell what this
    version left so; an older one made none. folder: where uploads are. hashes: of all documents, by path.
    """
    files = {
        str(file): file for file in folder.resolve().rglob("*") if file.is_file() and not file.name.startswith(".")
    }
    stored = {path: hash_ for path, hash_ in hashes.items() if Path(path).is_relative_to(folder.resolve())}
    both = files.keys() & stored.keys()
    differ = {path for path in both if not stored[path].startswith(content_hash(files[path].read_bytes()))}
    return sorted((files.keys() ^ stored.keys()) | differ)


def keep_file(file: Path, data: bytes) -> None:
    """Write a file completely or not at all, in place of one of the same name. Raises DeskError for too much data, or a
    file that cannot be read as a document; then nothing is kept.
    """
    if len(data) > MAX_BYTES:
        raise DeskError(f"{file.name} is larger than {MAX_BYTES // 2**20} MB", code="upload-too-large")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with FileReader() as reader:
            replace_file(file, data, check=reader.load)
    except UnreadableDocument as error:
        raise DeskError(f"{file.name}: {error.reason}", code="unreadable") from None


def safe_name(name: str) -> str:
    """The last part of a path without invisible characters. Raises DeskError if it is empty, too long or begins with
    a dot.
    """
    plain = " ".join(readable(name.replace("\\", "/").rpartition("/")[2]).split())
    if not plain or plain.startswith(".") or len(plain.encode()) > LONGEST_NAME:
        raise DeskError(f"{plain[:40]!r} cannot be the name of a document: give the file another one", code="bad-name")
    return plain


def collection_folder(collection: str) -> str:
    """The name of a collection's folder, another one for each; no document's name ends like it. Raises DeskError if it
    is too long.
    """
    plain = "".join(one if one.isalnum() or one in " -_." else f"%{ord(one):06X}" for one in collection)
    if len(plain.encode()) > LONGEST_NAME:
        raise DeskError(f"{collection[:40]!r} is too long for the name of a collection: shorten it", code="bad-name")
    return f"{plain}.d"


def _put_back(file: Path, former: bytes | None) -> None:
    if former is None:
        file.unlink(missing_ok=True)
    else:
        replace_file(file, former)
