"""Plans: spans joined, ends computed, exactness."""

from __future__ import annotations

from cache.prompt.plan import Plan, Span, Unit, end_computed, join_spans


def test_join_spans_joins_what_touches_and_is_computed() -> None:
    unit = Unit(name="u", tokens=(5,))
    spans = (
        Span(start=0, tokens=(1,)),
        Span(start=1, tokens=()),
        Span(start=1, tokens=(2,)),
        Span(start=4, tokens=(3,)),
        Span(start=5, tokens=(5,), unit=unit),
        Span(start=6, tokens=(), unit=unit),
        Span(start=6, tokens=(5,), unit=unit),
        Span(start=7, tokens=(6,)),
    )
    assert [(s.start, s.tokens, s.unit) for s in join_spans(spans)] == [
        (0, (1, 2), None),
        (4, (3,), None),
        (5, (5,), unit),
        (6, (5,), unit),
        (7, (6,), None),
    ]
    assert join_spans(()) == ()


def test_a_computed_end_stays_as_it_is() -> None:
    spans = (Span(start=0, tokens=(1, 2)),)
    assert end_computed(spans) is spans


def test_positions_of_a_unit_with_gaps() -> None:
    unit = Unit(name="u", tokens=(1, 2, 3, 4), start=5, gaps=((1, 10), (3, 2)))
    assert unit.positions == [5, 16, 17, 20]
    assert [unit.position(row) for row in range(4)] == unit.positions
    assert unit.end == 21


def test_a_span_knows_how_far_it_stands_from_where_its_rows_were_encoded() -> None:
    unit = Unit(name="u", tokens=(1, 2, 3), start=5, gaps=((1, 10),))
    assert Span(start=105, tokens=(1,), unit=unit).offset == 100
    assert Span(start=116, tokens=(2, 3), unit=unit, row=1).offset == 100
    assert Span(start=7, tokens=(9,)).offset == 0


def test_units_are_named_once_even_if_they_supply_several_spans() -> None:
    unit = Unit(name="u", tokens=(1, 2))
    spans = (
        Span(start=0, tokens=(1,), unit=unit),
        Span(start=1, tokens=(7,)),
        Span(start=2, tokens=(2,), unit=unit, row=1),
        Span(start=3, tokens=(8,)),
    )
    assert Plan(spans=spans).units() == (unit,)


def test_exact_means_encoded_behind_the_very_tokens_at_the_very_distances() -> None:
    system = Unit(name="s", tokens=(1, 2))
    behind = Unit(name="b", tokens=(3,), start=2, prefix=system)
    alone = Unit(name="a", tokens=(3,))

    def exact(*spans: Span) -> bool:
        return Plan(spans=(*spans, Span(start=9, tokens=(5,)))).is_exact

    first = Span(start=0, tokens=(1, 2), unit=system)
    assert exact(first)
    assert exact(first, Span(start=2, tokens=(3,), unit=behind))
    assert exact(Span(start=7, tokens=(3,), unit=alone)), "a shift of everything changes nothing"
    assert not exact(first, Span(start=3, tokens=(3,), unit=behind)), "a gap"
    assert not exact(first, Span(start=2, tokens=(3,), unit=alone))
    assert not exact(Span(start=2, tokens=(3,), unit=behind))
    assert not exact(
        Span(start=0, tokens=(1,), unit=system),
        Span(start=1, tokens=(9,)),
        Span(start=2, tokens=(2,), unit=system, row=1),
    )
    assert exact(Span(start=0, tokens=(1,), unit=system), Span(start=1, tokens=(2,), unit=system, row=1))


def test_a_prompt_of_a_thousand_pieces_is_planned_in_a_moment() -> None:
    """Was cubic once, on the engine's thread: this took half a minute."""
    unit = Unit(name="u", tokens=(1,) * 2000, gaps=tuple((row, 1) for row in range(1, 2000)))
    spans = [Span(start=2 * row, tokens=(1,), unit=unit, row=row) for row in range(2000)]
    assert unit.positions == [2 * row for row in range(2000)]
    assert Plan(spans=(*spans, Span(start=4000, tokens=(2,)))).is_exact
    moved = [Span(start=2 * row + (row > 1000), tokens=(1,), unit=unit, row=row) for row in range(2000)]
    assert not Plan(spans=(*moved, Span(start=4001, tokens=(2,)))).is_exact
