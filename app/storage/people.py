"""Accounts, API keys, sessions and the audit log in the database. Only hashes of passwords, keys and session tokens are
stored.

A new password or role and the removal of an account end the account's sessions in the same transaction. The last admin
cannot be removed or made an agent. Entries of the audit log are never changed, and are removed
after a year. No entry has a customer's words, a password or a key.
"""

import hashlib
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.callers import Role
from app.domain.errors import DeskError
from app.storage.database import Database, Store
from app.storage.tables import AccountRow, ApiKeyRow, AuditRow, SessionRow

_NAME = re.compile(r"[\w.@-]{1,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account of an agent or an admin. password_hash: in argon2's format."""

    id: int
    name: str
    role: Role
    password_hash: str
    created: datetime


class Accounts(Store):
    """The accounts in the database."""

    def all(self) -> list[Account]:
        rows = self._database.values(select(AccountRow))
        return sorted((row.to(Account) for row in rows), key=attrgetter("name"))

    def named(self, name: str) -> Account | None:
        rows: Sequence[AccountRow] = self._database.values(select(AccountRow).where(AccountRow.name == name))
        return rows[0].to(Account) if rows else None

    def add(self, name: str, role: Role, password_hash: str) -> None:
        """Add an account. Raises DeskError for a bad name or role, and if the name is taken."""
        if not _NAME.fullmatch(name):
            raise DeskError(f"{name!r} is not a valid name: use 1 to 80 letters, digits and . _ @ -", code="bad-name")
        if role not in ("agent", "admin"):
            raise DeskError(f"{role!r} is not a valid role: use agent or admin", code="bad-role")
        with self._database.write() as session:
            if session.scalar(select(AccountRow.id).where(AccountRow.name == name)) is not None:
                raise DeskError(f"there is an account {name!r} already: choose another name", code="account-exists")
            session.add(AccountRow(name=name, role=role, password_hash=password_hash, created=datetime.now(UTC)))

    def set_password(self, name: str, password_hash: str) -> None:
        with self._database.write() as session:
            row = _named(session, name)
            row.password_hash = password_hash
            session.execute(delete(SessionRow).where(SessionRow.account_id == row.id))

    def set_role(self, name: str, role: Role) -> None:
        with self._database.write() as session:
            row = _named(session, name)
            if role != "admin":
                _check_not_last_admin(session, row)
            row.role = role
            session.execute(delete(SessionRow).where(SessionRow.account_id == row.id))

    def remove(self, name: str) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A stored key (see `app.storage.tables.ApiKeyRow`). per_minute: maximum requests that need computation."""

    id: str
    name: str
    shown: str
    scopes: frozenset[str]
    per_minute: int
    created: datetime
    last_used: datetime | None = None
    revoked: datetime | None = None


class ApiKeyTable(Store):
    """The API keys in the database."""

    def add(self, key: ApiKey, token_hash: str) -> None:
        row = ApiKeyRow(token_hash=token_hash, **asdict(key) | {"scopes": " ".join(sorted(key.scopes))})
        try:
            with self._database.write() as session:
                session.add(row)
        except IntegrityError:
            raise DeskError(
                f"there is a key {key.name!r} already: revoke it first, or choose another name", code="key-exists"
            ) from None

    def find(self, token_hash: str) -> ApiKey | None:
        its = (ApiKeyRow.token_hash == token_hash, ApiKeyRow.revoked.is_(None))
        rows = self._database.values(select(ApiKeyRow).where(*its))
        return _key(rows[0]) if rows else None

    def all(self) -> list[ApiKey]:
        return [_key(row) for row in self._database.values(select(ApiKeyRow).order_by(ApiKeyRow.created))]

    def used(self, key_id: str, now: datetime) -> None:
        with self._database.write() as session:
            session.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(last_used=now))

    def revoke(self, name: str) -> ApiKey:
        with self._database.write() as session:
            in_use = select(ApiKeyRow).where(ApiKeyRow.name == name, ApiKeyRow.revoked.is_(None))
            row = session.scalar(in_use)
            if row is None:
                raise DeskError(f"there is no key {name!r} in use: see `warmdesk keys list`", code="key-unknown")
            row.revoked = datetime.now(UTC)
            return _key(row)


def _key(row: ApiKeyRow) -> ApiKey:
    return row.to(ApiKey, scopes=frozenset(row.scopes.split()))


LIFETIME_S = 12 * 3600


class Sessions:
    """Starts, checks and ends sessions. A browser has a random token, the database only its hash. Safe to use from any
    thread; every method may raise DeskError.
    """

    def __init__(self, database: Database, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database, self._now = database, now

    def start(self, account: Account) -> str:
        """Return a new session's token. Remove expired sessions. Raises DeskError if the account has just changed."""
        token, now = secrets.token_urlsafe(32), self._now()
        expires = now + timedelta(seconds=LIFETIME_S)
        with self._database.write() as session:
            row = session.get(AccountRow, account.id)
            if row is None or row.to(Account) != account:
                raise DeskError("this account has just changed: sign in again", code="account-changed")
            session.execute(delete(SessionRow).where(SessionRow.expires <= now))
            session.add(SessionRow(token_hash=_hash(token), account_id=account.id, created=now, expires=expires))
        return token

    def account(self, token: str) -> Account | None:
        of_token = (SessionRow.token_hash == _hash(token), SessionRow.expires > self._now())
        query = select(AccountRow).join(SessionRow, SessionRow.account_id == AccountRow.id).where(*of_token)
        rows = self._database.values(query)
        return rows[0].to(Account) if rows else None

    def end(self, token: str) -> None:
        with self._database.write() as session:
            session.execute(delete(SessionRow).where(SessionRow.token_hash == _hash(token)))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "backslashreplace")).hexdigest()


KEPT = timedelta(days=365)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An action. who: see `app.domain.callers`. action: a key of `app.web.accounts.ACTIONS`."""

    id: int
    created: datetime
    who: str
    action: str
    subject: str


class Audit(Store):
    """The audit log in the database."""

    def record(self, who: str, action: str, subject: str = "") -> None:
        """Add an entry and remove entries older than a year."""
        now = datetime.now(UTC)
        with self._database.write() as session:
            session.execute(delete(AuditRow).where(AuditRow.created < now - KEPT))
            session.add(AuditRow(created=now, who=who, action=action, subject=subject))

    def latest(self, limit: int = 100, before: int | None = None) -> list[AuditEntry]:
        """Return entries, latest first. before: only entries older than the one with this id."""
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditRow.id < before)
        return [row.to(AuditEntry) for row in self._database.values(query)]
