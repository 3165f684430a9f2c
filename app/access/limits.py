"""How much one visitor, and one address, may ask of the desk.

Kept in memory: a restart forgets it. Behind a proxy that is not in the setting `trusted_proxies` all visitors share one
address, and its limits. Not covered: guessing of passwords (`login_rate`).
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.strategies import MovingWindowRateLimiter

from app.access.windows import Windows
from app.domain.errors import DeskError
from app.domain.settings import Settings

VISITORS_AT_AN_ADDRESS = 5
"""As many times a visitor's limit are an address's: a household or an office may share one."""
PAUSES_A_QUESTION = 3
"""So many unfinished questions are searched for within the time of one."""


class TooMany(DeskError):
    """A limit was reached. retry_after: seconds after which it may be tried again."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message, code="rate-limit")
        self.retry_after = retry_after


class QuestionLimits:
    """Counts questions. Safe to use from any thread."""

    def __init__(self, settings: Settings) -> None:
        self._limiter = MovingWindowRateLimiter(Windows())
        a_minute, at_once = settings.questions_per_minute, settings.answers_at_once
        self._a_minute = {
            "visitor": RateLimitItemPerMinute(a_minute),
            "address": RateLimitItemPerMinute(a_minute * VISITORS_AT_AN_ADDRESS),
        }
        typed = a_minute * PAUSES_A_QUESTION
        self._typed = {
            "visitor": RateLimitItemPerMinute(typed, namespace="TYPED"),
            "address": RateLimitItemPerMinute(typed * VISITORS_AT_AN_ADDRESS, namespace="TYPED"),
        }
        self._at_once = {"visitor": at_once, "address": at_once * VISITORS_AT_AN_ADDRESS}
        self._running: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def asking(self, owner: str, address: str) -> Iterator[None]:
        """Count a question, and its answer as in progress for the block. Raises TooMany."""
        who = [("visitor", owner), ("address", address)]
        with self._lock:
            for kind, name in who:
                if self._running[kind, name] >= self._at_once[kind]:
                    raise TooMany("another answer is still being written: wait for it to end, then ask again", 5)
                if not self._limiter.test(self._a_minute[kind], name):
                    wait_s = self._wait_s(self._a_minute[kind], name)
                    raise TooMany(f"too many questions in a short time: try again in {wait_s} s", wait_s)
            for kind, name in who:
                self._limiter.hit(self._a_minute[kind], name)
            self._running.update(who)
        try:
            yield
        finally:
            with self._lock:
                self._running.subtract(who)
                for one in who:
                    if not self._running[one]:
                        del self._running[one]

    def may_type(self, owner: str, address: str) -> bool:
        """Whether what a visitor types may be searched for; counts it. Questions are counted apart from it."""
        who = (("visitor", owner), ("address", address))
        with self._lock:
            return all(self._limiter.hit(self._typed[kind], name) for kind, name in who)

    def _wait_s(self, limit: RateLimitItem, name: str) -> int:
        return max(1, ceil(self._limiter.get_window_stats(limit, name).reset_time - time.time()))
