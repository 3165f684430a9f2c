"""Segments with a left context, and the three placements, against the oracle: one full forward pass with the same block
mask.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from recording import MEMORY, Recorder, answer, running
from test_cache_engine import QUESTION, SYSTEM, A, B, plan_of, where_it_stands
from tiny import CONFIGS, ByteTokenizer, build, make_segment, oracle_logits, oracle_rows, stock

from cache.engine.engine import Engine
from cache.engine.recomputation import with_recomputed
from cache.errors import PromptError
from cache.memory.disk import DiskTier
from cache.memory.store import Store
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Plan, Segment, Span
from cache.prompt.tokenizer import CachingTokenizer

TOLERANCE = 1e-4
FAR = 10 * TOLERANCE
NEAR_TEXT = "Gift vouchers are another matter. "


def with_left_context(segment: Segment, left_context: str = NEAR_TEXT) -> Segment:
    tokens = tuple(left_context.encode())
    return replace(segment, start=segment.start + len(tokens), left_context=tokens)


LED = with_left_context(A)
ALONE = with_left_context(make_segment("alone", "Returns take 30 days from delivery."))
BEHIND_LED = Segment(name="behind", tokens=tuple(b"See above."), start=LED.end, prefix=LED)


@pytest.mark.parametrize("family", list(CONFIGS))
def test_a_segment_with_a_left_context_equals_one_forward_with_the_block_mask(family):
    model = build(family)
    recorder = Recorder(model)
    plan = where_it_stands(family, plan_of("Good afternoon to you, dear reader. ", SYSTEM, LED, B, ALONE, QUESTION))
    with running(model) as engine:
        first, second = answer(engine, plan), answer(engine, plan)
        engine.call(Store.check_integrity)
    expected = oracle_logits(stock(family), plan)
    for logits in (recorder.logits[0], recorder.logits[-1]):
        assert (logits - expected).abs().max() < TOLERANCE
    assert first.usage.prompt_tokens == first.usage.computed == plan.num_tokens
    assert second.usage.module == sum(len(segment.tokens) for segment in (SYSTEM, LED, B, ALONE))
    assert not second.exact


def test_a_left_context_changes_what_is_computed_and_is_not_kept():
    model = build()
    recorder = Recorder(model)
    with running(model) as engine:
        for segment in (A, LED):
            answer(engine, plan_of(SYSTEM, segment, QUESTION), reuse="on")
        kept = {r.header.name: (r.extent.length, r.header.start) for r in engine.store.device.entries.values()}
        assert engine.call(lambda store: len(store.device.entries)) == 3
        used = engine.call(lambda store: store.device.allocator.capacity - store.device.allocator.free_slots)
    assert (recorder.logits[0] - recorder.logits[-1]).abs().max() > FAR
    assert kept["a"] == (len(A.tokens), LED.start)
    question_rows = 2 * len(QUESTION.encode())
    assert used == len(SYSTEM.tokens) + 2 * len(A.tokens) + question_rows, "rows of the left context were given back"


@pytest.mark.parametrize("shift", [0, 1000])
def test_a_segment_with_a_left_context_may_stand_anywhere(shift):
    model = build()
    recorder = Recorder(model)
    spans = [Span(start=shift, tokens=LED.tokens, segment=LED), Span(start=shift + len(LED.tokens), tokens=(1, 2, 3))]
    plan = Plan(spans=tuple(spans))
    with running(model) as engine:
        answer(engine, plan)
    assert (recorder.logits[-1] - oracle_logits(stock(), plan)).abs().max() < TOLERANCE


def test_behind_a_segment_with_a_left_context_only_its_own_rows_are_seen():
    """A prefix's left context was read by the prefix, not by what stands behind it."""
    model = build()
    recorder = Recorder(model)
    plan = plan_of(SYSTEM, LED, BEHIND_LED, QUESTION)
    with running(model) as engine:
        answer(engine, plan)
        answer(engine, plan)
    for logits in recorder.logits:
        assert (logits - oracle_logits(stock(), plan)).abs().max() < TOLERANCE


def test_encoding_ahead_of_use_reads_left_contexts_and_says_when_they_are_too_long():
    model = build()
    with running(model) as engine:
        assert engine.encode([SYSTEM, LED, A]).result(timeout=60).computed == 3
        completion = answer(engine, plan_of(SYSTEM, LED, QUESTION))
        assert {use.source for use in completion.modules} == {"device"}
        long = with_left_context(A, "x" * model.info.max_positions)
        with pytest.raises(PromptError, match="ends beyond the model's"):
            engine.encode([long]).result(timeout=60).raise_failed()


def test_a_left_context_needs_ids_before_the_segment():
    with pytest.raises(ValueError, match="only 2 position ids before it, but 3 tokens of left context"):
        Segment(name="u", tokens=(1,), start=2, left_context=(7, 8, 9))
    assert list(Segment(name="u", tokens=(1,), start=5, left_context=(7, 8, 9)).left_context_positions) == [2, 3, 4]


def exact(*parts: Segment | str) -> bool:
    return plan_of(*parts).is_exact


def test_exact_only_where_prefix_and_left_context_stand_before_it():
    assert exact(SYSTEM, NEAR_TEXT, LED, QUESTION), "the left context's own tokens are in the prompt"
    assert exact(SYSTEM, make_segment("near", NEAR_TEXT, SYSTEM), LED, QUESTION), "as a module"
    assert not exact(SYSTEM, LED, QUESTION), "the left context is missing"
    assert not exact(SYSTEM, NEAR_TEXT.upper(), LED, QUESTION)
    assert not exact(SYSTEM, NEAR_TEXT, A, QUESTION), "encoded without what stands there"
    assert not exact(NEAR_TEXT, LED, QUESTION), "the prefix is missing"
    assert exact(NEAR_TEXT, ALONE, QUESTION)
    assert not exact(SYSTEM, NEAR_TEXT, LED, BEHIND_LED, QUESTION), "it has not seen its prefix's left context"
    behind_alone = Segment(name="behind", tokens=tuple(b"See above."), start=ALONE.end, prefix=ALONE)
    assert not exact(bytes(ALONE.tokens).decode(), behind_alone, QUESTION), "its prefix has seen more"
    gap = plan_of(SYSTEM, NEAR_TEXT, LED, QUESTION).spans
    moved = (*gap[:2], *(replace(span, start=span.start + 1) for span in gap[2:]))
    assert not Plan(spans=moved).is_exact


def test_what_counts_as_exact_equals_full_attention():
    model = build()
    recorder = Recorder(model)
    plan = plan_of(SYSTEM, NEAR_TEXT, LED, QUESTION)
    with running(model) as engine:
        assert answer(engine, plan).exact
        answer(engine, plan, reuse="off")
    assert (recorder.logits[0] - recorder.logits[-1]).abs().max() < TOLERANCE


def test_a_miss_because_of_another_left_context_is_told_as_a_changed_document(tmp_path):
    with running(build(), disk=DiskTier(tmp_path, 1 << 30)) as engine:
        answer(engine, plan_of(SYSTEM, LED, QUESTION))
        (use,) = answer(engine, plan_of(SYSTEM, with_left_context(A, NEAR_TEXT.upper()), QUESTION)).modules[1:]
    assert (use.source, use.miss_reason) == ("computed", "document changed")


def text(value: str) -> Text:
    return Text(text=value)


SYSTEM_MODULE = TextModule(name="system", pieces=(text("You answer from the documents. "),))
NEAR = TextModule(name="near", pieces=(text(NEAR_TEXT),))
FIRST = TextModule(name="first", pieces=(text("Returns take 30 days."),), after=SYSTEM_MODULE, left_context=(NEAR,))
SECOND = TextModule(name="second", pieces=(text("Gift cards cannot be returned at all, sorry."),), after=SYSTEM_MODULE)
THIRD = TextModule(name="third", pieces=(text("Shipping is 4.95."),), after=SYSTEM_MODULE)
TURNS = (SYSTEM_MODULE, FIRST, SECOND, text("Can I return it?"), THIRD, FIRST, text("And then?"))


@pytest.mark.parametrize("placement", ["slotted", "shared"])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_every_placement_equals_one_forward_with_the_block_mask(family, placement):
    model = build(family)
    recorder = Recorder(model)
    turns = [part for i, part in enumerate(TURNS) if i != 5]
    with running(model) as engine:
        plan = engine.arrange(turns, placement, 64)
        answer(engine, plan)
        second = answer(engine, plan)
        off = answer(engine, plan, reuse="off")
    hf = stock(family)
    expected = oracle_logits(hf, plan)
    assert (recorder.logits[0] - expected).abs().max() < TOLERANCE
    assert (recorder.logits[1] - expected).abs().max() < TOLERANCE
    assert (recorder.logits[-1] - oracle_logits(stock(family), plan.without_segments())).abs().max() < TOLERANCE
    assert {use.source for use in second.modules} == {"device"}
    assert off.exact


@pytest.mark.parametrize("placement", ["slotted", "shared"])
def test_rows_computed_again_are_right_in_every_placement(placement):
    model = build()
    recorder = Recorder(model)
    with running(model) as engine:
        plan = with_recomputed(engine.arrange(TURNS[:4], placement, 64), {1: {0, 3}, 2: {1, 2, 20}})
        answer(engine, plan)
    assert (recorder.logits[-1] - oracle_logits(stock(), plan)).abs().max() < TOLERANCE


@pytest.mark.parametrize("placement", ["slotted", "shared"])
def test_a_second_turn_goes_on_from_the_first_in_every_placement(placement):
    model = build()
    recorder = Recorder(model)
    with running(model) as engine:
        answer(engine, engine.arrange(TURNS[:4], placement, 64), session="s")
        plan = engine.arrange([part for i, part in enumerate(TURNS) if i != 5], placement, 64)
        engine.encode(plan.segments()).result(timeout=60)
        second = answer(engine, plan, session="s")
    assert second.usage.session == len("Can I return it?")
    assert second.usage.computed == len("And then?")
    assert (recorder.logits[-1] - oracle_logits(stock(), plan)).abs().max() < TOLERANCE


def test_an_engine_arranges_as_it_was_told():
    slotted = Engine(build(), memory=MEMORY, placement="slotted", slot=50)
    assert slotted.arrange(TURNS[:4]) == slotted.arrange(TURNS[:4], "slotted", 50)
    at = len("You answer from the documents. ")
    assert [span.start for span in slotted.arrange(TURNS[:4], slot=60).spans[:3]] == [0, at, at + 60]
    assert [span.start for span in slotted.arrange(TURNS[:4]).spans[:3]] == [0, at, at + 50]
    assert slotted.arrange(TURNS[:4], "contiguous") == Engine(build(), memory=MEMORY).arrange(TURNS[:4])
    windowed = Engine(build("mistral-window"), memory=MEMORY, placement="shared")
    assert windowed.arrange(TURNS[:4]) == windowed.arrange(TURNS[:4], "contiguous"), "it computes everything"


def test_tokens_are_remembered_until_something_is_forgotten():
    model = build()
    asked: list[str] = []
    encode = model.tokenizer.encode

    def counting(run: list[Text]) -> list[int]:
        asked.append("".join(piece.text for piece in run))
        return encode(run)

    model.tokenizer.encode = counting  # type: ignore[method-assign, assignment]
    with running(model) as engine:
        plans = [engine.arrange(TURNS[:4]) for _ in range(2)]
        assert plans[0] == plans[1]
        assert asked.count(NEAR_TEXT) == 1
        engine.forget(frozenset())
        engine.arrange(TURNS[:4])
        assert asked.count(NEAR_TEXT) == 2


def test_a_remembering_tokenizer_gives_what_the_one_beneath_gives():
    tokenizer = CachingTokenizer(ByteTokenizer(), runs=2, longest=100)
    for value in ("a", "b", "c", "a", "a"):
        given = tokenizer.encode([text(value)])
        assert given == list(value.encode())
        given.append(0)
    assert tokenizer.encode([Text(text="<a>", structural=True)]) == [256]
    assert tokenizer.encode([text("<a>")]) == list(b"<a>")


def test_a_remembering_tokenizer_does_not_remember_long_texts():
    """Was wrong once: a thousand bodies of a megabyte would have been kept, 11 MB each."""
    asked: list[str] = []

    class Counting(ByteTokenizer):
        def encode(self, run: Sequence[Text]) -> list[int]:
            asked.append("".join(piece.text for piece in run))
            return super().encode(run)

    tokenizer = CachingTokenizer(Counting(), runs=2, longest=4)
    for value in ("four", "longer", "four", "longer"):
        assert tokenizer.encode([text(value)]) == list(value.encode())
    assert asked == ["four", "longer", "longer"]


def test_the_oracle_hides_a_left_context_from_everybody_else():
    """The oracle itself, by hand: who sees the rows of a left context."""
    plan = plan_of(SYSTEM, LED, BEHIND_LED, "?")
    rows = oracle_rows(plan)
    left_context = [
        i for i in range(len(rows.tokens)) if tuple(rows.tokens[i : i + 5]) == LED.left_context[:5]
    ]  # of LED itself, and of its copy before BEHIND_LED
    assert len(left_context) == 2
    for start in left_context:
        seen_by = rows.allowed[:, start].nonzero().flatten().tolist()
        assert seen_by == list(range(start, start + len(LED.left_context) + len(LED.tokens)))
