"""Files and folders that appear whole, also if the power fails: their bytes are on the disk before their name is.

Not covered: modules, which are checked when they are read (`disk`).
"""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

ABANDONED_S = 3600.0
"""What has not changed for so long was left by a process that was killed."""


def put_in_place(temporary: Path, place: Path) -> None:
    """Rename a file, or a folder of files, when what is in it is on the disk. Raises OSError."""
    for path in [*temporary.rglob("*"), temporary] if temporary.is_dir() else [temporary]:
        _sync(path)
    os.replace(temporary, place)
    _sync(place.parent)


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove what processes that were killed have left half-made in a folder; what another one makes now stays."""
    for path in folder.glob(pattern):
        with suppress(OSError):  # another process has just removed it
            if time.time() - path.stat().st_mtime < ABANDONED_S:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
