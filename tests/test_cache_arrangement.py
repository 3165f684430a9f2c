"""Plans: placement of conversations, what a module may supply, spans joined, ends computed, exactness."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import ByteTokenizer

from cache.errors import PromptError
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Placement, Plan, Segment, Span, arrange, end_computed, join_spans, module_segment
from cache.prompt.tokenizer import run_tokens


def text(value: str) -> Text:
    return Text(text=value)


SYSTEM = TextModule(name="system", pieces=(Text(text="<a>", structural=True), text("Answer.")))
RETURNS = TextModule(name="returns", pieces=(text("30 days."),), after=SYSTEM)
DETAIL = TextModule(name="detail", pieces=(text("Unworn."),), after=RETURNS)
EMPTY = TextModule(name="empty", pieces=(text(""),), after=SYSTEM)
LETTER = TextModule(name="letter", pieces=(text("x"),))
MODULES = {module.name: module for module in (SYSTEM, RETURNS, DETAIL, EMPTY, LETTER)}


def plan_of(
    *parts: TextModule | Text,
    position_independent: bool = True,
    max_positions: int = 4096,
    placement: Placement = "contiguous",
    slot: int = 20,
) -> Plan:
    return arrange(
        parts,
        ByteTokenizer(),
        position_independent=position_independent,
        max_positions=max_positions,
        placement=placement,
        slot=slot,
    )


def places(plan: Plan) -> list[tuple[int, int, str | None]]:
    return [(span.start, span.end, span.segment and span.segment.name) for span in plan.spans]


@given(st.lists(st.sampled_from([*MODULES]) | st.text(max_size=5), min_size=1, max_size=8))
def test_any_prompt_is_contiguous_complete_and_ends_computed(parts):
    nodes = [MODULES.get(part) or text(part) for part in parts]
    whole = [t for node in nodes for t in expected_tokens(node)]
    if not whole:
        with pytest.raises(PromptError, match="empty"):
            plan_of(*nodes)
        return
    plan = plan_of(*nodes)
    assert [t for span in plan.spans for t in span.tokens] == whole
    assert plan.spans[0].start == 0
    assert plan.spans[-1].segment is None
    assert plan.num_tokens == plan.next_position == len(whole)
    assert all(span.tokens for span in plan.spans)
    for before, after in pairwise(plan.spans):
        assert before.end == after.start
        assert before.segment is not None or after.segment is not None, "computed neighbours were not joined"
    for span in plan.spans:
        assert span.segment is None or span.segment.tokens[: len(span.tokens)] == span.tokens
    assert plan.without_segments().spans == (Span(start=0, tokens=tuple(whole)),)


def expected_tokens(node: TextModule | Text) -> tuple[int, ...]:
    if isinstance(node, Text):
        return tuple(node.text.encode())
    return module_segment(node, ByteTokenizer()).tokens


def test_a_module_is_encoded_behind_its_conditioning_prefixes():
    segment = module_segment(DETAIL, ByteTokenizer())
    assert [(u.name, u.start, len(u.tokens)) for u in segment.with_ancestors()] == [
        ("system", 0, 8),
        ("returns", 8, 8),
        ("detail", 16, 7),
    ]


def test_without_position_independence_a_module_is_encoded_where_it_stands():
    plan = plan_of(text("Hello. "), RETURNS, text("?"), position_independent=False)
    assert plan.spans[1].segment is not None
    assert plan.spans[1].segment.start == plan.spans[1].start == 7
    moved = plan_of(text("Hello. "), RETURNS, text("?"))
    assert moved.spans[1].segment is not None
    assert moved.spans[1].segment.start == 8


def test_a_prompt_that_ends_in_a_module_computes_its_last_token():
    plan = plan_of(SYSTEM, RETURNS)
    last, tail = plan.spans[-2:]
    assert (last.start, last.tokens, tail.start, tail.tokens) == (8, tuple(b"30 days"), 15, tuple(b"."))
    assert last.segment is not None
    assert last.segment.tokens == tuple(b"30 days.")
    assert tail.segment is None


def test_too_long_is_refused_and_just_fitting_is_not():
    assert plan_of(text("x" * 10), max_positions=10).num_tokens == 10
    with pytest.raises(PromptError, match="needs 11 positions, the model has 10"):
        plan_of(text("x" * 11), max_positions=10)


def test_special_tokens_only_in_structural_text_and_known_tokens_as_they_are():
    assert run_tokens([Text(text="<b>", structural=True)], ByteTokenizer()) == (257,)
    assert run_tokens([text("<b>")], ByteTokenizer()) == tuple(b"<b>")
    assert run_tokens([Text(text="for people", tokens=(9, 8))], ByteTokenizer()) == (9, 8)
    assert run_tokens([Text(text="for people", tokens=())], ByteTokenizer()) == ()


def test_an_empty_conditioning_prefix_is_no_prefix():
    """Was wrong once: a segment behind an empty module keeps it as a prefix, and encoding a segment without tokens
    stops the engine (see `test_cache_engine_faults`). An empty system text is enough for that.
    """
    module = TextModule(name="a", pieces=(text("a"),), after=TextModule(name="system"))
    assert module_segment(module, ByteTokenizer()).prefix is None


def test_a_shared_group_at_the_end_must_end_in_its_longest():
    plan = plan_of(SYSTEM, DETAIL, RETURNS, placement="shared")
    assert (plan.spans[-1].start, plan.next_position) == (15, 16)
    with pytest.raises(PromptError, match="must end in text"):
        plan_of(SYSTEM, RETURNS, DETAIL, placement="shared")


@pytest.mark.parametrize("placement", ["slotted", "shared"])
def test_without_position_independence_segments_are_encoded_where_the_placement_puts_them(placement):
    plan = plan_of(SYSTEM, RETURNS, DETAIL, text("?"), position_independent=False, placement=placement)
    starts = {"slotted": [0, 8, 28], "shared": [0, 8, 8]}[placement]
    assert [segment.start for segment in plan.segments()] == starts
    assert all(span.offset == 0 for span in plan.spans)


@pytest.mark.parametrize(("placement", "needed"), [("slotted", 36), ("shared", 17)])
def test_the_ids_a_placement_needs_must_be_there(placement, needed):
    parts = (SYSTEM, RETURNS, DETAIL, text("?"))
    assert plan_of(*parts, placement=placement, max_positions=needed).next_position == needed
    with pytest.raises(PromptError, match=f"needs {needed} positions, the model has {needed - 1}"):
        plan_of(*parts, placement=placement, max_positions=needed - 1)


@given(
    st.lists(st.sampled_from([*MODULES]) | st.text(max_size=5), min_size=1, max_size=8),
    st.sampled_from(["slotted", "shared"]),
    st.integers(1, 30),
)
def test_placements_change_where_and_nothing_else(parts, placement, slot):
    """Any prompt that ends in text: same spans as contiguous, and only modules of a shared group have ids in common."""
    nodes = [*(MODULES.get(part) or text(part) for part in parts), text("?")]
    plan, contiguous = plan_of(*nodes, placement=placement, slot=slot), plan_of(*nodes)
    tokens = [token for span in plan.spans for token in span.tokens]
    assert tokens == [token for span in contiguous.spans for token in span.tokens]
    supplied = [(span.segment, span.tokens) for span in plan.spans if span.segment is not None]
    assert supplied == [(span.segment, span.tokens) for span in contiguous.spans if span.segment is not None]
    assert plan.next_position == max(span.end for span in plan.spans)
    modules = [span for span in plan.spans if span.segment is not None]
    for before, after in pairwise(plan.spans):
        if after.segment is None or before.segment is None:
            assert after.start >= before.end
            assert after.segment is not None or after.start == max(s.end for s in plan.spans[: plan.spans.index(after)])
        elif placement == "shared":
            assert after.start == (before.end if before is modules[0] else before.start)
        else:
            assert before.end <= after.start < before.end + slot
    if placement == "slotted" and modules:
        assert all((span.start - modules[0].end) % slot == 0 for span in modules[1:])


NEAR = TextModule(name="near", pieces=(text("Nearby. "),))
FAR = TextModule(name="far", pieces=(text("Far away. "),), after=SYSTEM)
CONDITIONED = TextModule(name="conditioned", pieces=(text("30 days."),), after=SYSTEM, left_context=(FAR, EMPTY, NEAR))


def test_the_left_context_of_a_module_stands_between_its_prefix_and_itself():
    segment = module_segment(CONDITIONED, ByteTokenizer())
    assert bytes(segment.left_context) == b"Far away. Nearby. "
    assert segment.prefix == module_segment(SYSTEM, ByteTokenizer())
    assert (segment.start, segment.tokens) == (8 + 18, tuple(b"30 days."))
    assert list(segment.left_context_positions) == list(range(8, 26))
    plan = plan_of(SYSTEM, CONDITIONED, text("?"))
    assert places(plan)[1] == (8, 16, "conditioned")
    assert plan.num_tokens == 17, "a left context is no part of the prompt"


@pytest.mark.parametrize(
    ("room", "left_context"), [(34, "Far away. Nearby. "), (33, "Nearby. "), (24, "Nearby. "), (23, "")]
)
def test_of_the_left_context_the_last_modules_stay_that_fit(room, left_context):
    segment = module_segment(CONDITIONED, ByteTokenizer(), room=room)
    assert bytes(segment.left_context).decode() == left_context
    assert segment.start == 8 + len(left_context)
    assert plan_of(SYSTEM, CONDITIONED, text("?"), max_positions=room).segments()[1] == segment


def test_without_position_independence_there_is_no_left_context():
    plan = plan_of(SYSTEM, CONDITIONED, text("?"), position_independent=False)
    assert [(segment.start, segment.left_context) for segment in plan.segments()] == [(0, ()), (8, ())]


def test_join_spans_joins_what_touches_and_is_computed():
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
    spans = (Span(start=0, tokens=(1, 2)),)
    assert end_computed(spans) is spans


def test_positions_of_a_segment_with_gaps():
    segment = Segment(name="u", tokens=(1, 2, 3, 4), start=5, gaps=((1, 10), (3, 2)))
    assert segment.positions == [5, 16, 17, 20]
    assert [segment.position(row) for row in range(4)] == segment.positions
    assert segment.end == 21


def test_a_span_knows_how_far_it_stands_from_where_its_rows_were_encoded():
    segment = Segment(name="u", tokens=(1, 2, 3), start=5, gaps=((1, 10),))
    assert Span(start=105, tokens=(1,), segment=segment).offset == 100
    assert Span(start=116, tokens=(2, 3), segment=segment, row=1).offset == 100
    assert Span(start=7, tokens=(9,)).offset == 0


def test_exact_means_encoded_behind_the_very_tokens_at_the_very_distances():
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


def test_a_prompt_of_a_thousand_pieces_is_planned_in_a_moment():
    """Was cubic once, on the engine's thread: this took half a minute."""
    segment = Segment(name="u", tokens=(1,) * 2000, gaps=tuple((row, 1) for row in range(1, 2000)))
    spans = [Span(start=2 * row, tokens=(1,), segment=segment, row=row) for row in range(2000)]
    assert segment.positions == [2 * row for row in range(2000)]
    assert Plan(spans=(*spans, Span(start=4000, tokens=(2,)))).is_exact
    moved = [Span(start=2 * row + (row > 1000), tokens=(1,), segment=segment, row=row) for row in range(2000)]
    assert not Plan(spans=(*moved, Span(start=4001, tokens=(2,)))).is_exact
