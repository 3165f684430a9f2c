"""What fails, fails what it was done for: passes, samplers, modules and calls that raise, and the engine goes on."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from test_cache_engine import QUESTION, SYSTEM, A, B, C, plan_of
from tiny import build, make_segment

from cache.decoding.sampling import Sampler, Sampling
from cache.engine.engine import Engine
from cache.engine.request import Completion, Generation, Request
from cache.errors import CacheError, CapacityError, PromptError
from cache.memory.store import Store
from cache.prompt.plan import Plan, Segment, Span

POISON = "\x07"
BAD = make_segment("bad", f"This page holds {POISON}.", SYSTEM)


def failing_on(engine: Engine, monkeypatch: pytest.MonkeyPatch, fails: Callable[[list[int]], bool]) -> None:
    forward = engine.model.forward

    def fragile(chunks: Any, *others: Any) -> Any:
        if fails([token for chunk in chunks for token in chunk.tokens]):
            raise RuntimeError("[enforce fail] can't allocate memory: you tried to allocate 1 byte\nstack")
        return forward(chunks, *others)

    monkeypatch.setattr(engine.model, "forward", fragile)


def submit(engine: Engine, plan: Plan) -> Generation:
    return engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=6)))


def still_serves(engine: Engine) -> None:
    assert submit(engine, plan_of(SYSTEM, A, "Still there?")).completion.usage.prompt_tokens > 0
    engine.call(Store.check_integrity)


def test_of_many_requests_in_a_pass_only_the_one_that_fails_ends(engine, monkeypatch):
    expected = [submit(engine, plan_of(SYSTEM, A, f"{n} {QUESTION}")).completion.tokens for n in range(5)]
    failing_on(engine, monkeypatch, lambda tokens: ord(POISON) in tokens)
    asked = [submit(engine, plan_of(SYSTEM, A, f"{n} {QUESTION}")) for n in range(5)]
    poisoned = submit(engine, plan_of(SYSTEM, B, f"What is {POISON}?"))
    assert [one.completion.tokens for one in asked] == expected
    with pytest.raises(CacheError, match=r"^the answer could not be computed: ask again \(the log has the cause\)$"):
        _ = poisoned.completion
    still_serves(engine)


def test_a_pass_that_fails_once_costs_nobody_an_answer(engine, monkeypatch):
    failures = iter([True, False, True])
    failing_on(engine, monkeypatch, lambda tokens: len(tokens) > 120 and next(failures, False))
    with ThreadPoolExecutor(6) as threads:
        done = threads.map(lambda n: submit(engine, plan_of(SYSTEM, A, f"{n} {QUESTION * 3}")).completion, range(6))
    assert all(isinstance(one, Completion) for one in done)
    still_serves(engine)


def test_a_module_that_cannot_be_encoded_fails_what_needs_it(engine, monkeypatch):
    failing_on(engine, monkeypatch, lambda tokens: ord(POISON) in tokens)
    behind_it = make_segment("behind", "More about that.", BAD)
    asked = [submit(engine, plan_of(SYSTEM, BAD, QUESTION)), submit(engine, plan_of(SYSTEM, A, QUESTION))]
    ahead = [engine.encode([B]), engine.encode([behind_it, A])]
    with pytest.raises(CacheError, match=r"^module 'bad' could not be computed: ask again \(the log has the cause\)$"):
        _ = asked[0].completion
    assert asked[1].completion.usage.prompt_tokens > 0
    assert (ahead[0].result(timeout=20).computed, ahead[0].result().failed) == (1, {})
    assert [*ahead[1].result(timeout=20).failed] == [behind_it]
    with pytest.raises(CacheError, match="module 'bad'"):
        ahead[1].result().raise_failed()
    assert engine.call(lambda store: store.has(store.key(A))), "the rest of the batch"
    still_serves(engine)


def test_of_modules_encoded_together_one_that_cannot_be_fails_alone():
    """Was wrong once: one module that was too long ended the whole batch, those before it and behind it alike."""
    model = build()
    engine = Engine(model, memory=400 * model.info.kv.bytes_per_token).start()
    beyond, large = make_segment("beyond", "x" * 5000), make_segment("large", "y" * 500)
    behind_large = make_segment("behind", "More about that.", large)
    strange = Segment(name="strange", tokens=(1, 300))
    result = engine.encode([A, beyond, large, strange, B, behind_large, C]).result(timeout=20)
    assert result.computed == 3
    assert {segment.name: type(error) for segment, error in result.failed.items()} == {
        "beyond": PromptError,
        "strange": PromptError,
        "large": CapacityError,
        "behind": CapacityError,
    }
    still_serves(engine)
    engine.close()


def test_a_sampler_that_raises_ends_its_own_answer(engine, monkeypatch):
    draw = Sampler.draw

    def fragile(self: Sampler) -> float:
        if self.sampling.max_tokens == 7:
            raise ValueError("probability tensor contains inf")
        return draw(self)

    monkeypatch.setattr(Sampler, "draw", fragile)
    bad = engine.submit(Request(plan=plan_of(SYSTEM, A, QUESTION), sampling=Sampling(max_tokens=7, temperature=1.0)))
    good = submit(engine, plan_of(SYSTEM, A, QUESTION))
    with pytest.raises(CacheError, match=r"^the answer could not be computed: ask again"):
        _ = bad.completion
    assert good.completion.usage.completion_tokens > 0
    still_serves(engine)


@pytest.mark.parametrize("token", [-1, 300])
def test_tokens_the_model_does_not_have_are_refused(token, engine):
    """Such as those of an answer that another model gave: compiled code would read beside its memory."""
    strange = Plan(spans=(Span(start=0, tokens=(1, token, 2)),))
    with pytest.raises(PromptError, match=f"the prompt contains token {token}, but the model has only 300"):
        _ = submit(engine, strange).completion
    forced = Request(plan=plan_of(SYSTEM, QUESTION), teacher_forced=(1, token))
    with pytest.raises(PromptError, match=f"token {token}"):
        _ = engine.submit(forced).completion
    still_serves(engine)


def test_forgetting_that_raises_reaches_who_asked(engine, monkeypatch):
    def fails(keys: frozenset[str]) -> int:
        raise LookupError("no such document")

    monkeypatch.setattr(engine.store, "forget", fails)

    with pytest.raises(LookupError, match="no such document"):
        engine.forget(frozenset())
    still_serves(engine)
