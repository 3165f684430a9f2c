"""Who is signed in: sessions of accounts in the database, so that they outlive a restart.

A browser holds a random token; the database holds only its hash. `accounts` ends sessions where an account changes.
"""

import hashlib
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, select

from app.domain.errors import DeskError
from app.storage.accounts import Account
from app.storage.database import Database
from app.storage.tables import AccountRow, SessionRow

LIFETIME_S = 12 * 3600


class Sessions:
    """Starts, checks and ends sessions. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, database: Database, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database, self._now = database, now

    def start(self, account: Account) -> str:
        """A new token, valid for LIFETIME_S seconds. Removes the sessions that have expired. Raises DeskError if the
        account has changed since its password was checked.
        """
        token, now = secrets.token_urlsafe(32), self._now()
        expires = now + timedelta(seconds=LIFETIME_S)
        with self._database.write() as session:
            row = session.get(AccountRow, account.id)
            if row is None or row.to(Account) != account:
                raise DeskError("this account was changed just now: sign in again", code="account-changed")
            session.execute(delete(SessionRow).where(SessionRow.expires <= now))
            session.add(SessionRow(token_hash=_hash(token), account_id=account.id, created=now, expires=expires))
        return token

    def account(self, token: str) -> Account | None:
        """Who is signed in with this token; None if its session has ended or never was."""
        of_token = (SessionRow.token_hash == _hash(token), SessionRow.expires > self._now())
        query = select(AccountRow).join(SessionRow, SessionRow.account_id == AccountRow.id).where(*of_token)
        rows = self._database.values(query)
        return rows[0].to(Account) if rows else None

    def end(self, token: str) -> None:
        """Sign out; a token of no session is no error."""
        with self._database.write() as session:
            session.execute(delete(SessionRow).where(SessionRow.token_hash == _hash(token)))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "backslashreplace")).hexdigest()
