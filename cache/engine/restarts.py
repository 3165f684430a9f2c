"""How long an engine that fails rests before it begins anew, because each time costs what is warm, and what made it
fail may need time; and which prompts it is not asked again meanwhile, because they may be why.
"""

import time
from collections import deque
from collections.abc import Iterable

from cache.memory.keys import digest, token_bytes
from cache.prompt.plan import Plan

RESTARTED = "the engine failed and begins anew, the log says why: ask again"
RESTING = "the engine failed again and again and rests before it is tried again, the log says why: ask again in minutes"
AT_ONCE, FIRST_REST_S, LONGEST_REST_S = 3, 1.0, 240.0
"""After so many failures the engine is tried again at once; then each rest is twice the one before, up to the last."""
FORGOTTEN_S = 600.0
"""So long without a failure, and the next one counts as the first."""
MOST_LOST = 2
"""Failures within that time after which a prompt that was there is refused."""
MOST_NOTED = 5
"""Failures of which it is known what was there."""
REFUSED = "the engine has failed twice while it computed this prompt: ask something else, or ask again in ten minutes"


class Rests:
    """What the failures of one engine cost. It is always tried again."""

    def __init__(self) -> None:
        self._number, self._failed = 0, float("-inf")

    def failed(self) -> float:
        """Note a failure now; gives for how many seconds to rest."""
        now = time.monotonic()
        if now - self._failed > FORGOTTEN_S:
            self._number = 0
        self._number, self._failed = self._number + 1, now
        if self._number <= AT_ONCE:
            return 0.0
        return min(FIRST_REST_S * 2.0 ** min(self._number - AT_ONCE - 1, 30), LONGEST_REST_S)


class LostPrompts:
    """The prompts that were there when an engine failed. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lost: deque[tuple[float, frozenset[str]]] = deque(maxlen=MOST_NOTED)

    def add(self, plans: Iterable[Plan]) -> None:
        """Note what was there in a failure now."""
        self._lost.append((time.monotonic(), frozenset(_digest_of(plan) for plan in plans)))

    def refuses(self, plan: Plan) -> bool:
        """Whether a prompt is not to be asked again yet."""
        since = time.monotonic() - FORGOTTEN_S
        lost = [prompts for at, prompts in list(self._lost) if at > since]
        return len(lost) >= MOST_LOST and sum(_digest_of(plan) in prompts for prompts in lost) >= MOST_LOST


def _digest_of(plan: Plan) -> str:
    """Of its tokens, however they are placed."""
    return digest(b"".join(token_bytes(span.tokens) for span in plan.spans))
