"""Where Ray keeps sockets and logs of a cluster on this machine: a folder that is removed when the cluster ends.

A desk that was killed leaves its folder behind; the next one that begins a cluster removes it. Whoever uses a folder
holds a lock on it, which the system lets go with the process. Not covered: what Ray writes there.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "warmdesk-ray-"


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
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
