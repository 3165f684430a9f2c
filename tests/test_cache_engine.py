"""The engine against the oracle: one full forward pass with the same block mask and position ids."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from recording import Recorder, answer, running
from tiny import CONFIGS, KERNELS, LEARNED_POSITIONS, build, make_segment, oracle_logits, stock

from cache.decoding.sampling import Sampling
from cache.engine.request import Request
from cache.prompt.plan import Plan, Segment, Span

TOLERANCE = 1e-4


def plan_of(*parts: Segment | str) -> Plan:
    spans, at = [], 0
    for part in parts:
        tokens = tuple(part.encode()) if isinstance(part, str) else part.tokens
        spans.append(Span(start=at, tokens=tokens, segment=None if isinstance(part, str) else part))
        at += len(tokens)
    return Plan(spans=tuple(spans))


SYSTEM = make_segment("system", "You answer from the documents. ")
A = make_segment("a", "Returns take 30 days from delivery.", SYSTEM)
B = make_segment("b", "Gift cards cannot be returned at all, sorry.", SYSTEM)
C = make_segment("c", "Shipping costs 4.95.", SYSTEM)
QUESTION = "Can I return a gift card?"


def where_it_stands(family: str, plan: Plan) -> Plan:
    """Models with learned positions encode every segment where it stands."""
    if family not in LEARNED_POSITIONS:
        return plan
    spans = [s if s.segment is None else replace(s, segment=replace(s.segment, start=s.start)) for s in plan.spans]
    return Plan(spans=tuple(spans))


def placed(family: str, *parts: Segment | str) -> Plan:
    return where_it_stands(family, plan_of(*parts))


@pytest.mark.parametrize(
    ("family", "kernel"), [*((family, "flash_cpu") for family in CONFIGS), ("llama", "matmul"), ("bloom", "matmul")]
)
def test_placed_modules_equal_one_forward_with_the_block_mask(family, kernel):
    model = build(family, kernel=KERNELS[kernel])
    recorder = Recorder(model)
    plan = placed(family, SYSTEM, B, C, A, QUESTION)
    with running(model) as engine:
        first = answer(engine, plan)
        second = answer(engine, plan)
    expected = oracle_logits(stock(family), plan)
    for logits in (recorder.logits[0], recorder.logits[-1]):
        assert (logits - expected).abs().max() < TOLERANCE
    assert first.usage.computed == plan.num_tokens
    assert second.usage.module == sum(len(segment.tokens) for segment in (SYSTEM, A, B, C))


@pytest.mark.parametrize("family", ["llama", "bloom", "mpt", "gpt2"])
def test_the_same_passage_at_two_places(family):
    model = build(family)
    recorder = Recorder(model)
    plan = placed(family, SYSTEM, A, B, A, QUESTION)
    with running(model) as engine:
        answer(engine, plan)
    assert (recorder.logits[-1] - oracle_logits(stock(family), plan)).abs().max() < TOLERANCE


@pytest.mark.parametrize("ends_loops", [False, True])
def test_an_answer_that_repeats_itself_ends_only_where_that_was_asked_for(ends_loops):
    """Was wrong once: whatever was said twice in a row ended, a list of zeros or a table too."""
    model, line = build(), itertools.cycle(b"0,0,0,0,0,0,0\n")
    forward = model.forward

    def repeating(*given: Any) -> Any:
        logits = forward(*given).zero_()
        logits[:, next(line)] = 1.0
        return logits

    model.forward = repeating  # type: ignore[method-assign]
    with running(model) as engine:
        sampling = Sampling(max_tokens=60, ends_loops=ends_loops)
        generation = engine.submit(Request(plan=plan_of("Zeros, please."), sampling=sampling))
        pieces, completion = list(generation), generation.completion
    assert "".join(pieces) == completion.text, "nothing is taken back"
    assert completion.finish_reason == ("repeated" if ends_loops else "length")
    assert completion.usage.completion_tokens == (3 * 14 if ends_loops else 60)


def test_a_second_turn_computes_only_what_is_new():
    model = build()
    recorder = Recorder(model)
    with running(model) as engine:
        first_plan = placed("llama", SYSTEM, A, QUESTION)
        first = answer(engine, first_plan, 12, session="s")
        assert first.tokens is not None
        spans = (
            *first_plan.spans[:-1],
            Span(start=first_plan.spans[-1].start, tokens=(*QUESTION.encode(), *first.tokens)),
        )
        at = spans[-1].end
        spans = (*spans, Span(start=at, tokens=B.tokens, segment=B))
        spans = (*spans, Span(start=spans[-1].end, tokens=tuple(b"And gift cards?")))
        plan = Plan(spans=spans)
        second = answer(engine, plan, session="s")
    fed = len(QUESTION) + len(first.tokens) - 1  # the last sampled token was never fed
    assert second.usage.session == fed
    assert second.usage.prefix == 0
    assert second.usage.computed == 1 + len("And gift cards?") + len(B.tokens)
    assert (recorder.logits[-1] - oracle_logits(stock(), plan)).abs().max() < TOLERANCE


def test_prefix_reuse_is_exact_and_cut_at_any_token():
    model = build()
    recorder = Recorder(model)
    texts = ["The same long beginning, then this.", "The same long beginning, then that!", "The same short one"]
    with running(model) as engine:
        completions = [answer(engine, plan_of(text), reuse="prefix") for text in texts]
    assert [c.usage.prefix for c in completions] == [0, len("The same long beginning, then th"), len("The same ")]
    assert all(c.exact for c in completions)
    for text, logits in zip(texts, recorder.logits, strict=True):
        assert (logits - oracle_logits(stock(), plan_of(text))).abs().max() < TOLERANCE


def test_with_reuse_off_everything_is_computed_and_nothing_kept():
    plan = placed("llama", SYSTEM, A, QUESTION)
    with running(build()) as engine:
        for _ in range(2):
            completion = answer(engine, plan, reuse="off")
            assert completion.usage.computed == completion.usage.prompt_tokens == plan.num_tokens
            assert {use.miss_reason for use in completion.modules} == {"bypassed"}
            assert completion.exact
        assert engine.call(lambda store: store.device.allocator.free_slots == store.device.allocator.capacity)


def test_cancelling_frees_the_rows_and_keeps_the_prefix():
    with running(build()) as engine:
        generation = engine.submit(Request(plan=plan_of(SYSTEM, A, QUESTION), sampling=Sampling(max_tokens=3000)))
        next(iter(generation))
        generation.cancel()
        assert generation.completion.finish_reason == "cancelled"
        assert 0 < generation.completion.usage.completion_tokens < 3000
        again = answer(engine, plan_of(SYSTEM, A, QUESTION))
        assert again.usage.computed == 1


def test_prefixes_that_saved_most_are_named_first():
    common, rare = "A long beginning that three prompts share. ", "Brief. "
    with running(build()) as engine:
        assert engine.call(lambda store: store.prefix_uses(5)) == []
        for text in ("one", "two", "three"):
            answer(engine, plan_of(common + text), reuse="prefix")
        for text in ("x", "y"):
            answer(engine, plan_of(rare + text), reuse="prefix")
        first, second, *_ = engine.call(lambda store: store.prefix_uses(5))
        assert engine.call(lambda store: len(store.prefix_uses(1))) == 1
    assert bytes(first.tokens).decode() == common
    assert (first.num_tokens, first.hits, first.saved) == (len(common), 2, 2 * len(common))
    assert bytes(second.tokens).decode() == rare
    assert (second.hits, second.saved) == (1, len(rare))


def test_tenants_share_modules_and_nothing_that_was_computed():
    plan = plan_of(SYSTEM, A, QUESTION)
    with running(build("llama")) as engine:
        usages = [
            engine.submit(
                Request(plan=plan, sampling=Sampling(max_tokens=1), tenant=tenant, module_tenant="public")
            ).completion.usage
            for tenant in ("v-ann", "v-bob", "v-ann")
        ]
    first, stranger, again = usages
    assert first.module == 0, "they were encoded for it"
    assert (stranger.computed, stranger.prefix) == (len(QUESTION), 0)
    assert stranger.module == again.module > 0
    assert again.prefix > 0
