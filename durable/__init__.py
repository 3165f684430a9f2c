"""Files and folders that appear whole, also after a power failure: their bytes are on the disk before their name is."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ABANDONED_S = 3600.0
"""A temporary file that has not changed for so long was left by a killed process."""


@contextmanager
def replacing(file: Path, prefix: str = ".new-") -> Iterator[Path]:
    """Give an empty temporary file, readable for this user only. It replaces `file` when the block ends; if the block
    raises, it is removed. prefix: of its name. Raises OSError.
    """
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=prefix, suffix=file.suffix)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        put_in_place(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def put_in_place(temporary: Path, place: Path) -> None:
    """Rename a file, or a folder of files, once its content is on the disk. Raises OSError."""
    for path in [*temporary.rglob("*"), temporary] if temporary.is_dir() else [temporary]:
        sync(path)
    temporary.replace(place)
    sync(place.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove unfinished files and folders of killed processes. Those of running processes stay."""
    for path in folder.glob(pattern):
        with suppress(OSError):  # another process has just removed it
            if time.time() - path.stat().st_mtime < ABANDONED_S:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `parent` that is removed after the block, or as far as possible: `tempfile.TemporaryDirectory` of
    Python 3.11 recurses without end in a parent that became read-only. Raises OSError if it cannot be made.
    """
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
