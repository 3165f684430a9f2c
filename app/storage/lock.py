"""One process per data folder: a lock that the operating system releases when the process ends, also after a crash.

The lock is on `warmdesk.lock`. `warmdesk.lock.json` names its holder, for the message of a second process. Out of
scope: network file systems without locks; several servers, which share a PostgreSQL database and have a folder each.
"""

import errno
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from app.domain.errors import DeskError
from app.storage.begun import undo_swap
from app.storage.files import remove_abandoned, replace_file

LOCK_FILE = "warmdesk.lock"
OWNER_FILE = "warmdesk.lock.json"
SOCKET_FILE = "warmdesk.sock"  # a running server takes commands here: see `app.web.serve`
log = logging.getLogger(__name__)


@contextmanager
def lock_data_folder(folder: Path, purpose: str, make_room: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lock the data folder during the block, without waiting. It is created if needed, for its user only. A killed
    restore is undone first. purpose: the command. make_room: called before anything is written. Raises DeskError:
    "data-folder-in-use" if any process has the lock, "data-folder-unusable" or "disk-full".
    """
    with _explained(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            with suppress(PermissionError):  # a mounted volume of another user, who sets its permissions
                folder.chmod(0o700)  # it contains customers' texts
        # Not per thread: another thread may stop the server.
        lock = FileLock(folder / LOCK_FILE, mode=0o600, thread_local=False)
        try:
            lock.acquire(timeout=0)
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
                log.warning("a restore was not finished and %s is unchanged: restore again", folder)
            remove_abandoned(folder)
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
