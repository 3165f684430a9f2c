"""Modules that are brought to device memory before a request asks for them: the engine's own steps, one at a time."""

import math
from typing import Any

import pytest
from recording import Recorder, answer, running
from test_cache_engine import QUESTION, SYSTEM, TOLERANCE, A, B, placed
from test_cache_forgetting import forget, nothing_left
from test_cache_priority import LONG, a_core, ask, computed, encode, long_modules, run
from tiny import build, make_segment, oracle_logits, stock

from cache.engine.encoder import MOST_PREFETCHES, Prefetch
from cache.engine.engine_core import EngineCore
from cache.engine.scheduler import LEAST_ROWS
from cache.errors import CacheError
from cache.memory.disk import DiskTier
from cache.memory.keys import PUBLIC_TENANT
from cache.prompt.plan import Segment


def prefetch(core: EngineCore, *segments: Segment) -> Prefetch:
    prefetch = Prefetch([*segments], PUBLIC_TENANT)
    core.prefetches.add(prefetch)
    return prefetch


def on_device(core: EngineCore, *segments: Segment) -> list[bool]:
    return [core.store.key(segment) in core.store.device.entries for segment in segments]


def rows_computed(core: EngineCore) -> list[int]:
    forward, rows = core.model.forward, []

    def counted(chunks: Any, *others: Any) -> Any:
        rows.append(sum(len(chunk.tokens) for chunk in chunks))
        return forward(chunks, *others)

    core.model.forward = counted  # type: ignore[method-assign, assignment]
    return rows


def slow(core: EngineCore) -> EngineCore:
    core.store.compute_cost.mean = 1.0
    return core


@pytest.mark.parametrize("kept_on_disk", [False, True])
def test_what_was_prefetched_is_in_memory_when_it_is_asked_for(tmp_path, kept_on_disk):
    """The answer is that of one full forward pass, and no row of a module is computed twice."""
    plan = placed("llama", SYSTEM, B, A, QUESTION)
    modules = sum(len(segment.tokens) for segment in plan.segments())
    if kept_on_disk:
        with running(build(), disk=DiskTier(tmp_path, 1 << 30)) as engine:
            answer(engine, plan)
    model = build()
    recorder = Recorder(model)
    with running(model, disk=DiskTier(tmp_path, 1 << 30) if kept_on_disk else None) as engine:
        rows = rows_computed(engine._core)
        engine.prefetch(plan.segments())
        while engine.call(lambda store: engine._core.has_work):
            pass
        assert sum(rows) == (0 if kept_on_disk else modules)
        assert [entry.hits for entry in engine.store.device.entries.values()] == [0, 0, 0]
        completion = answer(engine, plan)
    assert [use.source for use in completion.modules] == ["device"] * 3
    assert sum(rows) == plan.num_tokens - (modules if kept_on_disk else 0)
    assert (recorder.logits[-1] - oracle_logits(stock(), plan)).abs().max() < TOLERANCE


def test_nothing_is_prefetched_while_a_request_runs(tmp_path):
    """Neither encoded nor read from disk."""
    cold, on_disk = make_segment("cold", "c" * LONG), make_segment("on disk", "d" * LONG)
    core = slow(a_core(disk=DiskTier(tmp_path, 1 << 30)))
    encode(core, on_disk)
    run(core)
    core.store.flush()
    assert core.store.device.evict(core.store.key(on_disk))
    core._ahead_due = math.inf  # however slow the machine is
    question = ask(core, tokens=6)
    core.step()
    prefetch(core, cold, on_disk)
    while core._running:
        assert not core._encoder.running
        assert on_device(core, cold, on_disk) == [False, False]
        core.step()
    assert question.is_over
    run(core)
    assert on_device(core, cold, on_disk) == [True, True]
    core.store.check_integrity()
    core.store.close()


def test_a_request_overtakes_and_takes_over_what_it_needs():
    """What was computed of its module is not computed again; the others wait."""
    core, modules = slow(a_core()), long_modules(3)
    rows = rows_computed(core)
    prefetch(core, *modules)
    core.step()
    assert computed(core) == {"m0": LEAST_ROWS, "m1": 0, "m2": 0}
    core._ahead_due = math.inf  # however slow the machine is
    question = ask(core, modules[0])
    while not question.is_over:
        core.step()
        assert computed(core).get("m1", 0) == computed(core).get("m2", 0) == 0
    assert [use.source for use in question.completion.modules] == ["computed"]
    run(core)
    assert on_device(core, *modules) == [True] * 3
    usage = question.completion.usage
    assert sum(rows) == 3 * LONG + usage.prompt_tokens - LONG + usage.completion_tokens - 1


def test_a_request_is_not_kept_waiting_by_reading_one_after_another(tmp_path, monkeypatch):
    core, modules = a_core(disk=DiskTier(tmp_path, 1 << 30)), long_modules(3)
    encode(core, *modules)
    run(core)
    core.store.flush()
    for segment in modules:
        assert core.store.device.evict(core.store.key(segment))
    find, looked_up = core._encoder.find, []

    def asked_meanwhile(segment: Segment, *args: Any, **options: Any) -> Any:
        core.demand.set()
        looked_up.append(segment.name)
        return find(segment, *args, **options)

    monkeypatch.setattr(core._encoder, "find", asked_meanwhile)
    prefetch(core, *modules)
    core.step()
    assert looked_up == ["m0"]
    core.step()
    assert looked_up == ["m0"], "the request is not taken in yet"
    core.demand.clear()
    core.step()
    assert len(looked_up) == 2
    core.store.close()


def test_they_go_before_what_is_only_read_ahead():
    core, later, wanted = slow(a_core()), long_modules(2), make_segment("wanted", "w" * LONG)
    job = encode(core, *later)
    core.step()
    before = computed(core)
    prefetch(core, wanted)
    while not all(on_device(core, wanted)):
        core.step()
        assert {name: computed(core)[name] for name in before} == before
    run(core)
    assert job.result().computed == 2


def test_cancelling_drops_what_has_not_begun():
    core, modules = slow(a_core(slots=8000)), long_modules(18)
    cancelled = prefetch(core, *modules)
    core.step()
    cancelled.cancel()
    run(core)
    assert on_device(core, *modules) == [True] * 16 + [False] * 2
    cancelled.cancel()
    assert not core.has_work


def test_of_many_the_oldest_are_dropped():
    core, modules = slow(a_core()), long_modules(MOST_PREFETCHES + 1)
    for module in modules:
        prefetch(core, module)
    run(core)
    assert on_device(core, *modules) == [False] + [True] * MOST_PREFETCHES


def test_they_hold_nothing_and_may_be_evicted_at_once():
    core, module = a_core(slots=1000), make_segment("module", "m" * 600)
    prefetch(core, module)
    run(core)
    assert on_device(core, module) == [True]
    assert core.store.device.entries[core.store.key(module)].refs == 0
    question = ask(core, make_segment("other", "o" * 700))
    run(core)
    assert question.completion.usage.completion_tokens > 0
    core.store.check_integrity()


def test_what_does_not_fit_ends_it():
    """Was tried first: it would evict its own modules for each other, for ever."""
    core = a_core(slots=1000)
    for sizes in ((400,) * 4, (1100,)):
        prefetch(core, *(make_segment(name, name * size) for name, size in zip("abcd", sizes, strict=False)))
        run(core)
    core.store.check_integrity()


@pytest.mark.parametrize("steps", range(0, 8, 2))
def test_what_is_forgotten_does_not_come_back(steps, tmp_path):
    """Nor does forgetting wait for it, however far it is."""
    core, secret = slow(a_core(disk=DiskTier(tmp_path, 1 << 30))), make_segment("secret", "s" * LONG)
    prefetch(core, secret, *long_modules(1))
    for _ in range(steps):
        core.step()
    was_there = on_device(core, secret)
    forgotten = forget(core, secret)
    core.step()
    assert forgotten.done()
    assert forgotten.result() == sum(was_there)
    run(core)
    assert nothing_left(core)
    assert not core.has_work
    core.store.check_integrity()
    core.store.close()


def test_forgetting_does_not_take_it_from_a_request_that_waits_for_it():
    core, wanted, other = slow(a_core()), make_segment("wanted", "w" * LONG), make_segment("other", "o" * LONG)
    prefetch(core, wanted)
    core.step()
    forgotten, question = forget(core, other), ask(core, wanted)
    core.step()
    assert forgotten.done()
    assert computed(core)["wanted"] > LEAST_ROWS
    run(core)
    assert question.completion.usage.completion_tokens > 0


def test_what_cannot_be_encoded_is_not_tried_again(monkeypatch):
    core, modules = a_core(), long_modules(2)

    def broken(*args: Any) -> Any:
        raise CacheError("out of memory")

    monkeypatch.setattr(core.model, "forward", broken)
    prefetch(core, *modules)
    for _ in range(10):
        core.step()
    assert not core.has_work
    core.store.check_integrity()


def test_an_error_while_reading_ends_it_alone(monkeypatch):
    core, bad, good = a_core(), *long_modules(2)
    find = core._encoder.find

    def broken(segment: Segment, *args: Any, **options: Any) -> Any:
        if segment == bad:
            raise OSError("the disk is gone")
        return find(segment, *args, **options)

    monkeypatch.setattr(core._encoder, "find", broken)
    prefetch(core, bad)
    prefetch(core, good)
    run(core)
    assert on_device(core, bad, good) == [False, True]


def test_models_that_cannot_place_modules_prefetch_nothing():
    with running(build("mistral-window")) as engine:
        assert engine.prefetch([A, B]).segments == []
        answer(engine, placed("llama", SYSTEM, QUESTION))
        assert not engine.store.device.entries
