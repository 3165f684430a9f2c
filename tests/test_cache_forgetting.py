"""Forgetting while requests go on: the engine's own steps, one at a time."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from test_cache_priority import LONG, a_core, ask, encode, run
from tiny import make_segment

from cache.engine.engine_core import EngineCore
from cache.engine.forgetting import ForgetJob
from cache.prompt.plan import Segment

SECRET = make_segment("secret", "s" * LONG)
OTHER = make_segment("other", "o" * LONG)


def forget(core: EngineCore, *segments: Segment) -> Future[int]:
    job = ForgetJob(lambda store: {store.key(segment) for segment in segments}, Future())
    core.inbox.append(job)
    return job.done


def nothing_left(core: EngineCore) -> bool:
    """Whether no tier and no prefix has anything of the secret."""
    keys = {core.store.key(SECRET)}
    prefixes = core.store.device.prefixes.nodes()
    return not (core.store.has(core.store.key(SECRET)) or any(node.step.comes_from(keys) for node in prefixes))


def test_who_comes_later_does_not_wait_for_who_came_before() -> None:
    """Was wrong once: nothing was taken in while something was to be forgotten."""
    core = a_core()
    encode(core, SECRET, OTHER)
    run(core)
    before = ask(core, SECRET, tokens=20)
    core.step()
    forgotten, later = forget(core, SECRET), ask(core, OTHER, tokens=1)
    while not later.is_over:
        core.step()
    assert not before.is_over
    assert not forgotten.done()
    run(core)
    assert forgotten.result() == 1
    assert before.completion.modules[0].source == "device"
    assert nothing_left(core)
    core.store.check_integrity()


@pytest.mark.parametrize("steps", range(12))
def test_what_later_ones_compute_with_it_is_not_kept(steps: int) -> None:
    """However far they are when it is forgotten: they wait, its module is encoded, or they run."""
    core = a_core()
    encode(core, SECRET)
    run(core)
    core.store.compute_cost.mean = 1.0  # so slow that passes are as short as they get
    before = ask(core, OTHER, tokens=2)
    core.step()
    forgotten = forget(core, SECRET)
    core.step()
    later = ask(core, SECRET, tokens=12)
    for _ in range(steps):
        core.step()
    while not forgotten.done():
        core.step()
    was_kept = later.is_over
    run(core)
    assert before.is_over
    assert later.completion.usage.completion_tokens > 0
    if was_kept:
        assert nothing_left(core)
    else:
        core.inbox.append(ForgetJob(lambda store: {store.key(SECRET)}, Future()))
        run(core)
        assert nothing_left(core)
    core.store.check_integrity()


def test_a_later_request_that_runs_keeps_nothing() -> None:
    core = a_core()
    encode(core, SECRET)
    run(core)
    before = ask(core, OTHER, tokens=3)
    core.step()
    forgotten, later = forget(core, SECRET), ask(core, SECRET, tokens=30)
    while not forgotten.done():
        core.step()
    assert before.is_over
    assert not later.is_over
    run(core)
    assert later.completion.usage.completion_tokens > 1
    assert nothing_left(core)
    core.store.check_integrity()


def test_a_later_encoding_begins_again() -> None:
    """What it had computed is dropped, and the job still ends with its module there."""
    core = a_core()
    core.store.compute_cost.mean = 1.0
    before = ask(core, tokens=3)
    core.step()
    forgotten, job = forget(core, SECRET), encode(core, SECRET)
    computed = [0]
    while not forgotten.done():
        encoding = core._encoder.running.get(core.store.key(SECRET))
        computed.append(0 if encoding is None else encoding.sequence.computed)
        core.step()
    assert before.is_over
    assert 0 < computed[-1] < LONG
    again = core._encoder.running[core.store.key(SECRET)]
    assert again.sequence.computed <= computed[-1]
    run(core)
    assert forgotten.result() == 0
    assert job.result().computed == 1
    assert core.store.has(core.store.key(SECRET))
    core.store.check_integrity()


def test_a_later_request_that_waits_looks_it_up_again() -> None:
    core = a_core()
    encode(core, SECRET)
    run(core)
    core.store.compute_cost.mean = 1.0
    before = ask(core, tokens=3)
    core.step()
    forgotten = forget(core, SECRET)
    later = ask(core, SECRET, *(make_segment(f"cold {i}", f"{i}" * LONG) for i in range(4)), tokens=1)
    pinned = []
    while not forgotten.done():
        pinned = [*core._waiting[0].entries] if core._waiting else []
        core.step()
    assert before.is_over
    assert SECRET in pinned
    run(core)
    assert [use.source for use in later.completion.modules] == ["computed"] * 5
    core.store.check_integrity()


def test_modules_ahead_of_use_do_not_hold_it_up_behind_questions() -> None:
    """They are encoded only when there is nothing else to do, unless somebody waits for their end."""
    core = a_core()
    core.store.compute_cost.mean = 1.0
    job = encode(core, SECRET)
    core.step()
    forgotten, questions = forget(core, SECRET), [ask(core, tokens=8)]
    for _ in range(30):
        core.step()
        if questions[-1].is_over:
            questions.append(ask(core, tokens=8))
    assert job.done()
    assert forgotten.result() == 1
    run(core)
    assert nothing_left(core)
