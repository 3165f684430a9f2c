"""A data folder: its lock, and records of unfinished work, so that the work is finished or undone after a crash.

Only one process may use a folder (`lock_data_folder`). The operating system releases the lock when the process ends,
also after a crash. The lock is on `warmdesk.lock`. `warmdesk.lock.json` names its holder, for the error message of a
second process. Out of scope: network file systems without locks; several servers (they share a PostgreSQL database, and
each has its own folder).

`swap` renames many files, all or none. If its record still exists, the next process that locks the folder undoes the
renames. `BegunWork` records work on files and the database before its first step, and removes the record after the last
step. Every step can be repeated. A remaining record means that the work was killed or failed. Then the next process
that opens the data folder finishes it. The records belong to the database in the same folder: a backup contains them,
and a restore moves them aside together with the database.

Out of scope: ingesting documents, which resumes by itself; the choice of renamed files (`archive`).
"""

import errno
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from app.domain.errors import DeskError
from app.storage.files import remove_abandoned, replace_file
from durable import sync

LOCK_FILE = "warmdesk.lock"
OWNER_FILE = "warmdesk.lock.json"
SOCKET_FILE = "warmdesk.sock"  # a running server takes commands here: see `app.web.commands`
LOOKED_S = 0.2  # seconds to wait, because another process's `is_locked` takes the lock for a moment
log = logging.getLogger(__name__)


@contextmanager
def lock_data_folder(folder: Path, purpose: str, make_room: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lock the data folder during the block. The folder is created if needed; only its user can read it. A killed
    restore is undone first. purpose: the command. make_room: called before anything is written. Raises DeskError:
    "data-folder-in-use" if any process has the lock, "data-folder-unusable" or "disk-full".
    """
    with _explained(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            with suppress(PermissionError):  # a volume of another user, who sets permissions
                folder.chmod(0o700)  # it contains customers' texts
        # Not per thread: another thread may stop the server.
        lock = FileLock(folder / LOCK_FILE, mode=0o600, thread_local=False)
        try:
            lock.acquire(timeout=LOOKED_S)
        except Timeout:
            raise DeskError(
                f"data folder {folder} is in use by {_owner(folder)}: stop it or use another --data-dir",
                code="data-folder-in-use",
            ) from None
    try:
        with _explained(folder):
            make_room()
            since = datetime.now().isoformat(timespec="minutes")
            note = json.dumps({"pid": os.getpid(), "purpose": purpose, "since": since})
            replace_file(folder / OWNER_FILE, note.encode())  # other processes read it at any time
            if undo_swap(folder):
                log.warning("a restore was interrupted and undone, so %s is unchanged: restore again", folder)
            remove_abandoned(folder)
            (folder / SOCKET_FILE).unlink(missing_ok=True)  # of a killed server
        yield
    finally:
        with suppress(OSError):  # a remaining file does no harm: it is read only while the lock is held
            (folder / OWNER_FILE).unlink()
        lock.release()


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DeskError(
                f"data folder {folder}: the disk is full: free some space or use another --data-dir", code="disk-full"
            ) from error
        is_file = error.errno in (errno.EEXIST, errno.ENOTDIR)
        reason = "a file is in its place" if is_file else error.strerror or str(error)
        raise DeskError(
            f"data folder {folder} cannot be used: {reason}: use another --data-dir", code="data-folder-unusable"
        ) from error


def is_locked(folder: Path) -> bool:
    if not (folder / LOCK_FILE).exists():
        return False
    lock = FileLock(folder / LOCK_FILE, mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def _owner(folder: Path) -> str:
    try:
        note = json.loads((folder / OWNER_FILE).read_text(encoding="utf-8"))
        since = datetime.fromisoformat(str(note["since"]))
        day = "" if since.date() == datetime.now().date() else f"{since:%Y-%m-%d} "
        return f"process {int(str(note['pid']))} ({note['purpose']}, since {day}{since:%H:%M})"
    except (OSError, ValueError, KeyError, TypeError):  # the note is not written yet
        return "another process"


SWAP_FILE = "warmdesk.swap.json"


def swap(folder: Path, renames: Sequence[tuple[Path, Path]]) -> None:
    """Rename files in `folder` and its subfolders, in this order. renames: old and new path. Missing folders are made.
    Raises OSError. Then no file is renamed, or the record stays for `undo_swap`.
    """
    noted = [[str(path.relative_to(folder)) for path in pair] for pair in renames]
    replace_file(folder / SWAP_FILE, json.dumps(noted).encode())
    try:
        for source, target in renames:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            source.rename(target)
        for changed in {path.parent for pair in renames for path in pair}:
            sync(changed)
    except BaseException:
        with suppress(OSError):
            undo_swap(folder)
        raise
    (folder / SWAP_FILE).unlink()
    sync(folder)


def undo_swap(folder: Path) -> bool:
    """Undo unfinished renames; return False if there are none. It can be repeated. Raises OSError."""
    try:
        noted = json.loads((folder / SWAP_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    renames = [(folder / source, folder / target) for source, target in noted]
    aside = dict(renames)
    for source, target in reversed(renames):
        is_back = target in aside and not aside[target].exists()  # then `target` is the original file again
        if target.exists() and not source.exists() and not is_back:
            source.parent.mkdir(exist_ok=True)
            target.rename(source)
    for place in {target.parent for _, target in renames} - {folder}:
        with suppress(OSError):  # it does not exist, or it has other files
            place.rmdir()
    for changed in {path.parent for pair in renames for path in pair}:
        if changed.is_dir():
            sync(changed)
    (folder / SWAP_FILE).unlink()
    sync(folder)
    for staged in {source.parent for source, _ in renames} - {folder}:  # after the note is removed
        shutil.rmtree(staged, ignore_errors=True)
    return True


BEGUN_FILE = "warmdesk.begun.json"
Kind = Literal["forget", "upload", "faq"]


class BegunWork:
    """Records of unfinished work in a data folder. Safe to use from any thread; methods may raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / BEGUN_FILE
        self._lock = threading.Lock()

    def note(self, kind: Kind, about: Mapping[str, str]) -> None:
        with self._lock:
            noted = self._read()
            self._write({**noted, kind: {**noted.get(kind, {}), **about}})

    def done(self, kind: Kind, names: Collection[str]) -> None:
        with self._lock:
            noted = self._read()
            left = {name: about for name, about in noted.pop(kind, {}).items() if name not in names}
            self._write({**noted, kind: left} if left else noted)

    def left(self, kind: Kind) -> dict[str, str]:
        with self._lock:
            return self._read().get(kind, {})

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            noted = json.loads(self._file.read_bytes())
            return {str(kind): {str(name): str(about[name]) for name in about} for kind, about in noted.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, TypeError):  # the disk fails: records are always written whole
            log.warning("%s is damaged: interrupted work cannot be finished", self._file)
            return {}

    def _write(self, noted: Mapping[str, Mapping[str, str]]) -> None:
        if noted:
            replace_file(self._file, json.dumps(noted).encode())
        elif self._file.exists():
            self._file.unlink()
            sync(self._file.parent)
