# map.py: the sea chart, read from text.
from __future__ import annotations

from collections import deque

SEA, ROCK, LAND, HARBOUR = "~", "^", "#", "H"

CHART = """
##########
#H~~~^~~H#
#~~^~~~^~#
#~^~~#~~~#
#~~~##~^~#
#H~^~~~~H#
##########
"""


class Map:
    """A chart: rows of places. Boats may enter everything but land."""

    def __init__(self, text: str = CHART) -> None:
        self.rows = [list(line) for line in text.strip().splitlines()]
        self.crates = dict.fromkeys(self.harbours(), 3)

    def at(self, row: int, column: int) -> str:
        return self.rows[row][column]

    def harbours(self) -> list[tuple[int, int]]:
        """Places of all harbours, from the top left."""
        return [
            (row, column) for row, line in enumerate(self.rows) for column, place in enumerate(line) if place == HARBOUR
        ]

    def neighbours(self, row: int, column: int) -> list[tuple[int, int]]:
        """Places a boat can go to from here."""
        steps = [(row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column)]
        return [(r, c) for r, c in steps if self.at(r, c) != LAND]

    def route(self, start: tuple[int, int], goal: tuple[int, int]) -> list[tuple[int, int]]:
        """The shortest way that avoids rocks, without the start; empty if there is none."""
        came_from: dict[tuple[int, int], tuple[int, int] | None] = {start: None}
        queue = deque([start])
        while queue and goal not in came_from:
            place = queue.popleft()
            for after in self.neighbours(*place):
                if after not in came_from and self.at(*after) != ROCK:
                    came_from[after] = place
                    queue.append(after)
        way: list[tuple[int, int]] = []
        step = goal if goal in came_from else None
        while step is not None and step != start:
            way.append(step)
            step = came_from[step]
        return way[::-1]
