# unit.py: the boats of the game.
from __future__ import annotations

from dataclasses import dataclass

FULL_TANK = 12
FULL_HULL = 3


@dataclass
class Boat:
    """A boat at a place of the map. Moving costs fuel, rocks and storms cost hull."""

    name: str
    row: int
    column: int
    fuel: int = FULL_TANK
    hull: int = FULL_HULL
    cargo: int = 0
    capacity: int = 4

    @property
    def is_afloat(self) -> bool:
        return self.hull > 0

    def can_move(self) -> bool:
        return self.is_afloat and self.fuel > 0

    def move_to(self, row: int, column: int) -> None:
        """Go to a place next to this one. Raises ValueError if it is further away."""
        if abs(row - self.row) + abs(column - self.column) != 1:
            raise ValueError(f"{self.name} cannot go from {self.row, self.column} to {row, column}")
        self.row, self.column = row, column
        self.fuel -= 1

    def hit(self, points: int) -> None:
        """Lose hull, but never more than there is."""
        self.hull = max(0, self.hull - points)

    def load(self, crates: int) -> int:
        """Take crates aboard; returns how many found room."""
        taken = min(crates, self.capacity - self.cargo)
        self.cargo += taken
        return taken

    def unload(self) -> int:
        """Put all crates ashore; returns how many there were."""
        crates, self.cargo = self.cargo, 0
        return crates

    def refuel(self) -> None:
        self.fuel = FULL_TANK
