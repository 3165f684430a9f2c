"""Who is computed first, who does not wait for whom, who is refused: the engine's own steps, one at a time."""

import math
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from test_cache_engine import plan_of
from tiny import build, make_segment

from cache.attention.forward_pass import never
from cache.decoding.sampling import Sampling
from cache.engine import engine_core
from cache.engine.encoder import EncodeJob
from cache.engine.engine import Engine
from cache.engine.engine_core import PATIENCE_S, EngineCore
from cache.engine.request import Encoded, Generation, Limits, Request
from cache.engine.scheduler import LEAST_ROWS
from cache.engine.waiting import Waiting
from cache.errors import EngineFull
from cache.memory.arena import Arena
from cache.memory.disk import DiskTier
from cache.memory.keys import PUBLIC_TENANT
from cache.memory.store import Store
from cache.prompt.plan import Plan, Segment, Span

LONG = 4 * LEAST_ROWS


def a_core(slots: int = 4000, disk: DiskTier | None = None) -> EngineCore:
    model = build()
    return EngineCore(model, Store(Arena(model.info.kv, slots, model.device), model.info.fingerprint, disk), never)


def long_modules(count: int) -> list[Segment]:
    return [make_segment(f"m{i}", f"{i}" + "x" * (LONG - 1)) for i in range(count)]


def encode(core: EngineCore, *segments: Segment) -> Future[Encoded]:
    job = EncodeJob(deque((segment, PUBLIC_TENANT) for segment in segments), Future())
    core.inbox.append(job)
    return job.done


def ask(
    core: EngineCore,
    *segments: Segment,
    tokens: int = 4,
    waited: float = 0.0,
    question: str = "What now?",
    **options: Any,
) -> Generation:
    generation = Generation()
    request = Request(plan=plan_of(*segments, question), sampling=Sampling(max_tokens=tokens), **options)
    core.inbox.append(Waiting(request, generation, time.perf_counter() - waited))
    return generation


def computed(core: EngineCore) -> dict[str, int]:
    return {encoding.segment.name: encoding.sequence.computed for encoding in core._encoder.running.values()}


def run(core: EngineCore) -> None:
    while core.has_work:
        core.step()


def test_a_question_stops_what_is_encoded_for_later_until_it_is_answered():
    core = a_core()
    core.store.compute_cost.mean = 1.0  # so slow that passes are as short as they get
    done = encode(core, *long_modules(4))
    core.step()
    before = computed(core)
    core._ahead_due = math.inf  # however slow the machine is
    assert before == {"m0": LEAST_ROWS, "m1": 0, "m2": 0, "m3": 0}
    generation = ask(core, make_segment("wanted", "y" * LONG))
    steps = 0
    while generation._events.empty() or core._running:
        core.step()
        steps += 1
        assert {name: computed(core)[name] for name in before} == before
    assert steps <= 8
    assert generation.completion.usage.completion_tokens > 0
    run(core)
    assert done.result().computed == 4


def test_a_busy_engine_still_encodes_for_later(monkeypatch):
    """At a desk that always has questions an ingest would never end."""
    monkeypatch.setattr(engine_core, "AHEAD_SHARE", 1)  # the share of the time is no less than asked for
    core = a_core()
    ask(core, tokens=40)
    core.step()
    done = encode(core, *long_modules(2))
    while not done.done():
        core.step()
        assert core._running, "the answer goes on"


def test_a_questions_own_passage_overtakes_those_before_it():
    core = a_core()
    modules = long_modules(6)
    done = encode(core, *modules)
    core.step()
    generation = ask(core, modules[5])
    while generation._events.empty():
        core.step()
    assert "m4" in computed(core), "it did not wait for the others"
    run(core)
    assert done.result().computed == 6


@pytest.mark.parametrize("leaves", ["stops", "is late"])
def test_the_passage_of_a_question_that_left_holds_up_no_answer(leaves):
    """Was wrong once: what was encoded for it stayed as urgent as what somebody waits for."""
    core = a_core()
    core._limits = Limits(seconds=1000.0)
    core.store.compute_cost.mean = 1.0
    system, *passages = (make_segment(name, name * LONG) for name in "sab")
    first, second = (replace(passage, prefix=system, start=LONG) for passage in passages)
    gone, asked = ask(core, system, first), ask(core, tokens=8)
    core.step()
    assert [*computed(core)] == ["s"]
    if leaves == "stops":
        gone.cancel()
    else:
        core._waiting[0].submitted -= 1e6
    core.step()
    before = computed(core)
    while core._running:
        core.step()
    assert asked.completion.usage.completion_tokens == 8
    assert computed(core) == before
    wanted = ask(core, system, second)
    _ = ask(core, tokens=8)
    core.step()
    core.step()
    assert computed(core)["s"] > before["s"], "another question wants it"
    run(core)
    assert wanted.completion.usage.completion_tokens == 4


def test_a_question_that_memory_is_short_for_lets_them_end():
    """They hold the rows it needs, so they are not kept waiting for it."""
    core = a_core()
    encode(core, *long_modules(14))
    core.step()
    generation = ask(core, make_segment("wanted", "y" * 900))
    run(core)
    assert generation.completion.usage.completion_tokens > 0


def test_a_question_ends_a_pass_for_modules_that_nobody_waits_for():
    """Was wrong once: it waited for the end of the pass, up to a quarter of a second."""
    core = a_core()
    forward, passes = core.model.forward, []

    def asked_meanwhile(chunks: Any, *others: Any) -> Any:
        passes.append(sum(len(chunk.tokens) for chunk in chunks))
        core.demand.set()
        return forward(chunks, *others)

    core.model.forward = asked_meanwhile  # type: ignore[method-assign, assignment]
    encode(core, *long_modules(2))
    core.step()
    assert passes
    assert computed(core) == {"m0": 0, "m1": 0}
    generation = ask(core, make_segment("wanted", "y" * LONG))
    while core.inbox or core._waiting or core._running:
        core.step()
    assert generation.completion.usage.completion_tokens > 0, "a pass that somebody waits for goes on"
    core.model.forward = forward  # type: ignore[method-assign]
    core.demand.clear()
    run(core)
    core.store.check_integrity()


def test_answers_wait_for_prompts_alone_in_every_other_pass_at_most(monkeypatch):
    monkeypatch.setattr("cache.engine.scheduler.MANY_ANSWERS", 1)
    core = a_core()
    answer = ask(core, tokens=20)
    core.step()
    questions = []
    told: list[bool] = []
    while core.has_work:
        if not answer.is_over:
            questions.append(ask(core, tokens=2))
        before = len(core._running[0].answer)
        core.step()
        if not answer.is_over:
            told.append(len(core._running[0].answer) > before)
    assert True in told
    assert False in told, "a question had a pass of its own"
    assert (False, False) not in {*pairwise(told)}
    assert all(question.completion.usage.completion_tokens == 2 for question in questions)


def test_submitting_a_request_is_a_demand():
    engine = Engine(build(), memory=4 << 20)
    engine._stopped = None  # taken in by nobody, as while a pass runs
    engine.submit(Request(plan=Plan(spans=(Span(start=0, tokens=(1, 2)),))))
    assert engine._core.demand.is_set()


def test_a_question_with_warm_passages_does_not_wait_for_one_with_cold_ones():
    """Was wrong once: the first that needed a module to be encoded held up everybody behind it."""
    core = a_core()
    warm = make_segment("warm", "w" * 40)
    encode(core, warm)
    run(core)
    core.store.compute_cost.mean = 1.0  # so slow that passes are as short as they get
    cold, quick = ask(core, *long_modules(6)), ask(core, warm)
    while not quick.is_over:
        core.step()
    assert computed(core), "the cold ones are not encoded yet"
    run(core)
    assert cold.completion.usage.completion_tokens > 0


@pytest.mark.parametrize("has_patience", [True, False])
def test_who_waits_for_memory_is_overtaken_but_not_for_ever(has_patience):
    core = a_core(slots=1000)
    first = ask(core, make_segment("first", "f" * 500), tokens=60)
    while not core._running:
        core.step()
    large = ask(core, make_segment("large", "l" * 600), waited=0.0 if has_patience else 2 * PATIENCE_S)
    small = ask(core, make_segment("small", "s" * 20))
    core.step()
    assert not first.is_over
    assert core.store.has(core.store.key(make_segment("small", "s" * 20))) == has_patience, "it is encoded meanwhile"
    run(core)
    assert all(one.completion.usage.completion_tokens > 0 for one in (first, large, small))
    core.store.check_integrity()


def test_what_those_hold_that_must_not_overtake_is_given_back():
    """Else the one in front would wait for memory that nobody gives back before it has begun."""
    core = a_core(slots=1000)
    warm = make_segment("warm", "w" * 200)
    encode(core, warm)
    run(core)
    ask(core, make_segment("first", "f" * 300))
    while not core._running:
        core.step()
    large, holding = ask(core, make_segment("large", "l" * 850)), ask(core, warm, make_segment("cold", "c" * 100))
    core.step()
    assert [len(waiting.entries) for waiting in core._waiting] == [0, 1]
    core._waiting[0].submitted -= 2 * PATIENCE_S
    for _ in range(100):
        core.step()
    assert not core.has_work
    assert large.completion.usage.completion_tokens > 0
    assert holding.completion.usage.completion_tokens > 0
    core.store.check_integrity()


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


def test_one_more_than_may_run_and_wait_is_refused():
    core = limited(Limits(running=2, waiting=1))
    generations = [ask(core) for _ in range(4)]
    core.step()
    assert core.load == (2, 1)
    with pytest.raises(EngineFull, match="the server is busy"):
        _ = generations[3].completion
    run(core)
    assert all(one.completion.usage.completion_tokens > 0 for one in generations[:3])


def test_an_answer_that_takes_too_long_ends_with_what_there_is():
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


def test_a_question_that_waits_too_long_is_refused():
    core = limited(Limits(running=1, seconds=60))
    first, waiting = ask(core, tokens=200), ask(core)
    core.step()
    core._waiting[0].submitted -= 61
    core.step()
    with pytest.raises(EngineFull, match="has waited 60 s"):
        _ = waiting.completion
    assert not first.is_over


def test_an_answer_without_a_word_yet_is_refused_like_one_that_waits():
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


def test_a_request_that_gave_its_memory_back_before_its_first_word_is_refused():
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


def test_without_a_limit_nothing_is_too_late():
    core = limited(Limits())
    generation = ask(core, tokens=2, waited=1e6)
    run(core)
    assert generation.completion.finish_reason == "length"
