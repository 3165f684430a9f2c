"""The limit on guessing the admin password."""

import threading
import time
from math import ceil

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

FREE_FAILURES = 5
WINDOW_S = 15 * 60
MAX_ADDRESSES = 10_000


class LoginRateLimiter:
    """After five failures within a quarter of an hour an address has to wait until the oldest is that old.

    Behind a proxy all clients share one address and therefore one limit. Kept in memory: a restart forgets it.
    """

    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self._limiter = MovingWindowRateLimiter(self._storage)
        self._limit = RateLimitItemPerMinute(FREE_FAILURES, WINDOW_S // 60)
        self._lock = threading.Lock()

    def attempt(self, address: str) -> int:
        """Count a try as failed, ahead of the check; gives 0, or the seconds to wait if it is not allowed."""
        with self._lock:
            known = self._storage.events
            if self._limit.key_for(address) not in known and len(known) >= MAX_ADDRESSES:
                self._storage.clear(next(iter(known)))  # the one that failed first
            if self._limiter.hit(self._limit, address):
                return 0
            return max(1, ceil(self._limiter.get_window_stats(self._limit, address).reset_time - time.time()))

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address."""
        self._limiter.clear(self._limit, address)
