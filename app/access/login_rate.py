"""The limit on guessing the admin password."""

import threading
import time
from math import ceil

from limits import RateLimitItemPerMinute
from limits.strategies import MovingWindowRateLimiter

from app.access.windows import Windows

FREE_FAILURES = 5
WINDOW_S = 15 * 60


class LoginRateLimiter:
    """After five failures within a quarter of an hour an address has to wait until the oldest is that old.

    Behind a proxy all clients share one address and therefore one limit. Kept in memory: a restart forgets it.
    """

    def __init__(self) -> None:
        self._limiter = MovingWindowRateLimiter(Windows())
        self._limit = RateLimitItemPerMinute(FREE_FAILURES, WINDOW_S // 60)
        self._lock = threading.Lock()

    def attempt(self, address: str) -> int:
        """Count a try as failed, ahead of the check; gives 0, or the seconds to wait if it is not allowed."""
        with self._lock:
            if self._limiter.hit(self._limit, address):
                return 0
            return max(1, ceil(self._limiter.get_window_stats(self._limit, address).reset_time - time.time()))

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address."""
        with self._lock:
            self._limiter.clear(self._limit, address)
