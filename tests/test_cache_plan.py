"""Plans: spans joined, ends computed, exactness."""

from cache.prompt.plan import Plan, Segment, Span, end_computed, join_spans


def test_join_spans_joins_what_touches_and_is_computed() -> None:
    segment = Segment(name="u", tokens=(5,))
    spans = (
        Span(start=0, tokens=(1,)),
        Span(start=1, tokens=()),
        Span(start=1, tokens=(2,)),
        Span(start=4, tokens=(3,)),
        Span(start=5, tokens=(5,), segment=segment),
        Span(start=6, tokens=(), segment=segment),
        Span(start=6, tokens=(5,), segment=segment),
        Span(start=7, tokens=(6,)),
    )
    assert [(s.start, s.tokens, s.segment) for s in join_spans(spans)] == [
        (0, (1, 2), None),
        (4, (3,), None),
        (5, (5,), segment),
        (6, (5,), segment),
        (7, (6,), None),
    ]
    assert join_spans(()) == ()


def test_a_computed_end_stays_as_it_is() -> None:
    spans = (Span(start=0, tokens=(1, 2)),)
    assert end_computed(spans) is spans


def test_positions_of_a_segment_with_gaps() -> None:
    segment = Segment(name="u", tokens=(1, 2, 3, 4), start=5, gaps=((1, 10), (3, 2)))
    assert segment.positions == [5, 16, 17, 20]
    assert [segment.position(row) for row in range(4)] == segment.positions
    assert segment.end == 21


def test_a_span_knows_how_far_it_stands_from_where_its_rows_were_encoded() -> None:
    segment = Segment(name="u", tokens=(1, 2, 3), start=5, gaps=((1, 10),))
    assert Span(start=105, tokens=(1,), segment=segment).offset == 100
    assert Span(start=116, tokens=(2, 3), segment=segment, row=1).offset == 100
    assert Span(start=7, tokens=(9,)).offset == 0


def test_segments_are_named_once_even_if_they_supply_several_spans() -> None:
    segment = Segment(name="u", tokens=(1, 2))
    spans = (
        Span(start=0, tokens=(1,), segment=segment),
        Span(start=1, tokens=(7,)),
        Span(start=2, tokens=(2,), segment=segment, row=1),
        Span(start=3, tokens=(8,)),
    )
    assert Plan(spans=spans).segments() == (segment,)


def test_exact_means_encoded_behind_the_very_tokens_at_the_very_distances() -> None:
    system = Segment(name="s", tokens=(1, 2))
    behind = Segment(name="b", tokens=(3,), start=2, prefix=system)
    alone = Segment(name="a", tokens=(3,))

    def exact(*spans: Span) -> bool:
        return Plan(spans=(*spans, Span(start=9, tokens=(5,)))).is_exact

    first = Span(start=0, tokens=(1, 2), segment=system)
    assert exact(first)
    assert exact(first, Span(start=2, tokens=(3,), segment=behind))
    assert exact(Span(start=7, tokens=(3,), segment=alone)), "a shift of everything changes nothing"
    assert not exact(first, Span(start=3, tokens=(3,), segment=behind)), "a gap"
    assert not exact(first, Span(start=2, tokens=(3,), segment=alone))
    assert not exact(Span(start=2, tokens=(3,), segment=behind))
    assert not exact(
        Span(start=0, tokens=(1,), segment=system),
        Span(start=1, tokens=(9,)),
        Span(start=2, tokens=(2,), segment=system, row=1),
    )
    assert exact(Span(start=0, tokens=(1,), segment=system), Span(start=1, tokens=(2,), segment=system, row=1))


def test_a_prompt_of_a_thousand_pieces_is_planned_in_a_moment() -> None:
    """Was cubic once, on the engine's thread: this took half a minute."""
    segment = Segment(name="u", tokens=(1,) * 2000, gaps=tuple((row, 1) for row in range(1, 2000)))
    spans = [Span(start=2 * row, tokens=(1,), segment=segment, row=row) for row in range(2000)]
    assert segment.positions == [2 * row for row in range(2000)]
    assert Plan(spans=(*spans, Span(start=4000, tokens=(2,)))).is_exact
    moved = [Span(start=2 * row + (row > 1000), tokens=(1,), segment=segment, row=row) for row in range(2000)]
    assert not Plan(spans=(*moved, Span(start=4001, tokens=(2,)))).is_exact
