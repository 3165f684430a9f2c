# game.py: turns, and who wins.
from __future__ import annotations

from random import Random

from map import HARBOUR, Map
from player import Player
from unit import Boat
from weather import Weather


class Game:
    """Two players trade between harbours for a number of turns; most coins win."""

    def __init__(self, seed: int = 1, turns: int = 40) -> None:
        self.chart = Map()
        self.weather = Weather(Random(seed))
        self.turns = turns
        first, *_, last = self.chart.harbours()
        self.players = [Player("Ada", Boat("Petrel", *first)), Player("Ben", Boat("Gannet", *last))]

    def play(self) -> Player:
        """Play to the end; returns the winner."""
        for _ in range(self.turns):
            self.weather.next_turn()
            for player in self.players:
                self.move(player)
        return max(self.players, key=lambda player: player.coins)

    def move(self, player: Player) -> None:
        """One turn of one player. Nobody leaves a harbour in a storm."""
        boat = player.boat
        in_harbour = self.chart.at(boat.row, boat.column) == HARBOUR
        if in_harbour:
            player.trade(self.chart)
        else:
            boat.hit(self.weather.damage())
        if not boat.can_move() or (in_harbour and self.weather.name == "storm"):
            return
        step = player.next_step(self.chart)
        if step is not None:
            boat.move_to(*step)


if __name__ == "__main__":
    game = Game()
    winner = game.play()
    for player in game.players:
        print(f"{player.name}: {player.coins} coins, hull {player.boat.hull}")
    print(f"{winner.name} wins")
