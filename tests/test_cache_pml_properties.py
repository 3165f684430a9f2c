"""Random schemas and prompts: against a naive second opinion, against themselves, and on the engine against the
block-mask oracle. WARMDESK_EXAMPLES=500 draws so many instead of 12.
"""

import os
from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pml_naive import NaiveLayout, Piece, naive_prompt, prompts, schemas
from recording import Recorder, answer, running
from tiny import ByteTokenizer, build, oracle_logits, stock

from cache.engine.engine import Engine
from cache.errors import PMLError
from cache.pml.binding import Bound, bind, module_segments
from cache.pml.layout import lay_out
from cache.pml.nodes import Import, Prompt, Schema
from cache.pml.parser import parse_prompt, parse_schema, write_prompt, write_schema
from cache.prompt.parts import Text
from cache.prompt.plan import Plan
from cache.prompt.tokenizer import NAMED, Tokenizer, WordTokenizer

ROLES = NAMED["chatml"]
TOLERANCE = 1e-4
EXAMPLES = int(os.environ.get("WARMDESK_EXAMPLES", "12"))
"""Other ones in each run; more of them for whoever changes the rules of PML."""
often = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def tokenizers() -> st.SearchStrategy[Tokenizer]:
    """By bytes or by words (where blank text has no tokens), with and without a sink prefix."""
    return st.builds(WordTokenizer) | st.builds(ByteTokenizer) | st.just(stubbed())


def stubbed() -> ByteTokenizer:
    tokenizer = ByteTokenizer()
    tokenizer.sink_prefix = (257, 258, 259)
    return tokenizer


@st.composite
def questions(draw: st.DrawFn, *, depth: int = 3, gaps: bool = True) -> tuple[Schema, Prompt]:
    schema = draw(schemas(depth))
    return schema, draw(prompts(schema, gaps=gaps))


def exclusive(one: Piece, other: Piece) -> bool:
    chosen = dict(one.choices)
    return any(chosen.get(union, member) != member for union, member in other.choices)


@often
@given(schemas(), tokenizers())
def test_every_item_has_the_place_that_recursion_gives_it(schema, tokenizer):
    layout = lay_out(schema, tokenizer, roles=ROLES)
    naive = NaiveLayout(tokenizer, ROLES)
    assert layout.length == naive.place(schema)
    assert sorted((i.path, i.kind, i.start, i.length) for i in layout.items) == sorted(naive.items)
    assert {placed.path: (placed.start, placed.end) for placed in layout.owners()} == naive.spans
    assert layout.length == max((item.start + item.length for item in layout.items), default=0)


@often
@given(schemas(), tokenizers())
def test_places_do_not_overlap_unless_they_exclude_each_other(schema, tokenizer):
    layout = lay_out(schema, tokenizer, roles=ROLES)
    naive = NaiveLayout(tokenizer, ROLES)
    naive.place(schema)
    for one, other in combinations(naive.pieces, 2):
        apart = one.start + one.length <= other.start or other.start + other.length <= one.start
        assert apart or exclusive(one, other)
    spans = {placed.path: (placed.start, placed.end) for placed in layout.owners()}
    for start, end, members in naive.unions:
        assert {spans[path][0] for path in members} <= {start}
        assert end == max([start, *(spans[path][1] for path in members)])
    for placed in layout.owners():
        assert placed.start <= placed.end
        for child in placed.children.values():
            assert placed.start <= child.start <= child.end <= placed.end
        for piece in placed.pieces():
            assert placed.start <= piece.start < piece.end <= placed.end


@often
@given(questions())
def test_what_is_written_is_read_again(question):
    schema, prompt = question
    text = write_schema(schema)
    assert parse_schema(text) == schema
    assert parse_schema(text.encode()) == schema
    assert write_schema(parse_schema(text)) == text
    assert parse_prompt(write_prompt(prompt)) == prompt


def bound_or_refused(schema: Schema, prompt: Prompt, tokenizer: Tokenizer) -> Bound | None:
    """A prompt at its ids as recursion gives them, or None if it is refused and recursion says it should be."""
    naive = NaiveLayout(tokenizer, ROLES)
    naive.place(schema)
    expected = naive_prompt(schema, naive, prompt)
    layout = lay_out(schema, tokenizer, roles=ROLES)
    if not (expected.fits and expected.tokens):
        with pytest.raises(PMLError, match=r"only \d+ fit" if not expected.fits else "no tokens"):
            bind(prompt, layout)
        return None
    bound = bind(prompt, layout)
    got = {at: token for span in bound.plan.spans for at, token in enumerate(span.tokens, span.start)}
    assert got == expected.tokens
    assert [list(ids) for ids in bound.arguments] == expected.arguments
    assert list(bound.text) == expected.text
    last = max(expected.tokens)
    supplied = {at for s in bound.plan.spans if s.segment is not None for at in range(s.start, s.end)}
    assert supplied == expected.supplied - {last}, "all that is cached, but for the token that is computed anyway"
    return bound


@often
@given(questions(), tokenizers())
def test_a_plan_holds_what_it_should_where_it_should(question, tokenizer):
    schema, prompt = question
    bound = bound_or_refused(schema, prompt, tokenizer)
    if bound is None:
        return
    plan = bound.plan
    ids = [at for span in plan.spans for at in range(span.start, span.end)]
    assert ids == sorted(set(ids)), "ascending and disjoint"
    assert all(span.tokens for span in plan.spans)
    assert plan.spans[-1].segment is None
    assert (plan.num_tokens, plan.next_position) == (len(ids), ids[-1] + 1)
    baseline = plan.without_segments()
    assert [at for span in baseline.spans for at in range(span.start, span.end)] == ids
    assert [token for span in baseline.spans for token in span.tokens] == [t for s in plan.spans for t in s.tokens]
    check_segments(plan, lay_out(schema, tokenizer, roles=ROLES).length)


def check_segments(plan: Plan, length: int) -> None:
    """Every supplied span holds the rows of its segment that it claims, all of a segment moved by one distance."""
    offsets: dict[Any, set[int]] = {}
    rows: set[tuple[Any, int]] = set()
    for span in plan.spans:
        if span.segment is None:
            continue
        end = span.row + len(span.tokens)
        assert span.segment.tokens[span.row : end] == span.tokens
        places = span.segment.positions
        assert len(places) == len(span.segment.tokens)
        assert [place + span.offset for place in places[span.row : end]] == list(range(span.start, span.end))
        offsets.setdefault(span.segment, set()).add(span.offset)
        claimed = {(span.segment, row) for row in range(span.row, end)}
        assert not claimed & rows
        rows |= claimed
        assert all(0 <= place + span.offset < length for place in places)
    assert all(len(distances) == 1 for distances in offsets.values())


@often
@given(st.data(), questions(gaps=False))
def test_order_of_import_changes_nothing(data, question):
    schema, prompt = question
    layout = lay_out(schema, WordTokenizer(), roles=ROLES)

    def shuffled(reference: Import) -> Import:
        turned = tuple(shuffled(child) for child in data.draw(st.permutations(reference.children)))
        arguments = tuple(data.draw(st.permutations(reference.arguments)))
        return Import(module=reference.module, arguments=arguments, children=turned)

    references = [part for part in prompt.parts if isinstance(part, Import)]
    rest = [part for part in prompt.parts if not isinstance(part, Import)]
    turned = tuple(shuffled(reference) for reference in data.draw(st.permutations(references)))
    other = Prompt(schema=prompt.schema, parts=(*turned, *rest))
    if not any(layout.root.pieces()):
        other, prompt = (Prompt(schema="s", parts=(*p.parts, Text(text="?"))) for p in (other, prompt))
    assert bind(prompt, layout) == bind(other, layout)


@often
@given(questions(), tokenizers(), st.booleans())
def test_all_that_a_prompt_uses_can_be_encoded_ahead(question, tokenizer, position_independent):
    schema, prompt = question
    layout = lay_out(schema, tokenizer, roles=ROLES)
    try:
        plan = bind(prompt, layout, position_independent=position_independent).plan
    except PMLError:
        return
    assert set(plan.segments()) <= set(module_segments(layout, position_independent=position_independent))
    for span in plan.spans:
        assert position_independent or span.offset == 0, "encoded where it stands"


class Desk:
    def __init__(self, engine: Engine, recorder: Recorder) -> None:
        self.engine, self.recorder, self.hf = engine, recorder, stock()

    def check(self, plan: Plan) -> None:
        expected, plain = oracle_logits(self.hf, plan), oracle_logits(self.hf, plan.without_segments())
        first, second = answer(self.engine, plan), answer(self.engine, plan)
        baseline = answer(self.engine, plan, reuse="off")
        for logits, wanted in zip(self.recorder.logits, (expected, expected, plain), strict=True):
            assert (logits - wanted).abs().max() < TOLERANCE
        self.recorder.logits.clear()
        if first.exact:
            assert (expected - plain).abs().max() < TOLERANCE
        assert (first.exact, baseline.exact, baseline.usage.computed) == (second.exact, True, plan.num_tokens)
        assert second.usage.module == sum(len(span.tokens) for span in plan.spans if span.segment is not None)


@pytest.fixture(scope="module")
def desk():
    model = build()
    recorder = Recorder(model)
    with running(model) as engine:
        yield Desk(engine, recorder)
        engine.call(lambda store: store.check_integrity())


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(question=questions(depth=2), sink_prefix=st.booleans())
def test_cached_logits_equal_the_block_mask(desk, question, sink_prefix):
    schema, prompt = question
    tokenizer = stubbed() if sink_prefix else ByteTokenizer()
    bound = bound_or_refused(schema, prompt, tokenizer)
    if bound is None:  # a text had no room; there is one at the end
        references = tuple(part for part in prompt.parts if isinstance(part, Import))
        prompt = Prompt(schema=prompt.schema, parts=(*references, Text(text="?")))
        bound = bound_or_refused(schema, prompt, tokenizer)
    assert bound is not None
    if bound.plan.num_tokens <= 400:
        desk.check(bound.plan)
