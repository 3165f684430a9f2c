"""How fast uses fade: what a rehearsal would hold, and which half-life decides."""

import random
from dataclasses import dataclass
from math import log2

import pytest

from cache.memory.eviction import LONG, SHORT, EvictionQueue, HalfLife, Marks, Rehearsal

ROOM = 10


@dataclass(eq=False)
class Used:
    marks: Marks | None


class Uses:
    def __init__(self) -> None:
        self.half_life = HalfLife()
        self.marks: dict[str, Marks] = {}

    def use(self, name: str) -> None:
        self.marks[name] = self.half_life.use(self.marks.get(name), ROOM)
        self.half_life.rehearse(name, self.marks[name], ROOM)


def test_a_use_counts_half_as_much_after_a_half_life():
    half_life = HalfLife()
    marks = half_life.use(None, 1)
    half_life.rounds += LONG
    assert 2 ** (marks[1] - half_life.clock) == pytest.approx(1 / 2)
    again = half_life.use(marks, 1_000_000_000)
    assert 2 ** (again[1] - half_life.clock) == pytest.approx(3 / 2)
    assert 2 ** (again[0] - half_life.rounds / SHORT) == pytest.approx(1 + 2 ** (-LONG / SHORT))


def test_marks_stay_finite_for_ever():
    half_life = HalfLife()
    marks = half_life.use(None, 1)
    half_life.rounds = 1e9
    assert half_life.use(marks, 1) == pytest.approx(half_life.begin())
    twice = half_life.use(half_life.begin(), 1_000_000_000)
    assert twice[1] - half_life.begin()[1] == pytest.approx(log2(2), rel=1e-3)


def test_a_rehearsal_holds_what_has_the_highest_marks():
    rehearsal = Rehearsal()
    used = [("a", 1.0), ("b", 2.0), ("a", 3.0), ("c", 2.5), ("d", 2.6)]  # c takes the place of b, d that of c
    assert [rehearsal.use(key, mark, room=2) for key, mark in used] == [False, False, True, False, False]
    assert [rehearsal.use(key, mark, room=2) for key, mark in [("a", 4.0), ("d", 3.0)]] == [True, True]
    assert not rehearsal.use("c", 3.1, room=2)


def test_a_rehearsal_shrinks_with_its_room_and_forgets():
    rehearsal = Rehearsal()
    for number in range(100):
        rehearsal.use(str(number), float(number), room=50)
    assert len(rehearsal._marks) == len(rehearsal._heap) == 50
    assert not rehearsal.use("new", 100.0, room=2)
    assert set(rehearsal._marks) == {"99", "new"}
    rehearsal.forget({"99", "nobody"})
    assert set(rehearsal._marks) == {"new"}
    assert [key for _, key in rehearsal._heap] == ["new"]


def test_what_is_popular_for_ever_is_remembered_long():
    uses, rng = Uses(), random.Random(0)
    names = [str(number) for number in range(100)]
    for _ in range(4000):
        uses.use(rng.choices(names, [1 / (rank + 1) for rank in range(100)])[0])
    assert not uses.half_life.is_short


def test_when_popularity_changes_uses_fade_faster_until_it_stays():
    uses, rng = Uses(), random.Random(0)
    names = [str(number) for number in range(100)]
    weights = [1 / (rank + 1) for rank in range(100)]
    was_short = []
    for part in range(20):
        for _ in range(300):
            uses.use(rng.choices(names, weights)[0])
            was_short.append(uses.half_life.is_short)
        rng.shuffle(names)
        assert part < 2 or any(was_short[-300:])
    for _ in range(4000):
        uses.use(rng.choices(names, weights)[0])
    assert not uses.half_life.is_short


def test_nothing_is_decided_before_there_is_something_to_tell_them_apart():
    uses = Uses()
    for number in range(1000):
        uses.use(str(number))
    assert not uses.half_life.is_short


def test_the_queue_follows_the_half_life_that_decides():
    queue = EvictionQueue[Used](lambda _: True, lambda _: 1.0, lambda _: False)
    often_before, once_now = Used((1.0, 3.0)), Used((2.0, 2.0))
    queue.add(often_before)
    queue.add(once_now)
    assert queue.lowest(1) == [once_now]
    queue.half_life._lead = -1.0
    assert queue.lowest(1) == [often_before]
    queue.half_life._lead = 1.0
    assert queue.lowest(2) == [once_now, often_before]
