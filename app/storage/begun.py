"""Records of unfinished work in a data folder, so that it is finished or undone after a crash.

`swap` renames many files, all or none: while its record exists, the next process that locks the folder undoes the
renames. `BegunWork`: work on files and the database is recorded before its first step, and the record is removed after
its last one. Every step can be repeated. A remaining record means that the work was killed or failed, and the next
process that opens the data folder finishes it. The records belong to the database in the same folder: a backup contains
them, and a restore moves them aside with it.

Out of scope: ingesting documents, which resumes by itself; the choice of renamed files (`restoring`).
"""

import json
import logging
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from app.storage.files import replace_file
from durable import sync

SWAP_FILE = "warmdesk.swap.json"


def swap(folder: Path, renames: Sequence[tuple[Path, Path]]) -> None:
    """Rename files in `folder` and its subfolders, in this order, from one path to another; make missing folders.
    Raises OSError; then none is renamed, or the record stays for `undo_swap`.
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
        is_back = target in aside and not aside[target].exists()  # then the file is the former one
        if target.exists() and not source.exists() and not is_back:
            source.parent.mkdir(exist_ok=True)
            target.rename(source)
    for place in {target.parent for _, target in renames} - {folder}:
        with suppress(OSError):  # it is gone already, or it has other content
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
log = logging.getLogger(__name__)


class BegunWork:
    """The records of a data folder. Safe to use from any thread; methods may raise OSError."""

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
        except (ValueError, AttributeError, TypeError):  # a failing disk: notes are replaced whole
            log.warning("%s is damaged: interrupted work cannot be finished", self._file)
            return {}

    def _write(self, noted: Mapping[str, Mapping[str, str]]) -> None:
        if noted:
            replace_file(self._file, json.dumps(noted).encode())
        elif self._file.exists():
            self._file.unlink()
            sync(self._file.parent)
