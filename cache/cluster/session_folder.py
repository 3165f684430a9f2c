"""Where Ray keeps sockets and logs of a cluster on this machine: a folder that is removed when the cluster ends.

A desk that was killed leaves its folder behind, and for a minute two processes that want to tell the ended cluster so;
one has a port that the next one would wait for. The next desk that begins a cluster ends them and removes the folder.
Whoever uses a folder holds a lock on it, which the system lets go with the process. Not covered: what Ray writes there.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PREFIX = "warmdesk-ray-"
ENDED_S = 5.0
"""How long what was killed may take to be gone."""


@contextmanager
def session_folder() -> Iterator[Path]:
    """A new folder, with a short name because sockets stand in it."""
    remove_left_over()
    folder, lock = locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def locked_folder() -> tuple[Path, int]:
    """A new folder, and the file that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # nobody took it for left over before it was locked
            return folder, lock
        os.close(lock)


def remove_left_over() -> None:
    """Remove the folders that nobody uses any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's, or in use
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end_users(folder)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def end_users(folder: Path) -> None:
    """End the processes that have files of a folder open: Ray's do not name it in their command lines."""
    ended = list[psutil.Process]()
    for one in psutil.process_iter():
        with suppress(psutil.Error):  # somebody else's, or it has ended
            if any(folder in Path(file.path).parents for file in one.open_files()):
                one.kill()
                ended.append(one)
    psutil.wait_procs(ended, ENDED_S)
