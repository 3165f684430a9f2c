"""Passwords of accounts: made by the desk, shown once, kept only as argon2 hashes.

Not covered: who is signed in (`app.storage.sessions`), the limit on guessing (`login_rate`).
"""

import json
import secrets
import threading
from pathlib import Path

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import VerificationError

from app.domain.callers import Role
from app.domain.errors import DeskError
from app.storage.accounts import ADMIN, Account, Accounts

OLD_FILE = "admin.json"
"""Where version 0.1 kept the hash of its one password."""
MAX_PASSWORD = 1024
_ONE_AT_A_TIME = threading.Lock()
"""Checking a password takes 64 MiB: forty tries sent at once would take 2.5 GiB."""
WAITING = 8
_PLACES = threading.BoundedSemaphore(WAITING)
"""So many checks run or wait, and one more is refused: those that wait keep threads that all pages share."""
_NOBODY = PasswordHasher().hash(secrets.token_urlsafe(18))
"""Checked where there is no such account, so that the time does not tell which names exist."""


def ensure_admin(accounts: Accounts, old_folder: Path) -> str | None:
    """Make the first account at the first start. old_folder: where version 0.1 kept its password, which stays valid.
    Gives the new password if one was made; only the caller ever sees it. Raises DeskError.
    """
    if accounts.all():
        return None
    old = old_folder / OLD_FILE
    if not old.exists():
        try:
            return new_account(accounts, ADMIN, "admin")
        except DeskError as error:
            if error.code != "account-exists":
                raise
            return None  # another desk of the database was faster
    accounts.add(ADMIN, "admin", _old_hash(old))
    old.unlink()
    return None


def new_account(accounts: Accounts, name: str, role: Role) -> str:
    """An account with a new password, which is given. Raises DeskError if the name is taken."""
    password = secrets.token_urlsafe(18)
    accounts.add(name, role, PasswordHasher().hash(password))
    return password


def reset_password(accounts: Accounts, name: str = ADMIN) -> str:
    """Sets and gives a new password; ends the account's sign-ins. Raises DeskError if there is no such account."""
    password = secrets.token_urlsafe(18)
    accounts.set_password(name, PasswordHasher().hash(password))
    return password


def verified(accounts: Accounts, name: str, password: str) -> Account | None:
    """The account whose name and password these are. Takes some 50 ms on purpose, whether there is such an account or
    not; overlong input is refused before it costs anything. Raises DeskError, "sign-in-busy" where many others sign in.
    """
    if len(password) > MAX_PASSWORD:
        return None
    account = accounts.named(name)
    if not _PLACES.acquire(blocking=False):
        raise DeskError("many sign in at this moment: try again in some seconds", code="sign-in-busy")
    try:
        with _ONE_AT_A_TIME:
            PasswordHasher().verify(_NOBODY if account is None else account.password_hash, password)
    except VerificationError:
        return None
    finally:
        _PLACES.release()
    return account


def _old_hash(file: Path) -> str:
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))["password_hash"]
        extract_parameters(stored)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeskError(f"cannot read {file}: remove it, and a new password is made", code="admin-file") from error
    return str(stored)
