"""Digests of large files, stored so that a start does not read gigabytes.

A digest is stored with what the file system says of the file: size, place, and the times of its last change. A file
that changed a moment ago is not stored, because a second change might get the same times.
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from cache.memory.keys import file_digest
from durable import replacing

FILE = "digests.json"
LARGE = 16 << 20  # bytes; smaller files are read
SETTLED_S = 2.0


def stored_digest(path: Path, folder: Path) -> str:
    """Return `file_digest(path)`. folder: where digests are stored, if it can be written. Raises OSError."""
    before = _state(path)
    if before[0] < LARGE:
        return file_digest(path)
    name, stored = str(path.absolute()), _stored(folder)
    if name in stored and stored[name][0] == before:
        return stored[name][1]
    found = file_digest(path)
    if before == _state(path) and max(before[2:]) < (time.time() - SETTLED_S) * 1e9:
        with suppress(OSError):  # read-only, or full: the next start reads the file again
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / FILE, "converting-") as temporary:  # left over ones are removed with models
                temporary.write_text(json.dumps(_stored(folder) | {name: (before, found)}), encoding="utf-8")
    return found


def _state(path: Path) -> list[int]:
    stat = os.stat(path)
    return [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


def _stored(folder: Path) -> dict[str, tuple[list[int], str]]:
    """Return states and digests by path; without those that have another form."""
    try:
        stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {name: (list(state), str(found)) for name, (state, found) in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
