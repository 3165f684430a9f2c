"""Accounts of those who look after the desk, in the database.

A new password, a new role and the removal of an account end its sign-ins in the same transaction. The desk always has
an admin: the last one can be neither removed nor made an agent.

Not covered: hashing passwords (`app.access.passwords`), who is signed in (`sessions`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.domain.callers import Role
from app.domain.errors import DeskError
from app.storage.database import Database
from app.storage.tables import AccountRow, SessionRow

ADMIN = "admin"
"""The account that the first start makes."""
_NAME = re.compile(r"[\w.@-]{1,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Somebody who can sign in. password_hash: as argon2 writes it."""

    id: int
    name: str
    role: Role
    password_hash: str
    created: datetime


class Accounts:
    """Reads and changes accounts. Safe to use from any thread; each method is a transaction and may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[Account]:
        """Every account, by name."""
        rows = self._database.values(select(AccountRow))
        return sorted((row.to(Account) for row in rows), key=attrgetter("name"))

    def named(self, name: str) -> Account | None:
        """The account of this name, if there is one."""
        rows: Sequence[AccountRow] = self._database.values(select(AccountRow).where(AccountRow.name == name))
        return rows[0].to(Account) if rows else None

    def add(self, name: str, role: Role, password_hash: str) -> None:
        """A new account. Raises DeskError for a bad name or role, and if the name is taken."""
        if not _NAME.fullmatch(name):
            raise DeskError(f"{name!r} is no name: use 1 to 80 letters, digits and . _ @ -", code="bad-name")
        if role not in ("agent", "admin"):
            raise DeskError(f"{role!r} is no role: it is agent or admin", code="bad-role")
        with self._database.write() as session:
            if session.scalar(select(AccountRow.id).where(AccountRow.name == name)) is not None:
                raise DeskError(f"there is an account {name!r} already: choose another name", code="account-exists")
            session.add(AccountRow(name=name, role=role, password_hash=password_hash, created=datetime.now(UTC)))

    def set_password(self, name: str, password_hash: str) -> None:
        """Change a password; ends the account's sign-ins. Raises DeskError if there is no such account."""
        with self._database.write() as session:
            row = _named(session, name)
            row.password_hash = password_hash
            session.execute(delete(SessionRow).where(SessionRow.account_id == row.id))

    def set_role(self, name: str, role: Role) -> None:
        """Change a role; ends the account's sign-ins. Raises DeskError for the last admin."""
        with self._database.write() as session:
            row = _named(session, name)
            if role != "admin":
                _check_not_last_admin(session, row)
            row.role = role
            session.execute(delete(SessionRow).where(SessionRow.account_id == row.id))

    def remove(self, name: str) -> None:
        """Remove an account and its sign-ins. Raises DeskError for the last admin."""
        with self._database.write() as session:
            row = _named(session, name)
            _check_not_last_admin(session, row)
            session.delete(row)


def _named(session: Session, name: str) -> AccountRow:
    row = session.scalar(select(AccountRow).where(AccountRow.name == name))
    if row is None:
        raise DeskError(f"there is no account {name!r}", code="account-unknown")
    return row


def _check_not_last_admin(session: Session, row: AccountRow) -> None:
    admins = session.scalar(select(func.count()).select_from(AccountRow).where(AccountRow.role == "admin"))
    if row.role == "admin" and admins == 1:
        raise DeskError(f"{row.name!r} is the last admin: make another account an admin first", code="last-admin")
