"""The work list against a naive count of who sees whom."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make_chunk, slots_of

from cache.attention.items import Chunk, Item, KVView, VisibleRange, plan_arrays, plan_items
from cache.memory.arena import Extent

SHARED = [Extent(0, 3), Extent(3, 5), Extent(8, 1), Extent(9, 0)]
PARTS = [(), (VisibleRange(0, 1, 1), VisibleRange(3, 5, 4))]  # of what is visible of the second shared extent
Seen = Counter[tuple[int, int, int]]
"""How often packed row r sees arena slot s, rotated back by o: keys (r, s, o)."""


@st.composite
def passes(draw: st.DrawFn) -> list[Chunk]:
    chunks: list[Chunk] = []
    for i in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 8))
        first = draw(st.integers(0, length - 1))
        last = draw(st.integers(first + 1, length))
        view = st.builds(KVView, st.sampled_from(SHARED), st.integers(-3, 3), st.integers(0, 10))
        partly = st.builds(KVView, st.just(SHARED[1]), st.integers(-3, 3), st.just(1), st.sampled_from(PARTS))
        views = draw(st.lists(view | partly, max_size=4))
        chunk = make_chunk(first, last, Extent(100 + 20 * i, length + draw(st.integers(0, 3))), views)
        cuts = draw(st.sets(st.integers(1, length)))  # where pieces end; each lies before its predecessor
        ends = [0, *sorted(cuts), length + 3]
        pieces = [Extent(120 + 20 * i - end, end - start) for start, end in pairwise(ends)]
        chunks.append(replace(chunk, own=pieces))
    return chunks


def visible_slots(extent: Extent, ranges: tuple[VisibleRange, ...], row: int) -> list[int]:
    if not ranges:
        return [*range(extent.start, extent.end)]
    return [extent.start + key for one in ranges if row >= one.seen_from for key in range(one.first, one.last)]


def naive(chunks: list[Chunk]) -> Seen:
    seen: Seen = Counter()
    packed = 0
    for chunk in chunks:
        for row in range(chunk.first, chunk.last):
            for view in chunk.views:
                if row >= view.first_row:
                    slots = visible_slots(view.extent, view.visible_ranges, row)
                    seen.update((packed, slot, view.offset) for slot in slots)
            seen.update((packed, slot, 0) for slot in slots_of(chunk.own)[: row + 1])
            packed += 1
    return seen


def by_items(items: list[Item]) -> Seen:
    seen: Seen = Counter()
    for item in items:
        if item.causal:
            (only,) = item.ranges
            assert only.last - only.first == item.extent.length, "a causal item is a square"
        for one in item.ranges:
            for i, row in enumerate(range(one.first, one.last)):
                extent = item.extent.part(0, i + 1) if item.causal else item.extent
                seen.update((row, slot, one.offset) for slot in visible_slots(extent, one.visible_ranges, row))
    return seen


def by_runs(items: list[Item], hidden: dict[int, list[int]] | None = None) -> Seen:
    """What the tables for compiled code say, whose readers of a run stand in the order of their rows."""
    seen: Seen = Counter()
    turns: dict[int, int] = {}
    runs, readers = plan_arrays(items, turns, hidden=hidden)
    offsets = [*turns, 0]  # the last one, of turn -1
    for at in range(0, len(runs), 4):
        start, longest, first, count = runs[at : at + 4]
        found = readers[3 * first : 3 * (first + count)]
        rows, lengths, turned = found[::3], found[1::3], found[2::3]
        assert [*rows] == sorted(rows)
        assert max(lengths) <= longest
        for row, length, turn in zip(rows, lengths, turned, strict=True):
            keys = set(range(length)).difference((hidden or {}).get(at // 4, ()))
            seen.update((row, start + key, offsets[turn]) for key in keys)
    return seen


@settings(max_examples=60, deadline=None)
@given(passes())
def test_every_row_sees_every_key_exactly_as_often_as_it_should(chunks):
    items = plan_items(chunks)
    assert by_items(items) == by_runs(items) == by_runs(items, {}) == naive(chunks)


@settings(deadline=None)
@given(passes())
def test_no_item_is_empty_and_no_extent_is_read_twice(chunks):
    items = plan_items(chunks)
    assert all(item.num_rows and item.extent.length for item in items)
    assert all(one.first < one.last for item in items for one in item.ranges)
    extents = [item.extent for item in items if not item.causal]
    assert len(extents) == len(set(extents))
    for item in items:
        assert item.num_rows == sum(one.last - one.first for one in item.ranges)


def test_a_single_row_needs_no_causal_item():
    items = plan_items([make_chunk(5, 6, Extent(20, 9), [])])
    assert [(item.extent, item.causal) for item in items] == [(Extent(20, 6), False)]
    assert plan_items([]) == []
