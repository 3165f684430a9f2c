"""Answers get memory as they grow, and wait for it when it ends: what they say stays the same."""

from typing import Any

import pytest
from test_cache_engine import SYSTEM, A, B, plan_of
from tiny import build

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Generation, Request, Reuse
from cache.engine.running import PAGE, Running
from cache.memory.store import Store

LONG = 3 * PAGE


def engine_of(slots: int) -> Engine:
    model = build(layers=3)
    return Engine(model, memory=slots * model.info.kv.bytes_per_token).start()


def ask(engine: Engine, n: int, reuse: Reuse = "on", max_tokens: int = LONG) -> Generation:
    plan = plan_of(SYSTEM, A if n % 2 else B, f"Question {n}?")
    sampling = Sampling(max_tokens=max_tokens, temperature=1.5, seed=n)  # greedy answers of such models soon repeat
    return engine.submit(Request(plan=plan, sampling=sampling, reuse=reuse, session=str(n)))


@pytest.fixture
def pauses(monkeypatch):
    paused: list[Running] = []
    pause = Running.pause

    def noted(self: Running, store: Store) -> None:
        paused.append(self)
        pause(self, store)

    monkeypatch.setattr(Running, "pause", noted)
    return paused


@pytest.mark.parametrize("reuse", ["on", "off"])
def test_answers_that_wait_for_memory_are_the_same(reuse, pauses):
    engine = engine_of(4000)
    expected = [ask(engine, n, reuse).completion.tokens for n in range(4)]
    engine.close()
    engine = engine_of(400)
    found = [one.completion for one in [ask(engine, n, reuse) for n in range(4)]]
    assert [one.tokens for one in found] == expected
    assert pauses, "the memory was never short"
    assert all(one.usage.prompt_tokens == one.usage.computed + one.usage.cached_tokens for one in found)
    engine.call(Store.check_integrity)
    engine.close()


def test_an_answer_takes_no_more_memory_than_it_has_tokens():
    """Was wrong once: a request had to find room for the longest answer before it began."""
    engine = engine_of(520)
    short = ask(engine, 1, max_tokens=100_000)
    for _ in zip(short, range(8), strict=False):
        pass
    used = engine.call(lambda store: store.device.allocator.capacity - store.device.allocator.free_slots)
    assert used < 520
    short.cancel()
    assert short.completion.finish_reason == "cancelled"
    engine.close()


def test_an_answer_that_fills_all_memory_ends_with_what_it_has(pauses):
    engine = engine_of(300)
    completion = ask(engine, 1, max_tokens=3000).completion
    assert completion.finish_reason == "length"
    assert 20 < len(completion.tokens or ()) < 300
    assert pauses == []
    assert ask(engine, 2, max_tokens=3).completion.usage.completion_tokens == 3
    engine.call(Store.check_integrity)
    engine.close()


def test_a_paused_answer_that_is_cancelled_still_gives_what_it_has(monkeypatch):
    engine, pause = engine_of(520), Running.pause
    paused: list[Running] = []

    def cancel(self: Running, store: Store) -> Any:
        pause(self, store)
        if not paused:
            self.admitted.generation.cancel()
        paused.append(self)

    monkeypatch.setattr(Running, "pause", cancel)
    found = [one.completion for one in [ask(engine, n) for n in range(6)]]
    cancelled = [one for one in found if one.finish_reason == "cancelled"]
    assert len(cancelled) == 1
    assert cancelled[0].usage.completion_tokens == len(paused[0].answer) > 0
    assert cancelled[0].text
    engine.call(Store.check_integrity)
    engine.close()


def test_a_paused_answer_that_cannot_go_on_ends_with_what_it_has(monkeypatch):
    """Was wrong once: it was refused like a new request, and what was paused of it was kept for ever."""
    engine = engine_of(520)

    def broken(self: Running, store: Store, spare: int) -> None:
        raise RuntimeError("a module cannot be placed any more")

    monkeypatch.setattr(Running, "resume", broken)
    found = [one.completion for one in [ask(engine, n) for n in range(6)]]
    assert min(len(one.tokens or ()) for one in found) < LONG
    assert all(one.text for one in found)
    assert engine._core._paused == {}
    engine.call(Store.check_integrity)
    engine.close()
