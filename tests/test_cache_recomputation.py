"""Selective recomputation against the oracle: recomputed rows see everything before them, the rest stays as it was."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from recording import Recorder, answer, running
from test_cache_engine import QUESTION, SYSTEM, A, B, C, placed, plan_of
from tiny import CONFIGS, build, oracle_logits, oracle_rows, stock, written_out_alibi

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.recomputation import EXACT, RowSelection, RowSelector, SelectiveRecomputation, newest, with_recomputed
from cache.engine.request import Completion, Request
from cache.prompt.plan import Plan, Segment, Span

TOLERANCE = 1e-4


def ask(engine: Engine, plan: Plan, share: float = 0.3, tokens: int = 1, **options: Any) -> Completion:
    recomputation = SelectiveRecomputation(share=share, **({"by": options.pop("by")} if "by" in options else {}))
    sampling = Sampling(max_tokens=tokens)
    return engine.submit(Request(plan=plan, recomputation=recomputation, sampling=sampling, **options)).completion


@pytest.mark.parametrize("family", list(CONFIGS))
def test_scattered_rows_equal_one_forward_with_the_block_mask(family):
    model = build(family)
    recorder = Recorder(model)
    plan = placed(family, SYSTEM, B, C, A, QUESTION)
    rng = random.Random(family)
    some = {i: rng.sample(range(len(plan.spans[i].tokens)), 7) for i in (2, 3)}
    recomputed_plan = with_recomputed(plan, some)
    with running(model) as engine:
        for one in (recomputed_plan, plan, recomputed_plan):
            answer(engine, one)
    hf = stock(family)
    for logits, one in zip(recorder.logits, (recomputed_plan, plan, recomputed_plan), strict=True):
        assert (logits - oracle_logits(hf, one)).abs().max() < TOLERANCE
    assert (recorder.logits[0] - recorder.logits[1]).abs().max() > 10 * TOLERANCE


@pytest.mark.parametrize("options", [{}, {"by": "random"}], ids=str)
def test_every_policy_equals_its_own_plan(options):
    """Whatever rows a policy picks, the answer is the oracle's for these rows; it says how many and that it is not
    exact.
    """
    model = build(layers=3)
    recorder = Recorder(model)
    plans: list[Plan] = []
    with running(model) as engine:
        plan = placed("llama", SYSTEM, A, B, C, QUESTION)
        answer(engine, plan)
        row_selector = engine._core.row_selector
        original = row_selector.finish
        row_selector.finish = lambda *given: plans.append(original(*given)) or plans[-1]  # type: ignore[method-assign, func-returns-value]
        completion = ask(engine, plan, **options)
    assert (recorder.logits[-1] - oracle_logits(stock(layers=3), plans[0])).abs().max() < TOLERANCE
    documents = sum(len(segment.tokens) for segment in (A, B, C))
    assert completion.usage.recomputed == round(0.3 * documents)
    assert not completion.exact


@pytest.mark.parametrize("family", ["llama", "bloom", "gpt2"])
def test_everything_computed_again_is_full_attention(family):
    model = build(family, layers=3)
    recorder = Recorder(model)
    plan = placed(family, SYSTEM, A, B, QUESTION)
    with running(model) as engine:
        exact = engine.submit(Request(plan=plan, recomputation=EXACT, sampling=Sampling(max_tokens=1))).completion
        entry = {r.header.name for r in engine.store.device.entries.values()}
        full = engine.submit(Request(plan=plan, reuse="off", sampling=Sampling(max_tokens=1))).completion
    assert (recorder.logits[0] - recorder.logits[-1]).abs().max() < TOLERANCE
    assert exact.exact
    assert full.exact
    assert entry == {"system", "a"}, "what will be computed anyway is not encoded first"
    assert exact.usage.recomputed == len(B.tokens)
    assert exact.modules[-1].miss_reason == "bypassed"


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_what_the_question_looks_at_is_the_attention_of_the_oracle(family):
    model = build(family, layers=3)
    plan = placed(family, SYSTEM, A, B, C, B, QUESTION)
    seen: dict[int, torch.Tensor] = {}
    with running(model) as engine:
        answer(engine, plan)
        row_selector = engine._core.row_selector
        original = row_selector.finish

        def finish(selection: RowSelection, session: str | None, scores: Sequence[torch.Tensor] = ()) -> Plan:
            seen.update(zip(selection.candidates, scores, strict=True))
            return original(selection, session, scores)

        row_selector.finish = finish  # type: ignore[method-assign]
        completion = ask(engine, plan, 0.2)
    assert completion.usage.recomputed > 0
    rows = oracle_rows(plan)
    hf = stock(family, layers=3)
    hf.set_attn_implementation("eager")
    positions = torch.tensor([rows.positions])
    mask = torch.zeros(rows.allowed.shape).masked_fill(~rows.allowed, -1e30)[None, None]
    if family == "bloom":
        mask = written_out_alibi(hf, positions - positions.min(), rows.allowed[None, None])
    given = {} if family == "bloom" else {"position_ids": positions}
    with torch.no_grad():
        out = hf(input_ids=torch.tensor([rows.tokens]), attention_mask=mask, output_attentions=True, **given)
    length = len(QUESTION.encode())
    weights = out.attentions[1][0].mean(0)[-length:]  # of three layers, only the second is scored
    at = 0
    for index, span in enumerate(plan.spans[:-1]):
        segment = span.segment
        assert segment is not None
        first = at + sum(len(part.tokens) for part in list(segment.with_ancestors())[:-1])
        at = first + len(segment.tokens)
        if index in seen:
            assert torch.allclose(seen[index], weights[:, first:at].norm(dim=0), atol=1e-4)
    assert set(seen) == {2, 3, 4}


def test_the_next_turn_finds_the_rows_of_this_one():
    first = placed("llama", SYSTEM, A, B, QUESTION)
    model = build(layers=3)
    with running(model) as engine:
        engine.encode([C]).result()
        said = ask(engine, first, tokens=4, session="s")
        assert said.tokens
        past = (*QUESTION.encode(), *said.tokens)
        at = first.spans[-1].start
        new = Span(start=at + len(past), tokens=C.tokens, segment=C)
        asked = Span(start=new.end, tokens=tuple(b"And the price?"))
        spans = (*first.spans[:-1], Span(start=at, tokens=past), new, asked)
        for session, is_same in (("s", True), (None, False)):
            turn = ask(engine, Plan(spans=spans), session=session)
            fresh = len(asked.tokens) + round(0.3 * len(C.tokens)) + 1  # the last token of an answer has no row yet
            assert (turn.usage.computed <= fresh) == is_same
            if is_same:
                assert turn.usage.session > 0
                assert turn.usage.recomputed == round(0.3 * (len(A.tokens) + len(B.tokens))) + round(
                    0.3 * len(C.tokens)
                )


def test_a_turn_without_new_modules_keeps_the_rows_of_the_one_before():
    """Was wrong once: rows of earlier modules were chosen anew, and nothing of the conversation was found."""
    first = placed("llama", SYSTEM, A, B, QUESTION)
    with running(build(layers=3)) as engine:
        said = ask(engine, first, tokens=4, session="s")
        assert said.tokens
        at, asked = first.spans[-1].start, tuple(b"And what of gift cards, are they like that?")
        spans = (*first.spans[:-1], Span(start=at, tokens=(*QUESTION.encode(), *said.tokens, *asked)))
        turn = ask(engine, Plan(spans=spans), session="s")
    assert turn.usage.computed <= len(asked) + 1  # the last token of an answer has no row yet
    assert turn.usage.recomputed == said.usage.recomputed


def test_the_newest_modules_are_those_before_the_question():
    plan = plan_of(SYSTEM, A, "First?", B, C, "Second?")
    assert newest(plan) == [3, 4]
    assert newest(plan_of(SYSTEM, "First?")) == []
    assert newest(plan_of("First?")) == []


def test_chance_is_the_same_every_time_and_keeps_to_its_budget():
    plan = plan_of(SYSTEM, A, B, C, QUESTION)

    recomputation = SelectiveRecomputation(share=0.25, by="random")
    selections = [RowSelector().begin(plan, recomputation, None) for _ in range(2)]
    assert not any(selection.needs_scores for selection in selections), "chance needs no look"
    one, other = (RowSelector().finish(selection, None) for selection in selections)
    assert one == other
    supplied = sum(len(span.tokens) for span in one.spans if span.segment is not None)
    documents = sum(len(segment.tokens) for segment in (A, B, C))
    assert plan.num_tokens - supplied - len(plan.spans[-1].tokens) == round(0.25 * documents)


def test_a_selection_that_is_remembered_holds_no_module():
    """Was wrong once: 10,000 of them held the tokens of as many modules, 25 KB each."""
    selector, plan = RowSelector(), plan_of(SYSTEM, A, B, C, QUESTION)
    chosen = SelectiveRecomputation(share=0.25, by="random")
    first = selector.finish(selector.begin(plan, chosen, "s"), "s")
    assert len(selector._selected) == 2, "the first module is exact where it stands"
    assert not any(isinstance(part, Segment) for key in selector._selected for part in key)
    assert selector.finish(selector.begin(plan, chosen, "s"), "s") == first


@pytest.mark.parametrize("reuse", ["on", "off"])
def test_an_answer_that_is_given_is_read_with_its_logits(reuse):
    plan = plan_of(SYSTEM, A, QUESTION)
    teacher_forced = tuple(b"Yes, within 30 days.")
    model = build(layers=3)
    with running(model) as engine:
        request = Request(plan=plan, teacher_forced=teacher_forced, reuse=reuse)  # type: ignore[arg-type]
        completion = engine.submit(request).completion
        again = engine.submit(request).completion
    tokens = [token for span in plan.spans for token in span.tokens]
    with torch.no_grad():
        logits = stock(layers=3)(input_ids=torch.tensor([[*tokens, *teacher_forced[:-1]]])).logits[0, len(tokens) - 1 :]
    for one in (completion, again):
        assert one.logits is not None
        assert (one.logits - logits).abs().max() < TOLERANCE
        assert one.finish_reason == "scored"
        assert one.text == ""
        assert one.usage.prompt_tokens == plan.num_tokens
