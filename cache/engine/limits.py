"""How much the engine takes on at once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """running: requests that are answered at the same time. waiting: that may wait for it; one more is refused.
    seconds: after which a request ends with what it has, waiting included; None: it may take as long as it wants.
    hang_s: an engine that has work and does not get on with it for so many seconds counts as one that hangs.
    """

    running: int = 64
    waiting: int = 64
    seconds: float | None = None
    hang_s: float = 60.0
