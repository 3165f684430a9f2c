"""How often somebody may do something: a token bucket for each asker (Turner, 1986), in memory alone."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MOST_ASKERS: Final = 10_000
"""Askers whose buckets are kept: who asked longest ago is forgotten, which fills his bucket."""


class Rate:
    """So many a second on average, and so many at once after a pause. Safe to use from any thread."""

    def __init__(self, a_second: float, at_once: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._a_second, self._at_once, self._clock = a_second, at_once, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted
        self._lock = threading.Lock()

    def wait_s(self, who: str) -> float:
        """Count one more: 0, or the seconds until it is allowed, and then it is not counted."""
        with self._lock:
            now = self._clock()
            tokens, counted = self._buckets.get(who, (float(self._at_once), now))
            tokens = min(self._at_once, tokens + (now - counted) * self._a_second)
            wait_s = max(0.0, (1 - tokens) / self._a_second)
            self._buckets[who] = (tokens if wait_s else tokens - 1, now)
            self._buckets.move_to_end(who)
            if len(self._buckets) > MOST_ASKERS:
                self._buckets.popitem(last=False)
            return wait_s

    def charge(self, who: str, tokens: int) -> None:
        """Count so many more that were not asked for; there may be a debt of as many as there are at once."""
        with self._lock:
            left, counted = self._buckets.get(who, (float(self._at_once), self._clock()))
            self._buckets[who] = (max(left - tokens, -self._at_once), counted)
