"""The admin password: made at the first start, shown once, kept only as an argon2 hash in `admin.json` (mode
0600).

The same file holds the key that signs sessions; a new password brings a new key, so that old sessions end.
Not covered: several users, roles.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from app.domain.errors import DeskError

FILE = "admin.json"
MAX_PASSWORD = 1024


def ensure_password(folder: Path) -> str | None:
    """The new password if none existed, else None. Only the caller ever sees it."""
    return None if (folder / FILE).exists() else reset_password(folder)


def reset_password(folder: Path) -> str:
    """Sets and returns a new password; ends all sessions."""
    password = secrets.token_urlsafe(18)
    record = {"password_hash": PasswordHasher().hash(password), "session_key": secrets.token_hex(32)}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(folder / FILE, json.dumps(record))
    except OSError as error:
        raise DeskError(
            f"cannot write the admin password to {folder / FILE}: {error.strerror or error}",
            code="admin-file",
        ) from error
    return password


def verify(folder: Path, password: str) -> bool:
    """Takes some 50 ms on purpose. Overlong input is refused before it costs anything."""
    if len(password) > MAX_PASSWORD:
        return False
    try:
        return PasswordHasher().verify(_read(folder)["password_hash"], password)
    except (VerificationError, InvalidHashError):
        return False


def session_key(folder: Path) -> bytes:
    """The key that signs sessions. Read anew each time, so that a reset by the command line works at once."""
    return bytes.fromhex(_read(folder)["session_key"])


def _read(folder: Path) -> dict[str, str]:
    path = folder / FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        key, password_hash = record["session_key"], record["password_hash"]
        if len(bytes.fromhex(key)) < 32 or not isinstance(password_hash, str):
            raise ValueError("a value has the wrong form")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeskError(f"cannot read {path}: set a new one with warmdesk reset-password", code="admin-file") from error
    return {"session_key": key, "password_hash": password_hash}


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else the rename itself may be lost
    finally:
        os.close(folder)
