"""The admin password: made at the first start, shown once, kept only as an argon2 hash in `admin.json` (mode 0600).

A new password ends all sessions: see `app.storage.sessions`. Not covered: several users, roles.
"""

import json
import secrets
import threading
from pathlib import Path

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import VerificationError

from app.domain.errors import DeskError
from app.storage.files import replace_file

FILE = "admin.json"
MAX_PASSWORD = 1024
_ONE_AT_A_TIME = threading.Lock()
"""Checking a password takes 64 MiB: forty tries sent at once would take 2.5 GiB."""


def ensure_password(folder: Path) -> str | None:
    """The new password if none existed, else None. Only the caller ever sees it."""
    return None if (folder / FILE).exists() else reset_password(folder)


def reset_password(folder: Path) -> str:
    """Sets and returns a new password; ends all sessions. Raises DeskError."""
    password = secrets.token_urlsafe(18)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(folder / FILE, json.dumps({"password_hash": PasswordHasher().hash(password)}).encode())
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
        with _ONE_AT_A_TIME:
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
