# weather.py: wind that changes from turn to turn.
from __future__ import annotations

from random import Random

FORCES = ("calm", "breeze", "gale", "storm")


class Weather:
    """The force of the wind. It changes by one step at most in a turn."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.force = 1

    def next_turn(self) -> None:
        change = self.random.choice((-1, 0, 0, 1))
        self.force = min(max(self.force + change, 0), len(FORCES) - 1)

    @property
    def name(self) -> str:
        return FORCES[self.force]

    def damage(self) -> int:
        """Points of hull that a turn at sea costs."""
        return 1 if self.name == "storm" and self.random.random() < 0.5 else 0
