"""The admin password: made at the first start, shown once, kept only as an argon2 hash in `admin.json` (mode 0600).

A new password ends all sessions: see `app.storage.sessions`. Not covered: several users, roles.
"""

import json
import os
import secrets
from pathlib import Path

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import VerificationError

from app.domain.errors import DeskError

FILE = "admin.json"
MAX_PASSWORD = 1024


def ensure_password(folder: Path) -> str | None:
    """The new password if none existed, else None. Only the caller ever sees it."""
    return None if (folder / FILE).exists() else reset_password(folder)


def reset_password(folder: Path) -> str:
    """Sets and returns a new password; ends all sessions. Raises DeskError."""
    password = secrets.token_urlsafe(18)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(folder / FILE, json.dumps({"password_hash": PasswordHasher().hash(password)}))
    except OSError as error:
        raise DeskError(
            f"cannot write the admin password to {folder / FILE}: {error.strerror or error}", code="admin-file"
        ) from error
    return password


def verify(folder: Path, password: str) -> bool:
    """Whether it is the password. Takes some 50 ms on purpose; overlong input is refused before it costs anything.
    Raises DeskError.
    """
    if len(password) > MAX_PASSWORD:
        return False
    try:
        return PasswordHasher().verify(password_hash(folder), password)
    except VerificationError:
        return False


def password_hash(folder: Path) -> str:
    """The argon2 hash, read anew each time, so that a reset on the command line works at once. Raises DeskError."""
    path = folder / FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))["password_hash"]
        extract_parameters(stored)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeskError(f"cannot read {path}: set a new one with warmdesk reset-password", code="admin-file") from error
    return str(stored)


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
