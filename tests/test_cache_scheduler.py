"""Who computes how many rows next."""

from hypothesis import given
from hypothesis import strategies as st

from cache.engine.scheduler import (
    DECODING_PASS_S,
    MANY_ANSWERS,
    PASS_S,
    Sequence,
    rows_within,
    schedule,
    schedule_alone,
)
from cache.memory.arena import Extent

ROW_S = 0.001
WHOLE, DECODING = rows_within(PASS_S, ROW_S), rows_within(DECODING_PASS_S, ROW_S)


def sequence_of(pending: int, computed: int = 0, arrived: float = 0.0) -> Sequence:
    length = computed + pending
    return Sequence([0] * length, list(range(length)), [Extent(0, length + 1)], computed=computed, arrived=arrived)


def rows_of(*pending: int) -> list[int]:
    sequences = [sequence_of(n, computed=3, arrived=100.0 * i) for i, n in enumerate(pending)]
    rows = schedule(sequences, ROW_S)
    return [rows.get(sequence, 0) for sequence in sequences]


def test_prompts_fill_the_pass_in_order_of_arrival():
    assert rows_of(300, 150, 100) == [300, 150, 50]
    assert rows_of(WHOLE, 2) == [WHOLE, 0]
    assert rows_of(2000) == [WHOLE]


def test_a_short_prompt_overtakes_a_long_one_but_not_for_ever():
    long, soon, late = sequence_of(2000), sequence_of(20, arrived=1.9), sequence_of(20, arrived=2.1)
    assert [*schedule([long, late, soon], ROW_S).items()] == [(soon, 20), (long, WHOLE - 20)]


def test_short_prompts_do_not_wait_for_the_rows_of_many_answers():
    answers = [sequence_of(1, computed=9) for _ in range(MANY_ANSWERS)]
    long, later, first = sequence_of(200), sequence_of(30, arrived=1.0), sequence_of(20)
    assert [*schedule_alone([*answers, long, later, first], ROW_S).items()] == [(first, 20), (later, 30)]
    assert schedule_alone([*answers[1:], later, first], ROW_S) == {}, "few answers take little time"
    assert schedule_alone([*answers, long], ROW_S) == {}, "it would not end in the pass"
    assert schedule([], ROW_S) == {}
    assert schedule_alone([], ROW_S) == {}


@given(st.lists(st.integers(1, 700), max_size=24))
def test_passes_are_bounded_full_and_fair(pending):
    rows = rows_of(*pending)
    limit = DECODING if 1 in pending else WHOLE
    assert sum(rows) == min(limit, sum(pending))
    assert all(0 <= got <= wanted for got, wanted in zip(rows, pending, strict=True))
    assert all(got == 1 for got, wanted in zip(rows, pending, strict=True) if wanted == 1)
    prompts = [(got, wanted) for got, wanted in zip(rows, pending, strict=True) if wanted > 1]
    unfinished = [i for i, (got, wanted) in enumerate(prompts) if got < wanted]
    assert all(got == 0 for i, (got, _) in enumerate(prompts) if unfinished and i > unfinished[0])


@given(st.lists(st.integers(1, 700), min_size=1, max_size=12))
def test_everybody_finishes(pending):
    sequences = [sequence_of(n) for n in pending]
    for _ in range(sum(pending)):
        waiting = [sequence for sequence in sequences if sequence.pending]
        if not waiting:
            return
        shares = schedule(waiting, ROW_S)
        assert shares
        for sequence, rows in shares.items():
            sequence.chunk(rows)
            sequence.computed += rows
    assert not any(sequence.pending for sequence in sequences)
