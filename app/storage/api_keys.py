"""API keys in the database. Of a key only its hash is stored.

Not covered: making keys, and what a key may do (`app.access.keys`).
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from app.domain.errors import DeskError
from app.storage.database import Database
from app.storage.tables import ApiKeyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as stored. id: names its owner (`k-<id>`). shown: how it begins, to recognise it. per_minute: how many
    requests that cost something it may send in a minute. revoked: None while it works.
    """

    id: str
    name: str
    shown: str
    scopes: frozenset[str]
    per_minute: int
    created: datetime
    last_used: datetime | None = None
    revoked: datetime | None = None


class ApiKeyTable:
    """Reads and writes keys. Safe to use from any thread; every method is one transaction and may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, key: ApiKey, token_hash: str) -> None:
        """Store a new key. Raises DeskError if one of its name is in use."""
        row = ApiKeyRow(
            id=key.id,
            name=key.name,
            token_hash=token_hash,
            shown=key.shown,
            scopes=" ".join(sorted(key.scopes)),
            per_minute=key.per_minute,
            created=key.created,
        )
        try:
            with self._database.write() as session:
                session.add(row)
        except IntegrityError:
            raise DeskError(
                f"there is a key {key.name!r} already: revoke it first, or choose another name", code="key-exists"
            ) from None

    def find(self, token_hash: str) -> ApiKey | None:
        """The key of this hash, unless it was revoked."""
        rows = self._database.values(
            select(ApiKeyRow).where(ApiKeyRow.token_hash == token_hash, ApiKeyRow.revoked.is_(None))
        )
        return _key(rows[0]) if rows else None

    def all(self) -> list[ApiKey]:
        """Every key, also revoked ones, in the order in which they were made."""
        return [_key(row) for row in self._database.values(select(ApiKeyRow).order_by(ApiKeyRow.created))]

    def used(self, key_id: str, now: datetime) -> None:
        """Remember that a key was used."""
        with self._database.write() as session:
            session.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(last_used=now))

    def revoke(self, name: str, now: datetime) -> ApiKey:
        """End the key of this name. Raises DeskError if none is in use."""
        with self._database.write() as session:
            in_use = select(ApiKeyRow).where(ApiKeyRow.name == name, ApiKeyRow.revoked.is_(None))
            row = session.scalar(in_use)
            if row is None:
                raise DeskError(f"there is no key {name!r} in use: see `warmdesk keys list`", code="key-unknown")
            row.revoked = now
            return _key(row)


def _key(row: ApiKeyRow) -> ApiKey:
    return row.to(ApiKey, scopes=frozenset(row.scopes.split()))
