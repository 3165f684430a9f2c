"""Uploaded files and synchronised folders.

An uploaded file is stored in the data folder under its own name, in a folder of its collection, because a document is
identified by its path. Storing and ingesting are one step: a file stays only if it becomes a document. An unfinished
upload is recorded (`app.storage.data_folder`).

A synchronised folder or website is re-read regularly (websites: `websites`). New and changed files of a folder are
ingested, and documents whose files are gone are deleted, as `warmdesk ingest --sync` does once. If a folder is missing
or nothing in it can be read, its documents stay and the run fails. The next run then starts at its usual time. An
interrupted run is due at once. Out of scope: the times of runs (`app.desk.repeating`), ingesting a folder (`ingest`).
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from app.domain.callers import SCHEDULE, Record
from app.domain.documents import WHOLE_SITE, SiteOptions, SyncedFolder, SyncResult, is_website
from app.domain.errors import DeskError
from app.domain.progress import Progress, no_progress
from app.domain.words import one_line
from app.knowledge.ingest import Ingestion, IngestReport
from app.knowledge.websites import Websites, checked, result_of, share_pages
from app.storage.data_folder import BegunWork
from app.storage.faq import SyncedFolderTable
from app.storage.files import PARTIAL, replace_file
from cache.errors import CacheError
from retrieval.documents import MAX_BYTES, content_hash
from retrieval.errors import RetrievalError, UnreadableDocument
from retrieval.reading import FileReader
from retrieval.text.terms import printable, readable

LONGEST_NAME = 150


class Uploads:
    """The uploaded files. folder: their folder, created at first use. begun: records of unfinished uploads."""

    def __init__(self, folder: Path, ingestion: Ingestion, begun: BegunWork) -> None:
        self._folder, self._ingestion, self._library, self._begun = folder, ingestion, ingestion.library, begun

    def take(self, name: str, data: bytes, progress: Progress, collection: str = "") -> IngestReport:
        """Store a file and ingest it. It replaces a file with the same name and collection. Raises OSError, and
        DeskError for a bad name, too much data or an unreadable file, and while other documents are ingested. A failure
        changes nothing.
        """
        with self._ingestion.alone():
            file = self._place(safe_name(name), collection)
            path = str(file.resolve())
            before, former = self._library.find(path), file.read_bytes() if file.exists() else None
            noted = str(file.relative_to(self._folder))
            self._begun.note("upload", {noted: collection})
            try:
                keep_file(file, data)
                report, _ = self._ingestion.run_alone([file], progress, collection=collection, warm=False)
                if report.failed:
                    raise DeskError(f"{printable(file.name)}: {report.failed[0].reason}", code="unreadable")
            except BaseException:
                if self._library.find(path) == before:
                    if before is None or former is None:
                        file.unlink(missing_ok=True)
                    else:
                        replace_file(file, former)
                    self._begun.done("upload", [noted])
                raise
            self._begun.done("upload", [noted])
            return report

    def finish(self) -> None:
        """Ingest the files of unfinished uploads. Delete files that are not documents. Raises the errors of `take`."""
        if not (left := self._begun.left("upload")):
            return
        with self._ingestion.alone():
            for partial in self._folder.rglob(f"{PARTIAL}*"):
                partial.unlink(missing_ok=True)
            for name, collection in left.items():
                file = self._folder / name
                path = file.resolve()
                if file.is_file() and path.is_relative_to(self._folder.resolve()):  # others are from another backup
                    self._ingestion.run_alone([file], no_progress, collection=collection, warm=False)
                    if self._library.find(str(path)) is None:
                        file.unlink()
                self._begun.done("upload", [name])

    def delete(self, path: Path, before: datetime | None = None) -> None:
        """Delete a file if it is an uploaded copy; the user's own files stay. before: copies stored later also stay."""
        if not path.is_relative_to(self._folder.resolve()):
            return
        with suppress(FileNotFoundError):
            if before is None or path.stat().st_mtime <= before.timestamp():
                path.unlink()

    def _place(self, name: str, collection: str) -> Path:
        plain = self._folder / name
        there = self._library.find(str(plain.resolve()))
        is_its_own = collection == "" if there is None else collection == there.collection  # old versions: one folder
        return plain if is_its_own else self._folder / collection_folder(collection) / name


def out_of_step(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """Return paths of uploads that differ from their documents, or whose file or document is missing. Older versions
    did not record such unfinished work. folder: the folder of uploads. hashes: by path, one for each document.
    """
    found = (file for file in folder.resolve().rglob("*") if file.is_file() and not file.name.startswith("."))
    files = {str(file): file for file in found}
    stored = {path: hash_ for path, hash_ in hashes.items() if Path(path).is_relative_to(folder.resolve())}
    both = files.keys() & stored.keys()
    differ = {path for path in both if not stored[path].startswith(content_hash(files[path].read_bytes()))}
    return sorted((files.keys() ^ stored.keys()) | differ)


def keep_file(file: Path, data: bytes) -> None:
    """Write a file completely or not at all. Raises DeskError if it is too large or cannot be read."""
    if len(data) > MAX_BYTES:
        raise DeskError(f"{file.name} is larger than {MAX_BYTES // 2**20} MB", code="upload-too-large")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with FileReader() as reader:
            replace_file(file, data, check=reader.load)
    except UnreadableDocument as error:
        raise DeskError(f"{file.name}: {error.reason}", code="unreadable") from None


def safe_name(name: str) -> str:
    """Return the last part of a path without invisible characters. Raises DeskError if it is not a valid name."""
    plain = " ".join(readable(name.replace("\\", "/").rpartition("/")[2]).split())
    if not plain or plain.startswith(".") or len(plain.encode()) > LONGEST_NAME:
        raise DeskError(f"{plain[:40]!r} is not a valid document name: rename the file", code="bad-name")
    return plain


def collection_folder(collection: str) -> str:
    """Return a collection's folder name: unique, and never a document's name. Raises DeskError if it is too long."""
    plain = "".join(one if one.isalnum() or one in " -_." else f"%{ord(one):06X}" for one in collection)
    if len(plain.encode()) > LONGEST_NAME:
        raise DeskError(f"{collection[:40]!r} is too long for the name of a collection: shorten it", code="bad-name")
    return f"{plain}.d"


log = logging.getLogger(__name__)

SOONEST, LATEST = 5, 31 * 24 * 60
LONGEST_COLLECTION = 80
SYSTEM = tuple(map(Path, ("/boot", "/dev", "/etc", "/proc", "/run", "/sys")))
"""System folders. They have no documents for customers, and admins must not read them through the pages."""
FAILED = "something went wrong on our side; the server's log has more"

IngestFolder: TypeAlias = Callable[[Path, str, Progress], IngestReport]


class SyncStopped(Exception):
    """Raised by a `Progress` function to end a run at once. No result is recorded, so the next start repeats it."""


class _Ended(Exception):
    """Ends a run that a person has stopped."""


class Synchronising:
    """The synchronised folders and websites. Safe to use from any thread; every method may raise DeskError."""

    def __init__(
        self, folders: SyncedFolderTable, record: Record, ingest: IngestFolder, websites: Websites, data_dir: Path
    ) -> None:
        """record: writes to the audit log."""
        self._folders, self._record, self._ingest, self._data_dir = folders, record, ingest, data_dir
        self._websites = websites
        self._running, self._stopped = dict[str, tuple[int, int]](), set[str]()
        self._lock = threading.Lock()
        self.all, self.try_out = folders.all, websites.try_out

    def running(self) -> dict[str, tuple[int, int]]:
        """Return the folders and websites that are being read, each with the number of finished and of all steps."""
        with self._lock:
            return dict(self._running)

    def stop(self, folder: str, *, who: str) -> None:
        """Stop a run of this process soon. Documents that it has read stay; the next run continues from there."""
        with self._lock:
            if folder in self._running:
                self._stopped.add(folder)
        self._record(who, "sync-stop", folder)

    def save(
        self,
        folder: str,
        collection: str,
        every_minutes: int,
        site: SiteOptions = WHOLE_SITE,
        *,
        who: str,
    ) -> SyncedFolder:
        """Add a folder or website, or change its options. It is then due. folder: an absolute path, or the address of
        a first page. who: for the audit log. Raises DeskError for a folder that cannot be read, is hidden, is a system
        folder or the data folder, or overlaps another synchronised folder.
        """
        collection = collection.strip()
        if len(collection) > LONGEST_COLLECTION:
            message = f"the name of a collection may have at most {LONGEST_COLLECTION} characters: shorten it"
            raise DeskError(message, code="sync-collection")
        if not SOONEST <= every_minutes <= LATEST:
            message = f"the interval is {every_minutes} minutes: choose {SOONEST} minutes to {LATEST // 1440} days"
            raise DeskError(message, code="sync-interval")
        place = self._checked_website(folder, site) if is_website(folder) else str(self._checked(folder))
        saved = SyncedFolder(
            folder=place, collection=collection, every_minutes=every_minutes, next_run=datetime.now(UTC), site=site
        )
        self._folders.save(saved)
        self._record(who, "sync-save", f"{place} ({every_minutes} min{f', {collection}' if collection else ''})")
        return self._find(saved.folder)

    def remove(self, folder: str, *, who: str) -> None:
        """Stop synchronising a folder or website; its documents stay."""
        if not self._folders.remove(folder):
            raise _unknown(folder)
        if is_website(folder):
            self._websites.remove(folder)
        self._record(who, "sync-remove", folder)

    def run(
        self, folder: str, progress: Progress = no_progress, *, who: str, accepts_losses: bool = False
    ) -> SyncResult:
        """Read a folder or website now, and record the result or the failure. accepts_losses: see `Websites.read`.
        Raises DeskError while another run ingests.
        """
        stored = self._find(folder)
        try:
            with self._noted(folder, progress) as going_on:
                if is_website(folder):
                    result = self._websites.read(stored, going_on, accepts_losses=accepts_losses)
                else:
                    readable_folder(Path(folder))
                    result = result_of(self._ingest(Path(folder), stored.collection, going_on))
        except SyncStopped:
            raise
        except _Ended:
            result = SyncResult(code="sync-stopped", problem="it was stopped: the next run continues from there")
        except DeskError as error:
            if error.code == "ingestion-running":
                raise
            result = SyncResult(code=error.code, problem=str(error))
        except (CacheError, RetrievalError, OSError) as error:
            result = SyncResult(code="system", problem=one_line(str(error)))
        except Exception:
            log.exception("%s could not be synchronised", folder)
            result = SyncResult(code="internal", problem=FAILED)
        self._folders.record(folder, result, datetime.now(UTC))
        if result.added or result.changed or result.removed:
            numbers = f"+{result.added} ~{result.changed} -{result.removed}"
            self._record(who, "sync", f"{folder} {numbers}")
        return result

    def run_due(self, progress: Progress = no_progress) -> None:
        """Read the due folders. Does nothing while another run is active. Raises the errors of `progress`."""
        with self._folders.alone() as is_alone:
            due = self._folders.due(datetime.now(UTC)) if is_alone() else ()
            for folder in sorted(due, key=lambda one: is_website(one.folder)):  # folders first: they take seconds
                try:
                    result = self.run(folder.folder, progress, who=SCHEDULE)
                except DeskError as error:
                    if error.code not in ("ingestion-running", "sync-unknown"):  # it waits, or was just removed
                        raise
                else:
                    if not result.is_ok:
                        log.warning("%s could not be synchronised: %s", folder.folder, result.problem)

    @contextmanager
    def _noted(self, folder: str, progress: Progress) -> Iterator[Progress]:
        """Record a run as running during the block. Yield a progress report that ends the run if a person stops it."""

        def going_on(stage: str, done: int, total: int) -> None:
            with self._lock:
                if folder in self._stopped:
                    raise _Ended
                self._running[folder] = (done, total)
            progress(stage, done, total)

        with self._lock:
            if folder in self._running:
                message = "its documents are already being ingested: wait until that is done"
                raise DeskError(message, code="ingestion-running")
            self._running[folder] = (0, 0)
        try:
            yield going_on
        finally:
            with self._lock:
                del self._running[folder]
                self._stopped.discard(folder)

    def _checked_website(self, url: str, site: SiteOptions) -> str:
        url = checked(url, site)
        for one in self.all():
            if is_website(one.folder) and url != one.folder and share_pages(url, one.folder):
                message = f"{url} shares pages with {one.folder}, which is synchronised already"
                raise DeskError(f"{message}: remove that one first", code="sync-overlap")
        return url

    def _find(self, folder: str) -> SyncedFolder:
        for one in self.all():
            if one.folder == folder:
                return one
        raise _unknown(folder)

    def _checked(self, folder: str) -> Path:
        if not os.path.isabs(folder):
            raise DeskError(f"{folder!r} is not an absolute path of a folder: begin with /", code="sync-relative")
        place = readable_folder(Path(folder)).resolve()
        if any(place.is_relative_to(one) for one in SYSTEM) or any(part.startswith(".") for part in place.parts):
            raise DeskError(f"{str(place)!r} is hidden or a system folder: choose another one", code="sync-system")
        own = self._data_dir.resolve()
        if share_files(place, own):
            message = f"{str(place)!r} contains the server's own files: choose a folder with documents only"
            raise DeskError(message, code="sync-own-folder")
        for one in self.all():
            if place != Path(one.folder) and share_files(place, Path(one.folder)):
                message = f"{str(place)!r} shares documents with {one.folder!r}, which is synchronised already"
                raise DeskError(f"{message}: remove that one first", code="sync-overlap")
        return place


def readable_folder(folder: Path) -> Path:
    try:
        os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        message = f"there is no folder {str(folder)!r}: is its disk mounted?"
        raise DeskError(message, code="sync-gone") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DeskError(f"the folder {str(folder)!r} cannot be read: {reason}", code="sync-unreadable") from None
    return folder


def share_files(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _unknown(folder: str) -> DeskError:
    return DeskError(f"{printable(folder)} is not synchronised: see `warmdesk sync list`", code="sync-unknown")
