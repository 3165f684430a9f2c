"""How often an engine that fails may begin anew before it stays down, because each time costs what is warm; and which
prompts it is not asked again meanwhile, because they may be why.
"""

import time
from collections import deque
from collections.abc import Iterable

from cache.memory.keys import digest, token_bytes
from cache.prompt.plan import Plan

RESTARTED = "the engine failed and begins anew, the log says why: ask again"
BROKEN = "the engine failed again and again, see the log; restart the program"
MOST_RESTARTS, RESTARTS_S = 5, 600.0
"""So many within so many seconds."""
MOST_LOST = 2
"""Failures within that time after which a prompt that was there is refused."""
REFUSED = "the engine has failed twice while it computed this prompt: ask something else, or ask again in ten minutes"


class RestartLimit:
    """The failures of one engine."""

    def __init__(self) -> None:
        self._failures: deque[float] = deque(maxlen=MOST_RESTARTS + 1)

    def failed(self) -> bool:
        """Note a failure now; gives whether it is one too many."""
        self._failures.append(time.monotonic())
        return len(self._failures) > MOST_RESTARTS and self._failures[-1] - self._failures[0] < RESTARTS_S


class LostPrompts:
    """The prompts that were there when an engine failed. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lost: deque[tuple[float, frozenset[str]]] = deque(maxlen=MOST_RESTARTS)

    def add(self, plans: Iterable[Plan]) -> None:
        """Note what was there in a failure now."""
        self._lost.append((time.monotonic(), frozenset(_digest_of(plan) for plan in plans)))

    def refuses(self, plan: Plan) -> bool:
        """Whether a prompt is not to be asked again yet."""
        since = time.monotonic() - RESTARTS_S
        lost = [prompts for at, prompts in list(self._lost) if at > since]
        return len(lost) >= MOST_LOST and sum(_digest_of(plan) in prompts for prompts in lost) >= MOST_LOST


def _digest_of(plan: Plan) -> str:
    """Of its tokens, however they are placed."""
    return digest(b"".join(token_bytes(span.tokens) for span in plan.spans))
