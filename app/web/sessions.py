"""Who is logged in: signed session tokens, and the brake on guessing passwords. One object of each per
server.

A token is "expiry.nonce.signature". Nothing is stored for a valid one; logging out remembers its nonce until
it would have expired anyway (lost at a restart). Not covered: several users.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable

LIFETIME_S = 12 * 3600
FREE_FAILURES = 5
WINDOW_S = 15 * 60
MAX_ADDRESSES = 10_000


class Sessions:
    """Issues, checks and ends tokens. key: gives the signing key, anew for each call."""

    def __init__(self, key: Callable[[], bytes], clock: Callable[[], float] = time.time) -> None:
        self._key, self._clock = key, clock
        self._ended: dict[str, float] = {}
        self._lock = threading.Lock()

    def start(self) -> str:
        """A new token, valid for LIFETIME_S seconds."""
        body = f"{int(self._clock()) + LIFETIME_S}.{secrets.token_urlsafe(16)}"
        return f"{body}.{self._signature(body)}"

    def is_valid(self, token: str) -> bool:
        """Whether the token is ours, not expired and not logged out."""
        body, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(body).encode()):
            return False
        expiry, _, nonce = body.partition(".")
        return int(expiry) > self._clock() and nonce not in self._ended

    def end(self, token: str) -> None:
        """Log out; a token that is not valid is no error."""
        if not self.is_valid(token):
            return
        expiry, nonce, _ = token.split(".")
        with self._lock:
            now = self._clock()
            self._ended = {key: until for key, until in self._ended.items() if until > now}
            self._ended[nonce] = float(expiry)

    def _signature(self, body: str) -> str:
        return hmac.new(self._key(), b"warmdesk-session-1." + body.encode(), hashlib.sha256).hexdigest()


class LoginBrake:
    """After five failures within a quarter of an hour an address has to wait; the oldest failure's age
    decides how long.

    Behind a proxy all clients share one address and therefore one brake.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def wait_s(self, address: str) -> int:
        """Seconds until the next try is allowed; 0: now."""
        with self._lock:
            recent = self._recent(address)
            return max(1, int(recent[0] + WINDOW_S - self._clock())) if len(recent) >= FREE_FAILURES else 0

    def failed(self, address: str) -> None:
        """Count a failed try."""
        with self._lock:
            recent = self._recent(address)
            if address not in self._failures and len(self._failures) >= MAX_ADDRESSES:
                self._failures.pop(next(iter(self._failures)))
            self._failures[address] = [*recent, self._clock()][-FREE_FAILURES:]

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address."""
        with self._lock:
            self._failures.pop(address, None)

    def _recent(self, address: str) -> list[float]:
        start = self._clock() - WINDOW_S
        return [moment for moment in self._failures.get(address, ()) if moment > start]
