"""An error that nobody foresaw ends what was being computed; the engine's thread begins anew with empty memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cache_engine import QUESTION, SYSTEM, A, B, plan_of
from tiny import build

import cache.engine.restarts
from cache.decoding.sampling import Sampling
from cache.engine.encoder import Encoder
from cache.engine.engine import Engine
from cache.engine.engine_core import EngineCore
from cache.engine.request import Generation, Request
from cache.engine.running import Running
from cache.errors import CacheError, EngineStopped
from cache.memory.disk import DiskTier
from cache.memory.store import Store

RESTARTED = r"^the engine failed and begins anew, the log says why: ask again$"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
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


@pytest.mark.parametrize(
    ("owner", "name"),
    [(EngineCore, "step"), (Encoder, "collect"), (Running, "finish"), (EngineCore, "_take_in"), (EngineCore, "_admit")],
)
def test_requests_in_flight_end_with_one_line_and_new_ones_are_answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_modules_to_be_encoded_and_forgotten_end_too(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_once(monkeypatch, EngineCore, "_forget")
    with pytest.raises(CacheError, match=RESTARTED):
        engine.forget({engine.key(A)})
    broken_once(monkeypatch, Encoder, "advance")
    with pytest.raises(CacheError, match=RESTARTED):
        engine.encode([A, B]).result(timeout=20)
    assert engine.encode([A, B]).result(timeout=20).computed == 2


def test_what_is_to_be_kept_is_kept_after_a_restart(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.keep({"b2:0"})
    before = engine.store
    broken_once(monkeypatch, EngineCore, "step")
    with pytest.raises(CacheError, match=RESTARTED):
        _ = submit(engine).completion
    assert engine.call(lambda store: (store is before, store.device.kept)) == (False, {"b2:0"})


def test_an_engine_that_fails_again_and_again_stays_down(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(core: EngineCore) -> None:
        raise ZeroDivisionError("nobody foresaw this")

    monkeypatch.setattr(EngineCore, "step", broken)
    monkeypatch.setattr(cache.engine.restarts, "MOST_RESTARTS", 2)
    for _ in range(2):
        with pytest.raises(CacheError, match=RESTARTED):
            _ = submit(engine).completion
    with pytest.raises(CacheError, match=RESTARTED):
        _ = submit(engine).completion
    engine._thread.join(timeout=20)
    assert (engine.is_running, engine.num_restarts) == (False, 2)
    with pytest.raises(EngineStopped, match="restart the program"):
        submit(engine)


def test_a_prompt_that_was_there_at_two_failures_is_refused_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
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
