"""How often an engine that fails may begin anew before it stays down, because each time costs what is warm."""

import time
from collections import deque

RESTARTED = "the engine failed and begins anew, the log says why: ask again"
BROKEN = "the engine failed again and again, see the log; restart the program"
MOST_RESTARTS, RESTARTS_S = 5, 600.0
"""So many within so many seconds."""


class RestartLimit:
    """The failures of one engine."""

    def __init__(self) -> None:
        self._failures: deque[float] = deque(maxlen=MOST_RESTARTS + 1)

    def failed(self) -> bool:
        """Note a failure now; gives whether it is one too many."""
        self._failures.append(time.monotonic())
        return len(self._failures) > MOST_RESTARTS and self._failures[-1] - self._failures[0] < RESTARTS_S
