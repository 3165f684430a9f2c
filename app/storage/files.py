"""Write a file of the data folder completely or not at all. Open a file only if no link has replaced it.

`SettingsFile` changes settings in `warmdesk.toml`. Comments and order stay, and the file is complete at any moment.
"""

import os
import shutil
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import tomlkit
from tomlkit.exceptions import ParseError

from app.domain.callers import LONGEST_TEXT, check_length
from app.domain.errors import DeskError
from app.domain.settings import Settings, settings_in, value_in
from durable import replacing

PARTIAL = ".upload-"
STAGED = ".restore-"
REPLACED = "replaced-"  # prefix of folders with content that a restored backup replaced


def replace_file(file: Path, data: bytes, check: Callable[[Path], object] = lambda temporary: None) -> None:
    """Write or replace a file; only this user can read it. After a crash, the old or the new file is there. check:
    called with the temporary file first; if it raises, the old file stays. Raises OSError.
    """
    with replacing(file, PARTIAL) as temporary:
        temporary.write_bytes(data)
        check(temporary)


def open_without_links(file: Path) -> BinaryIO | None:
    """Open a file for reading. Return None if it does not exist, or if its path contains a link: a user who can write
    in a folder of documents could replace a document with a link to any file.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe must not block
    except OSError:
        return None
    is_it = False
    with suppress(OSError, RuntimeError):  # it was just removed, or links form a loop
        opened = os.fstat(descriptor)
        is_it = stat.S_ISREG(opened.st_mode) and file.resolve() == file and os.path.samestat(opened, os.stat(file))
    if is_it:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    return None


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files of killed processes from a data folder that this process holds."""
    for left in (path for begin in (PARTIAL, STAGED) for path in folder.glob(f"{begin}*")):
        with suppress(OSError):  # files of another user, on a mounted volume
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()


def old_copies(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob(f"{REPLACED}*") if path.is_dir())


class SettingsFile:
    """The settings file `warmdesk.toml`. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def values(self) -> Mapping[str, object]:
        return self._read().unwrap()

    def settings(self) -> Settings:
        return settings_in(self.values(), self._path)

    def check(self, changes: Mapping[str, str]) -> Settings:
        return settings_in(self._changed(changes).unwrap(), self._path)

    def change(self, changes: Mapping[str, str]) -> None:
        with self._lock:
            document = self._changed(changes)
            settings_in(document.unwrap(), self._path)
            try:
                with replacing(self._path.resolve(), PARTIAL) as temporary:  # a link, as to /etc, stays
                    if self._path.exists():
                        temporary.chmod(self._path.stat().st_mode & 0o777)
                    temporary.write_text(tomlkit.dumps(document), encoding="utf-8")
            except OSError as error:
                raise DeskError(f"cannot write {self._path}: {error.strerror}", code="settings-file") from None

    def _changed(self, changes: Mapping[str, str]) -> tomlkit.TOMLDocument:
        document = self._read()
        for key, text in changes.items():
            check_length(text, LONGEST_TEXT, "value")
            if text.strip():
                document[key] = value_in(key, text)
            else:
                document.pop(key, None)
        return document

    def _read(self) -> tomlkit.TOMLDocument:
        try:
            return tomlkit.parse(self._path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            return tomlkit.document()
        except (OSError, UnicodeDecodeError, ParseError) as error:
            raise DeskError(f"cannot read the settings file {self._path}: {error}", code="settings-file") from None
