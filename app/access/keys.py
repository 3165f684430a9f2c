"""API keys: made once and shown once, checked at every request, limited in how much they may ask.

A key is 256 random bits, so a plain SHA-256 of it is safe to store. Keys are looked up anew each time: one that a
command made or revoked beside the running desk counts from its next request on. Not covered: routes and their scopes
(`app.web.access_rules`).
"""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from math import ceil

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from app.domain.callers import Caller
from app.domain.errors import DeskError
from app.storage.api_keys import ApiKey, ApiKeyTable
from app.storage.database import Database

PREFIX = "wd_"
SCOPES = ("chat", "documents", "admin")
"""chat: questions, embeddings, the conversations of the key. documents: list, add and remove them. admin: metrics."""
PER_MINUTE, MOST_PER_MINUTE = 60, 100_000
LONGEST_NAME = 80
_SHOWN_CHARS = len(PREFIX) + 6
_LONGEST_TOKEN = 128
_USE_WRITTEN = timedelta(minutes=1)


class Keys:
    """The keys of a desk. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, database: Database, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._table, self._now = ApiKeyTable(database), now
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._limits: dict[str, RateLimitItemPerMinute] = {}
        self._lock = threading.Lock()

    def create(self, name: str, scopes: Iterable[str] = ("chat",), per_minute: int = PER_MINUTE) -> str:
        """Make a key; gives it, and nothing else ever will. Raises DeskError for a name or scope that cannot be."""
        name, wanted = " ".join(name.split()), frozenset(scopes)
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise DeskError(f"the name of a key has 1 to {LONGEST_NAME} characters", code="bad-key-name")
        if unknown := sorted(wanted.difference(SCOPES)):
            raise DeskError(f"unknown scope {unknown[0]!r}: there are {', '.join(SCOPES)}", code="bad-scope")
        if not wanted:
            raise DeskError(f"a key needs a scope: {', '.join(SCOPES)}", code="bad-scope")
        if not 1 <= per_minute <= MOST_PER_MINUTE:
            raise DeskError(f"a key may send 1 to {MOST_PER_MINUTE:,} requests a minute", code="bad-limit")
        token = PREFIX + secrets.token_urlsafe(32)
        key = ApiKey(
            id=secrets.token_hex(6),
            name=name,
            shown=token[:_SHOWN_CHARS],
            scopes=wanted,
            per_minute=per_minute,
            created=self._now(),
        )
        self._table.add(key, hash_of(token))
        return token

    def all(self) -> list[ApiKey]:
        """Every key, also revoked ones."""
        return self._table.all()

    def revoke(self, name: str) -> ApiKey:
        """End the key of this name at once. Raises DeskError if none is in use."""
        return self._table.revoke(name, self._now())

    def find_key(self, token: str) -> Caller | None:
        """Who sends this key; None if it is none of ours. Its use is written down once a minute."""
        if not token.startswith(PREFIX) or len(token) > _LONGEST_TOKEN:
            return None
        key = self._table.find(hash_of(token))
        if key is None:
            return None
        caller = Caller(owner=f"k-{key.id}", name=key.name, scopes=key.scopes)
        self._limits[caller.owner] = RateLimitItemPerMinute(key.per_minute)
        if key.last_used is None or self._now() - key.last_used >= _USE_WRITTEN:
            self._table.used(key.id, self._now())
        return caller

    def seconds_to_wait(self, caller: Caller) -> int:
        """Count a request that costs something. Gives 0, or the whole seconds until the key may send the next one; 0
        for a caller without a key.
        """
        limit = self._limits.get(caller.owner)
        if limit is None:
            return 0
        with self._lock:  # the storage counts and looks in two steps
            if self._limiter.hit(limit, caller.owner):
                return 0
            return max(1, ceil(self._limiter.get_window_stats(limit, caller.owner).reset_time - time.time()))


def hash_of(token: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
