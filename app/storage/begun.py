"""Notes of unfinished work in a data folder, so that it is finished after a crash.

Work on files and the database is noted before its first step, and crossed out after its last one. Every step can be
repeated. Work that is still noted was killed or failed, and the next process that opens the data folder finishes it.
The notes belong to the database beside them: a backup contains them, and a restore moves them aside with it.

Out of scope: ingesting documents, which resumes by itself; renaming files of a restored backup, which is undone before
a database is opened (`swap`).
"""

import json
import logging
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from app.storage.files import replace_file
from durable import sync

BEGUN_FILE = "warmdesk.begun.json"
Kind = Literal["forget", "upload", "faq"]
log = logging.getLogger(__name__)


class BegunWork:
    """The notes of a data folder. Safe to use from any thread; methods may raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / BEGUN_FILE
        self._lock = threading.Lock()

    def note(self, kind: Kind, about: Mapping[str, str]) -> None:
        """Note work that begins now. about: by name, what is needed to finish it."""
        with self._lock:
            noted = self._read()
            self._write({**noted, kind: {**noted.get(kind, {}), **about}})

    def done(self, kind: Kind, names: Collection[str]) -> None:
        """Cross out finished or undone work."""
        with self._lock:
            noted = self._read()
            left = {name: about for name, about in noted.pop(kind, {}).items() if name not in names}
            self._write({**noted, kind: left} if left else noted)

    def left(self, kind: Kind) -> dict[str, str]:
        """Return the unfinished work that is noted."""
        with self._lock:
            return self._read().get(kind, {})

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            noted = json.loads(self._file.read_bytes())
            return {str(kind): {str(name): str(about[name]) for name in about} for kind, about in noted.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, TypeError):  # a failing disk: notes are replaced whole
            log.warning("%s is damaged: work that was begun before is not finished", self._file)
            return {}

    def _write(self, noted: Mapping[str, Mapping[str, str]]) -> None:
        if noted:
            replace_file(self._file, json.dumps(noted).encode())
        elif self._file.exists():
            self._file.unlink()
            sync(self._file.parent)
