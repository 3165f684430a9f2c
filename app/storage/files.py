"""Writing a file of the data folder completely or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

PARTIAL = ".upload-"
"""What the names of files begin with that are not complete yet."""


def replace_file(file: Path, data: bytes, check: Callable[[Path], object] = lambda temporary: None) -> None:
    """Write a file, readable for this user only, in place of one of the same name. After a crash it is the old or the
    new one. check: called with the temporary file before it replaces the other; if it raises, nothing is kept. Raises
    OSError.
    """
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=PARTIAL, suffix=file.suffix)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        check(temporary)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make sure that names which were given or changed in a folder outlive a crash. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
