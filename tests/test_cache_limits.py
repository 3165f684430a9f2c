"""How much the engine takes on: who is refused, and what takes too long. The engine's own steps, one at a time."""

import time

import pytest
from test_cache_priority import ask, run
from tiny import build

from cache.attention.forward_pass import never
from cache.engine.engine_core import EngineCore
from cache.engine.request import Generation, Limits, Request
from cache.engine.scheduler import LEAST_ROWS
from cache.engine.waiting import Waiting
from cache.errors import EngineFull
from cache.memory.arena import Arena
from cache.memory.store import Store
from cache.prompt.plan import Plan, Span


def limited(limits: Limits, slots: int = 2000) -> EngineCore:
    model = build()
    store = Store(Arena(model.info.kv, slots, model.device), model.info.fingerprint)
    return EngineCore(model, store, never, limits)


def ask_long(core: EngineCore) -> Generation:
    core.store.compute_cost.mean = 1.0  # so slow that they are as short as they get
    generation = Generation()
    plan = Plan(spans=(Span(start=0, tokens=tuple(b"x" * 4 * LEAST_ROWS)),))
    core.inbox.append(Waiting(Request(plan=plan), generation, time.perf_counter()))
    return generation


def test_one_more_than_may_run_and_wait_is_refused() -> None:
    core = limited(Limits(running=2, waiting=1))
    generations = [ask(core) for _ in range(4)]
    core.step()
    assert core.load == (2, 1)
    with pytest.raises(EngineFull, match="the desk is busy"):
        _ = generations[3].completion
    run(core)
    assert all(one.completion.usage.completion_tokens > 0 for one in generations[:3])


def test_an_answer_that_takes_too_long_ends_with_what_there_is() -> None:
    core = limited(Limits(seconds=60))
    late, soon = ask(core, tokens=200), ask(core, tokens=3)
    for _ in range(3):
        core.step()
    core._running[0].admitted.submitted -= 61
    run(core)
    assert late.completion.finish_reason == "timeout"
    assert 0 < late.completion.usage.completion_tokens < 10
    assert soon.completion.finish_reason == "length"
    core.store.check_integrity()


def test_a_question_that_waits_too_long_is_refused() -> None:
    core = limited(Limits(running=1, seconds=60))
    first, waiting = ask(core, tokens=200), ask(core)
    core.step()
    core._waiting[0].submitted -= 61
    core.step()
    with pytest.raises(EngineFull, match="has waited 60 s"):
        _ = waiting.completion
    assert not first.is_over


def test_an_answer_without_a_word_yet_is_refused_like_one_that_waits() -> None:
    """Was wrong once: it ended as an empty answer."""
    core = limited(Limits(seconds=60))
    late = ask_long(core)
    core.step()
    assert not core._running[0].answer
    core._running[0].admitted.submitted -= 61
    run(core)
    with pytest.raises(EngineFull, match="has waited 60 s"):
        _ = late.completion
    core.store.check_integrity()


def test_a_request_that_gave_its_memory_back_before_its_first_word_is_refused() -> None:
    """Was wrong once: it ended as an empty answer."""
    core = limited(Limits(seconds=60))
    first, late = ask(core, tokens=200), ask_long(core)
    core.step()
    core._pause_for(core._running[0])
    (paused,) = core._paused.values()
    assert not paused.answer
    paused.admitted.submitted -= 61
    core.step()
    with pytest.raises(EngineFull, match="has waited 60 s"):
        _ = late.completion
    assert not core._paused
    first.cancel()
    run(core)
    core.store.check_integrity()


def test_without_a_limit_nothing_is_too_late() -> None:
    core = limited(Limits())
    generation = ask(core, tokens=2, waited=1e6)
    run(core)
    assert generation.completion.finish_reason == "length"
