# player.py: who decides where a boat goes.
from __future__ import annotations

from map import Map
from unit import Boat


class Player:
    """Owns one boat and earns coins for crates that are brought to another harbour."""

    def __init__(self, name: str, boat: Boat) -> None:
        self.name = name
        self.boat = boat
        self.coins = 0
        self.goal: tuple[int, int] | None = None

    def choose_goal(self, chart: Map) -> None:
        """Go for the nearest other harbour; with an empty boat, one that has crates."""
        here = (self.boat.row, self.boat.column)
        others = [place for place in chart.harbours() if place != here]
        if not self.boat.cargo:
            others = [place for place in others if chart.crates[place]] or others
        self.goal = min(others, key=lambda place: len(chart.route(here, place)))

    def trade(self, chart: Map) -> None:
        """In a harbour: sell what is aboard, load what lies there, fill the tank."""
        place = (self.boat.row, self.boat.column)
        self.coins += 5 * self.boat.unload()
        chart.crates[place] -= self.boat.load(chart.crates[place])
        self.boat.refuel()
        self.goal = None

    def next_step(self, chart: Map) -> tuple[int, int] | None:
        """The next place on the way to the goal."""
        if self.goal is None:
            self.choose_goal(chart)
        assert self.goal is not None
        way = chart.route((self.boat.row, self.boat.column), self.goal)
        return way[0] if way else None
