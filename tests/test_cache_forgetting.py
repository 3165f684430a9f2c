"""Forgetting while requests go on: the engine's own steps, one at a time."""

import math
import threading
from concurrent.futures import Future

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cache_priority import LONG, a_core, ask, encode, run
from tiny import make_segment

from cache.engine.engine_core import EngineCore, ForgetJob
from cache.engine.recomputation import SelectiveRecomputation
from cache.engine.request import Generation
from cache.engine.running import Running
from cache.memory.disk import DiskTier, ModuleHeader
from cache.memory.keys import PUBLIC_TENANT
from cache.memory.kv_shape import KVStorage
from cache.memory.store import Store
from cache.prompt.plan import Segment

SECRET = make_segment("secret", "s" * LONG)
OTHER = make_segment("other", "o" * LONG)
Actions = list[tuple[str, list[Segment] | int]]


def forget(core: EngineCore, *segments: Segment) -> Future[int]:
    job = ForgetJob(lambda store: {store.key(segment) for segment in segments}, Future())
    core.inbox.append(job)
    return job.done


def forget_all_but(core: EngineCore, *kept: Segment) -> Future[int]:
    job = ForgetJob(lambda store: known(store) - {store.key(segment) for segment in kept}, Future())
    core.inbox.append(job)
    return job.done


def known(store: Store) -> frozenset[str]:
    return store.keys_of(PUBLIC_TENANT) | store.device.prefixes.modules()


def nothing_left(core: EngineCore) -> bool:
    """Whether no tier, no prefix, no selection of rows and no encoding has anything of the secret."""
    key = core.store.key(SECRET)
    selected = (segment for _, _, segment in core.row_selector._selected)
    return key not in known(core.store) | core._encoder.running.keys() and SECRET not in selected


def test_who_comes_later_does_not_wait_for_who_came_before():
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


@pytest.mark.parametrize("steps", range(0, 12, 2))
def test_what_later_ones_compute_with_it_is_not_kept(steps):
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


def test_a_later_encoding_begins_again():
    """What it had computed is dropped, and the job still ends with its module there."""
    core = a_core()
    core.store.compute_cost.mean = 1.0
    before = encode(core, OTHER)
    core.step()
    forgotten, job = forget(core, SECRET), encode(core, SECRET)
    computed = [0]
    while not forgotten.done():
        encoding = core._encoder.running.get(core.store.key(SECRET))
        computed.append(0 if encoding is None else encoding.sequence.computed)
        core.step()
    assert before.done()
    assert 0 < computed[-1] < LONG
    again = core._encoder.running[core.store.key(SECRET)]
    assert again.sequence.computed <= computed[-1]
    run(core)
    assert forgotten.result() == 0
    assert job.result().computed == 1
    assert core.store.has(core.store.key(SECRET))
    core.store.check_integrity()


def test_a_later_request_that_waits_looks_it_up_again():
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


def test_modules_ahead_of_use_do_not_hold_it_up_behind_questions():
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


def test_later_modules_ahead_of_use_do_not_slow_questions_down():
    """Nobody waits for the end of these. Was wrong once: all were encoded beside questions."""
    core = a_core()
    core.store.compute_cost.mean, core._ahead_due = 1.0, math.inf  # none is due beside questions
    before = ask(core, tokens=30)
    core.step()
    forgotten, job = forget(core, SECRET), encode(core, OTHER)
    while not before.is_over:
        core.step()
        assert not core._encoder.running
    run(core)
    assert forgotten.done()
    assert job.result().computed == 1


def test_an_encoding_whose_request_was_cancelled_does_not_come_back():
    """Was wrong once: its request had ended, it was in no tier yet, and it was stored when all was forgotten."""
    core = a_core()
    core.store.compute_cost.mean = 1.0
    before, forgotten = ask(core, SECRET, tokens=2), forget_all_but(core)
    core.step()
    assert core._encoder.running
    before.cancel()
    run(core)
    assert forgotten.done()
    assert nothing_left(core)
    core.store.check_integrity()


def test_a_cancelled_request_leaves_an_encoding_to_those_who_wait_for_it():
    core, long = a_core(), make_segment("long", "l" * 4 * LONG)
    core.store.compute_cost.mean = 1.0
    before, forgotten = ask(core, long, tokens=2), forget_all_but(core, long)
    core.step()
    later = ask(core, long, tokens=2)
    core.step()
    encoding = core._encoder.running[core.store.key(long)]
    before.cancel()
    while not forgotten.done():
        core.step()
    assert core._encoder.running[core.store.key(long)] is encoding
    run(core)
    assert later.completion.modules[0].source == "computed"


def test_what_is_being_written_is_found_and_forgotten(tmp_path, monkeypatch):
    """Was wrong once: a module that had left memory before its file was there was in no tier, and stayed."""
    disk = DiskTier(tmp_path, 1 << 30)
    core, may_write, write = a_core(disk=disk), threading.Event(), disk.write

    def slow(header: ModuleHeader, rows: torch.Tensor, *storage: KVStorage) -> None:
        assert may_write.wait(20)
        write(header, rows, *storage)

    monkeypatch.setattr(disk, "write", slow)
    encode(core, SECRET)
    run(core)
    assert core.store.device.evict(core.store.key(SECRET))
    forgotten = forget_all_but(core)
    threading.Timer(0.05, may_write.set).start()
    run(core)
    assert forgotten.result() == 1
    assert nothing_left(core)
    assert list(tmp_path.iterdir()) == []
    core.store.close()


@pytest.mark.parametrize("reuse", ["on", "prefix"])
def test_prefixes_are_forgotten_whose_modules_are_in_no_tier(reuse):
    """Evicted, or never encoded, because the text was computed as text."""
    core = a_core()
    ask(core, SECRET, OTHER, reuse=reuse)
    ask(core, OTHER, reuse=reuse)
    run(core)
    for segment in (SECRET, OTHER):
        core.store.device.evict(core.store.key(segment))
    assert not nothing_left(core)
    forget_all_but(core, OTHER)
    run(core)
    assert nothing_left(core)
    assert core.store.device.prefixes.modules() == {core.store.key(OTHER)}
    core.store.check_integrity()


@pytest.mark.parametrize("is_first", [True, False])
def test_other_conversations_behind_the_same_beginning_stay(is_first):
    """Was wrong once: the beginning belonged to who came first, and went with all that stood behind it."""
    core, system = a_core(), make_segment("system", "Be brief.")
    for segment in (SECRET, OTHER) if is_first else (OTHER, SECRET):
        ask(core, system, segment, session=segment.name)
        run(core)
    ask(core, system, session=SECRET.name)  # a later turn that may quote it
    run(core)
    forget(core, SECRET)
    run(core)
    assert nothing_left(core)
    assert {node.owner for node in core.store.device.prefixes.nodes() if node.step.key is None} == {OTHER.name}
    core.store.check_integrity()


USES = st.sampled_from([[SECRET], [OTHER], [SECRET, OTHER], [OTHER, SECRET], []])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), USES),
        st.tuples(st.just("encode"), USES),
        st.tuples(st.sampled_from(["step", "cancel", "evict"]), st.integers(0, 5)),
    ),
    max_size=10,
)


def act(core: EngineCore, asked: list[Generation], what: str, details: list[Segment] | int) -> None:
    if isinstance(details, list):
        if what == "encode":
            encode(core, *details)
        else:
            number = len(asked)
            reuse, some = "prefix" if number % 3 == 2 else "on", SelectiveRecomputation(share=0.1 * (number % 2))
            options = {"session": f"s{number % 2}", "reuse": reuse, "recomputation": some}
            asked.append(ask(core, *details, tokens=3 + 5 * len(details), **options))
    elif what == "step":
        for _ in range(details + 1):
            core.step()
    elif what == "cancel" and asked:
        asked[details % len(asked)].cancel()
    elif what == "evict":
        core.store.device.evict(core.store.key([SECRET, OTHER][details % 2]))


@settings(max_examples=10, deadline=None)
@given(earlier=ACTIONS, later=ACTIONS, slots=st.sampled_from([600, 1500]))
def test_nothing_comes_back_that_nobody_asks_for_later(earlier, later, slots):
    """In any order of what else happens; where memory is short, requests wait or pause."""
    core, asked = a_core(slots), list[Generation]()
    core.store.compute_cost.mean = 1.0
    for what, details in earlier:
        act(core, asked, what, details)
    forgotten = forget_all_but(core, OTHER)
    for what, details in later:
        act(core, asked, what, [one for one in details if one is OTHER] if isinstance(details, list) else details)
    run(core)
    assert forgotten.result() >= 0
    assert nothing_left(core)
    assert all(one.is_over for one in asked)
    core.store.check_integrity()


@settings(max_examples=10, deadline=None)
@given(earlier=ACTIONS, later=ACTIONS, slots=st.sampled_from([600, 1500]))
def test_nothing_is_there_when_it_is_forgotten(earlier, later, slots):
    """Also where it is asked for later; and of what was computed with it then, nothing is kept."""
    core, asked = a_core(slots), list[Generation]()
    core.store.compute_cost.mean = 1.0
    for what, details in earlier:
        act(core, asked, what, details)
    found, readers = list[bool](), list[Running]()

    def look(_: object) -> None:  # before anything else begins
        found.append(nothing_left(core))
        readers.extend(one for one in core._running if one.admitted.uses({core.store.key(SECRET)}, core.store))

    forgotten = forget(core, SECRET)
    forgotten.add_done_callback(look)
    for what, details in later:
        act(core, asked, what, details)
    run(core)
    assert forgotten.result() >= 0
    assert found == [True]
    assert not any(one.keeps_rows for one in readers)
    assert all(one.is_over for one in asked)
    core.store.check_integrity()
