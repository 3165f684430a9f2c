"""An error that nobody foresaw ends what was being computed; the engine's thread begins anew with empty memory."""

import logging
import threading
from typing import Any

import pytest
from test_cache_engine import QUESTION, SYSTEM, A, B, plan_of
from tiny import build
from waiting import wait_until

import cache.engine.restarts
import cache.memory.disk
from cache.decoding.sampling import Sampling
from cache.engine.encoder import Encoder
from cache.engine.engine import Engine
from cache.engine.engine_core import EngineCore
from cache.engine.request import Generation, Limits, Request
from cache.engine.running import Running
from cache.errors import CacheError, EngineStopped
from cache.memory.disk import DiskTier
from cache.memory.store import Store

RESTARTED = r"^the engine failed and is restarting: ask again \(the log has the cause\)$"


@pytest.fixture
def engine(tmp_path):
    engine = Engine(build(), memory=4 << 20, disk=DiskTier(tmp_path, 1 << 30)).start()
    yield engine
    engine.close()


def submit(engine: Engine, question: str = QUESTION) -> Generation:
    return engine.submit(Request(plan=plan_of(SYSTEM, A, question), sampling=Sampling(max_tokens=6)))


def broken_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Let the next call of a method raise an error that nobody foresaw."""
    whole, calls = getattr(owner, name), iter([True])

    def broken(*given: Any, **named: Any) -> Any:
        if next(calls, False):
            raise ZeroDivisionError("nobody foresaw this")
        return whole(*given, **named)

    monkeypatch.setattr(owner, name, broken)


@pytest.mark.parametrize(("owner", "name"), [(EngineCore, "step"), (Encoder, "collect"), (Running, "finish")])
def test_requests_in_flight_end_with_one_line_and_new_ones_are_answered(engine, monkeypatch, owner, name, caplog):
    """Was wrong once: the thread ended, and with it every answer until somebody restarted the desk."""
    expected = submit(engine).completion
    engine.call(lambda store: store.flush())
    broken_once(monkeypatch, owner, name)
    with caplog.at_level(logging.CRITICAL), pytest.raises(CacheError, match=RESTARTED):
        _ = submit(engine).completion
    again = submit(engine).completion
    assert again.tokens == expected.tokens
    assert {use.source for use in again.modules} == {"disk"}
    assert (engine.is_running, engine.num_restarts) == (True, 1)
    engine.call(Store.check_integrity)


def test_modules_to_be_encoded_and_forgotten_end_too(engine, monkeypatch):
    broken_once(monkeypatch, EngineCore, "_forget")
    with pytest.raises(CacheError, match=RESTARTED):
        engine.forget({engine.key(A)})
    broken_once(monkeypatch, Encoder, "advance")
    with pytest.raises(CacheError, match=RESTARTED):
        engine.encode([A, B]).result(timeout=20)
    assert engine.encode([A, B]).result(timeout=20).computed == 2


def test_what_is_to_be_kept_is_kept_after_a_restart(engine, monkeypatch):
    engine.keep({"b2:0"})
    before = engine.store
    broken_once(monkeypatch, EngineCore, "step")
    with pytest.raises(CacheError, match=RESTARTED):
        _ = submit(engine).completion
    assert engine.call(lambda store: (store is before, store.device.kept)) == (False, {"b2:0"})


def test_an_engine_that_fails_again_and_again_is_tried_again(engine, monkeypatch):
    """Was wrong once: after some failures it stayed down for good."""
    monkeypatch.setattr(cache.engine.restarts, "FIRST_REST_S", 0.0)
    begin, failures = Engine._begin, iter([True, True])

    def begun(engine: Engine) -> None:
        if next(failures, False):
            raise MemoryError("short for a minute")
        begin(engine)

    with monkeypatch.context() as broken:
        broken.setattr(EngineCore, "step", lambda core: 1 // 0)
        broken.setattr(Engine, "_begin", begun)
        for _ in range(7):
            with pytest.raises(CacheError, match=RESTARTED):
                _ = submit(engine).completion
            wait_until(lambda: engine.is_running)
    assert submit(engine).completion.tokens
    assert engine.num_restarts == 7


def test_what_is_asked_in_a_rest_fails_and_closing_ends_it(engine, monkeypatch):
    monkeypatch.setattr(cache.engine.restarts, "AT_ONCE", 1)
    monkeypatch.setattr(cache.engine.restarts, "LONGEST_REST_S", 3600.0)
    monkeypatch.setattr(cache.engine.restarts, "FIRST_REST_S", 3600.0)
    monkeypatch.setattr(EngineCore, "step", lambda core: 1 // 0)
    with pytest.raises(CacheError, match=RESTARTED):
        _ = submit(engine).completion
    wait_until(lambda: engine.is_running)
    with pytest.raises(CacheError, match=RESTARTED):
        _ = submit(engine).completion
    for ask in (lambda: submit(engine).completion, engine.settle, lambda: engine.encode([A]).result()):
        with pytest.raises(CacheError, match="ask again in minutes"):
            ask()
    assert engine.call(lambda store: len(store.device.entries)) == 0
    assert not engine.is_running
    engine.close()
    with pytest.raises(EngineStopped, match="shut down"):
        submit(engine)


def test_each_rest_is_twice_the_one_before(monkeypatch):
    rests, clock = cache.engine.restarts.Rests(), [1000.0]
    monkeypatch.setattr(cache.engine.restarts.time, "monotonic", lambda: clock[0])
    assert [rests.failed() for _ in range(11)] == [0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128]
    assert [rests.failed() for _ in range(2)] == [240, 240]
    clock[0] += 601
    assert [rests.failed() for _ in range(4)] == [0, 0, 0, 1]


def test_a_prompt_that_was_there_at_two_failures_is_refused_for_a_while(monkeypatch):
    """Was wrong once: asked again and again, it took the engine from everybody."""
    lost, clock = cache.engine.restarts.LostPrompts(), [1000.0]
    monkeypatch.setattr(cache.engine.restarts.time, "monotonic", lambda: clock[0])
    fatal, other = plan_of(SYSTEM, A, QUESTION), plan_of(SYSTEM, B, QUESTION)
    lost.add([fatal, other])
    assert not lost.refuses(fatal), "others were there, too"
    clock[0] += 400
    lost.add([fatal.without_segments()])
    assert lost.refuses(fatal)
    assert not lost.refuses(other)
    clock[0] += 300
    assert not lost.refuses(fatal)


def test_an_engine_whose_disk_hangs_does_not_run_and_keeps_nobody_waiting(tmp_path, monkeypatch):
    """Was wrong once: it counted as running, and who looked at it waited for ever."""
    disk, limits = DiskTier(tmp_path, 1 << 30), Limits(hang_s=0.2)
    engine = Engine(build(), memory=4 << 20, disk=disk, limits=limits).start()
    key = engine.key(A)
    engine.encode([A]).result()
    engine.settle()
    assert engine.call(lambda store: store.device.evict(key))
    read, answers_again = cache.memory.disk.read_file, threading.Event()
    monkeypatch.setattr(cache.memory.disk, "read_file", lambda path: (answers_again.wait(60), read(path))[1])
    answer = submit(engine)
    wait_until(lambda: not engine.is_running)
    assert engine.load() == (0, 1)
    for ask in (engine.settle, lambda: engine.forget({"b2:0"})):
        with pytest.raises(CacheError, match=r"^the engine has made no progress for 0\.2 s, perhaps because"):
            ask()
    answers_again.set()
    assert answer.completion.tokens
    wait_until(lambda: engine.is_running)
    engine.close()


def test_an_engine_whose_thread_hangs_does_not_run_and_is_left_behind(engine, monkeypatch):
    began, goes_on, said = threading.Event(), threading.Event(), list[str]()
    monkeypatch.setattr("cache.engine.engine.log.error", said.append)
    engine._limits = Limits(hang_s=0.2)
    monkeypatch.setattr("cache.engine.engine.CLOSE_S", 0.1)
    calling = threading.Thread(target=lambda: engine.call(lambda store: (began.set(), goes_on.wait(60))), daemon=True)
    calling.start()
    assert began.wait(20)
    wait_until(lambda: not engine.is_running)
    with pytest.raises(CacheError, match="has made no progress"):
        engine.call(lambda store: 1, 5.0)
    engine.close()
    assert ["thread hangs" in one for one in said] == [True]
    goes_on.set()
    engine._thread.join(20)
    engine.store.close()


def test_who_looks_waits_no_longer_than_said(engine):
    began, goes_on = threading.Event(), threading.Event()
    threading.Thread(target=lambda: engine.call(lambda store: (began.set(), goes_on.wait(60)))).start()
    assert began.wait(20)
    with pytest.raises(CacheError, match=r"^the engine was busy for 0\.1 s: try again$"):
        engine.call(lambda store: 1, 0.1)
    goes_on.set()
    assert engine.is_running
