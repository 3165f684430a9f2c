"""Changing one setting in `warmdesk.toml`: comments and order stay, and the file is whole at any moment.

Not covered: what settings there are and what may stand in them (`app.domain.settings`).
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import tomlkit
from tomlkit.exceptions import ParseError

from app.domain.errors import DeskError
from app.domain.lengths import LONGEST_TEXT, check_length
from app.domain.settings import Settings, names_of, settings_in, value_in


class SettingsFile:
    """The settings file of a desk. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def values(self) -> Mapping[str, object]:
        """What stands in the file now, by key."""
        return self._read().unwrap()

    def settings(self) -> Settings:
        """What the file gives, without the environment and flags."""
        return settings_in(self.values(), self._path)

    def check(self, key: str, text: str) -> Settings:
        """What the file would give with a changed value. text: as a person writes it; empty: the default. Raises
        DeskError, which says what the value must be.
        """
        return settings_in(self._changed(key, text).unwrap(), self._path)

    def change(self, key: str, text: str) -> None:
        """Write a value, if it is one that the setting takes; `check` says why not."""
        with self._lock:
            document = self._changed(key, text)
            settings_in(document.unwrap(), self._path)
            self._write(tomlkit.dumps(document))

    def _changed(self, key: str, text: str) -> tomlkit.TOMLDocument:
        check_length(text, LONGEST_TEXT, "value")
        document = self._read()
        for name in names_of(key)[1:]:
            document.pop(name, None)
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

    def _write(self, text: str) -> None:
        temporary = self._path.with_suffix(".tmp")
        try:
            mode = self._path.stat().st_mode & 0o777 if self._path.exists() else 0o600
            with os.fdopen(
                os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8"
            ) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise DeskError(f"cannot write {self._path}: {error.strerror}", code="settings-file") from None
