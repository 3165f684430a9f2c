"""Limits on questions, on guesses of passwords and on requests of API keys, in memory: a restart clears them.

Limits per address count the requests of each name from `who_at`. Behind a proxy that is not in `trusted_proxies`, all
clients share one address and its limits.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import Final

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.requests import HTTPConnection

from app.domain.errors import DeskError
from app.domain.settings import Settings

PREFIX = 64
"""Bits of an IPv6 address that name a network. A household has at least one such network, with 2^64 addresses."""


def who_at(host: str) -> str:
    """Return the name under which an address is counted: an IPv4 address itself, also if written as IPv6; the network
    of an IPv6 address. Other text is counted as it is.
    """
    try:
        address = ip_address(host.partition("%")[0])  # %: the interface of a link-local address
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = IPv6Address(int(address) >> (128 - PREFIX) << (128 - PREFIX))
    return f"{network}/{PREFIX}"


def address_of(connection: HTTPConnection) -> str:
    return who_at(connection.client.host) if connection.client else ""


MOST_ASKERS = 10_000


def wait_of(limiter: MovingWindowRateLimiter, limit: RateLimitItem, name: str) -> int:
    """Return the whole seconds until a name may try again after its limit is reached."""
    return max(1, ceil(limiter.get_window_stats(limit, name).reset_time - time.time()))


class Windows(MemoryStorage):
    """The moving windows of the library `limits`, for at most `MOST_ASKERS` names. When they are full, a name whose
    window has ended is dropped, else the oldest name. Not safe for several threads without a lock.
    """

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        if key not in self.events and len(self.events) >= MOST_ASKERS:
            ended = (known for known, requests in self.events.items() if not requests)
            self.clear(next(ended, next(iter(self.events))))
        return super().acquire_entry(key, limit, expiry, amount)


VISITORS_AT_AN_ADDRESS = 5
"""An IP address has this many times a visitor's limit, because a household or an office may share one."""
_TIMES = {"visitor": 1, "address": VISITORS_AT_AN_ADDRESS}
PAUSES_A_QUESTION = 3  # number of searches for unfinished questions that are allowed per question


class QuestionLimits:
    """Limits on questions per visitor and per address. Safe to use from any thread."""

    def __init__(self, settings: Settings) -> None:
        self._limiter = MovingWindowRateLimiter(Windows())
        a_minute, typed = settings.questions_per_minute, settings.questions_per_minute * PAUSES_A_QUESTION
        self._a_minute = {kind: RateLimitItemPerMinute(a_minute * times) for kind, times in _TIMES.items()}
        self._typed = {kind: RateLimitItemPerMinute(typed * times, namespace="TYPED") for kind, times in _TIMES.items()}
        self._at_once = settings.answers_at_once
        self._running: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def asking(self, owner: str, address: str) -> Iterator[None]:
        """Count a question, and its answer as running inside the block. Raises DeskError "rate-limit"."""
        who = [("visitor", owner), ("address", address)]
        with self._lock:
            for kind, name in who:
                if self._running[kind, name] >= self._at_once * _TIMES[kind]:
                    raise DeskError(
                        "another answer is still running: wait until it ends, then ask again", code="rate-limit"
                    )
                if not self._limiter.test(self._a_minute[kind], name):
                    wait_s = wait_of(self._limiter, self._a_minute[kind], name)
                    words = f"too many questions in a short time: try again in {wait_s} s"
                    raise DeskError(words, code="rate-limit")
            for kind, name in who:
                self._limiter.hit(self._a_minute[kind], name)
            self._running.update(who)
        try:
            yield
        finally:
            with self._lock:
                self._running.subtract(who)
                self._running = +self._running  # removes names without a running answer

    def may_type(self, owner: str, address: str) -> bool:
        """Return whether text that a visitor types may be searched, and count it. Questions are counted separately."""
        who = (("visitor", owner), ("address", address))
        with self._lock:
            return all(self._limiter.hit(self._typed[kind], name) for kind, name in who)


FREE_FAILURES = 5
WINDOW_S = 15 * 60


class LoginRateLimiter:
    """Limit on guessing passwords: at most five failures from an IP address in 15 minutes."""

    def __init__(self) -> None:
        self._limiter = MovingWindowRateLimiter(Windows())
        self._limit = RateLimitItemPerMinute(FREE_FAILURES, WINDOW_S // 60)
        self._lock = threading.Lock()

    def attempt(self, address: str) -> int:
        """Count an attempt, which `succeeded` undoes. Return 0, or the seconds to wait if it is not allowed."""
        with self._lock:
            return 0 if self._limiter.hit(self._limit, address) else wait_of(self._limiter, self._limit, address)

    def succeeded(self, address: str) -> None:
        with self._lock:
            self._limiter.clear(self._limit, address)


MOST_BUCKETS: Final = 10_000
"""Maximum number of stored buckets. The least recently used one is dropped, so its caller gets a full one."""


class Rate:
    """Token buckets (Turner, 1986), one per caller. a_second: mean rate. at_once: burst. Safe for several threads."""

    def __init__(self, a_second: float, at_once: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._a_second, self._at_once, self._clock = a_second, at_once, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted
        self._lock = threading.Lock()

    def wait_s(self, who: str) -> float:
        """Return 0 and count a request, or return the seconds until it is allowed."""
        with self._lock:
            now = self._clock()
            tokens, counted = self._buckets.get(who, (float(self._at_once), now))
            tokens = min(self._at_once, tokens + (now - counted) * self._a_second)
            wait_s = max(0.0, (1 - tokens) / self._a_second)
            self._buckets[who] = (tokens if wait_s else tokens - 1, now)
            self._buckets.move_to_end(who)
            if len(self._buckets) > MOST_BUCKETS:
                self._buckets.popitem(last=False)
            return wait_s

    def charge(self, who: str, tokens: int) -> None:
        """Count tokens that were used without asking first. The debt is at most one burst."""
        with self._lock:
            left, counted = self._buckets.get(who, (float(self._at_once), self._clock()))
            self._buckets[who] = (max(left - tokens, -self._at_once), counted)
