"""Who is signed in to the admin area: sessions in the database, so that they outlive a restart.

A browser holds a random token; the database holds only a hash of it and of the password's hash together. So a new
password ends every session, also when another process sets it. Not covered: several users.
"""

import hashlib
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, exists, select

from app.storage.database import Database
from app.storage.tables import SessionRow

LIFETIME_S = 12 * 3600


class Sessions:
    """Starts, checks and ends sessions. Safe to use from any thread; every method may raise DeskError.

    password_hash: gives the current hash of the admin password, read anew for each call.
    """

    def __init__(
        self,
        database: Database,
        password_hash: Callable[[], str],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database, self._password_hash, self._now = database, password_hash, now

    def start(self) -> str:
        """A new token, valid for LIFETIME_S seconds. Removes the sessions that have expired."""
        token, now = secrets.token_urlsafe(32), self._now()
        expires = now + timedelta(seconds=LIFETIME_S)
        with self._database.write() as session:
            session.execute(delete(SessionRow).where(SessionRow.expires <= now))
            session.add(SessionRow(token_hash=self._hash(token), created=now, expires=expires))
        return token

    def is_valid(self, token: str) -> bool:
        """Whether the token is of a session that has not ended."""
        found = exists().where(SessionRow.token_hash == self._hash(token), SessionRow.expires > self._now())
        with self._database.read() as session:
            return bool(session.scalar(select(found)))

    def end(self, token: str) -> None:
        """Sign out; a token of no session is no error."""
        with self._database.write() as session:
            session.execute(delete(SessionRow).where(SessionRow.token_hash == self._hash(token)))

    def _hash(self, token: str) -> str:
        return hashlib.sha256(f"{self._password_hash()} {token}".encode()).hexdigest()
