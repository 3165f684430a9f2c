"""The extent allocator: nothing overlaps, freed neighbours coalesce, in whatever pieces extents come back."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache.memory.arena import Extent, ExtentAllocator


class AllocatorMachine(RuleBasedStateMachine):
    allocator: ExtentAllocator
    free: set[int]
    used: list[Extent]

    @initialize(capacity=st.integers(0, 40))
    def create(self, capacity: int) -> None:
        self.allocator = ExtentAllocator(capacity)
        self.free = set(range(capacity))
        self.used = []

    def holes(self) -> list[Extent]:
        holes: list[Extent] = []
        for slot in sorted(self.free):
            if holes and holes[-1].end == slot:
                holes[-1] = Extent(holes[-1].start, holes[-1].length + 1)
            else:
                holes.append(Extent(slot, 1))
        return holes

    @rule(length=st.integers(1, 20))
    def allocate(self, length: int) -> None:
        fitting = [hole.length for hole in self.holes() if hole.length >= length]
        extent = self.allocator.allocate(length)
        if extent is None:
            assert not fitting
            return
        slots = set(range(extent.start, extent.end))
        assert extent.length == length
        assert slots <= self.free, "slots that are in use were given out"
        hole = next(hole for hole in self.holes() if hole.start <= extent.start < hole.end)
        assert hole.length == min(fitting), "not the best fit"
        self.free -= slots
        self.used.append(extent)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        extent = self.used.pop(data.draw(st.integers(0, len(self.used) - 1)))
        self.allocator.free(extent)
        self.free |= set(range(extent.start, extent.end))

    @precondition(lambda self: any(extent.length > 1 for extent in self.used))
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        extent = data.draw(st.sampled_from([extent for extent in self.used if extent.length > 1]))
        cut = data.draw(st.integers(1, extent.length - 1))
        self.used.remove(extent)
        self.used += [extent.part(0, cut), extent.part(cut, extent.length)]

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def freeing_anything_that_is_free_asserts(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.free)))
        start = data.draw(st.integers(max(0, slot - 3), slot))
        end = data.draw(st.integers(slot + 1, slot + 3))
        with pytest.raises(AssertionError, match="freed twice"):
            self.allocator.free(Extent(start, end - start))

    @rule()
    def nothing_is_free_to_free(self) -> None:
        self.allocator.free(Extent(0, 0))

    @invariant()
    def books_are_right(self) -> None:
        holes = self.holes()
        assert self.allocator.free_slots == len(self.free)
        assert max(h.length for h in (*self.allocator.holes, Extent(0, 0))) == max(
            (hole.length for hole in holes), default=0
        ), "holes did not coalesce"
        self.allocator.check_integrity(self.used)


AllocatorMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestAllocator = AllocatorMachine.TestCase


def test_integrity_finds_lost_overlapping_and_foreign_slots():
    allocator = ExtentAllocator(10)
    extent = allocator.allocate(4)
    assert extent == Extent(0, 4)
    for used in ([], [Extent(0, 3)], [Extent(0, 5)], [extent, Extent(2, 1)], [extent, Extent(10, 1)], [extent, extent]):
        with pytest.raises(AssertionError):
            allocator.check_integrity(used)
    allocator.check_integrity([extent, Extent(0, 0)])


def test_freeing_what_is_partly_free_changes_nothing():
    """Was wrong once: the hole on the left was taken out of the books before the one on the right was looked at."""
    allocator = ExtentAllocator(3)
    extent = allocator.allocate(2)
    assert extent is not None
    allocator.free(extent.part(0, 1))
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.free(Extent(1, 2))
    allocator.check_integrity([extent.part(1, 2)])
