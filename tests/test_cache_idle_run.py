"""Requests that are computed again without reuse while the engine is idle."""

import threading
from typing import Any

import pytest
from recording import Recorder, answer, running
from test_cache_engine import QUESTION, SYSTEM, A, B, placed
from tiny import build, oracle_logits, stock

from cache.attention.forward_pass import Pass
from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Generation, Request
from cache.errors import CacheError, EngineBusy, EngineStopped
from cache.model.language_model import LanguageModel

PLAN = placed("llama", SYSTEM, A, B, QUESTION)


def request(max_tokens: int = 1) -> Request:
    return Request(plan=PLAN, sampling=Sampling(max_tokens=max_tokens))


def in_first_pass(model: LanguageModel, engine: Engine, wanted: Request) -> tuple[Generation, threading.Event]:
    begun, go_on = threading.Event(), threading.Event()
    forward = model.forward

    def waiting(*args: Any) -> Any:
        model.forward = forward  # type: ignore[method-assign]
        begun.set()
        go_on.wait(10)
        return forward(*args)

    model.forward = waiting  # type: ignore[method-assign]
    generation = engine.compute_idle(wanted)
    assert begun.wait(10)
    return generation, go_on


def test_it_is_full_attention_over_everything():
    model = build()
    recorder = Recorder(model)
    with running(model) as engine:
        warm = [answer(engine, PLAN), answer(engine, PLAN)][-1]
        assert warm.usage.computed < PLAN.num_tokens
        completion = engine.compute_idle(request()).completion
    assert completion.usage.computed == completion.usage.prompt_tokens == PLAN.num_tokens
    assert completion.exact
    expected = oracle_logits(stock("llama"), PLAN.without_segments())
    assert (recorder.logits[-1] - expected).abs().max() < 1e-4


def test_it_needs_nothing_of_the_store():
    model = build()
    per_token = model.info.kv.bytes_per_token
    with running(model, memory=(PLAN.num_tokens + 8) * per_token) as engine:
        answer(engine, PLAN)
        entries, free = set(engine.store.device.entries), engine.store.device.allocator.free_slots
        assert engine.compute_idle(request(4)).completion.usage.completion_tokens
        assert set(engine.store.device.entries) == entries
        assert engine.store.device.allocator.free_slots == free
        assert not engine.store.device.evictions


def test_only_one_at_a_time_and_none_while_there_is_something_to_do():
    model = build()
    with running(model) as engine:
        idle, go_on = in_first_pass(model, engine, request(200))
        second = engine.compute_idle(request())
        go_on.set()
        with pytest.raises(EngineBusy):
            _ = second.completion
        idle.cancel()
        assert idle.completion.usage.completion_tokens


def test_what_fails_in_it_fails_it_alone():
    model = build()
    with running(model) as engine:
        forward = model.forward

        def broken(*args: Any) -> Any:
            model.forward = forward  # type: ignore[method-assign]
            raise RuntimeError("no memory")

        model.forward = broken  # type: ignore[method-assign]
        with pytest.raises(CacheError, match="could not be computed: ask again"):
            _ = engine.compute_idle(request()).completion
        assert answer(engine, PLAN).usage.completion_tokens == 1


def test_closing_ends_it():
    model = build()
    engine = Engine(model, memory=4 << 20).start()
    idle, go_on = in_first_pass(model, engine, request(200))
    closing = threading.Thread(target=engine.close)
    closing.start()
    while engine._calls.empty():
        pass
    go_on.set()
    closing.join(10)
    with pytest.raises((EngineBusy, EngineStopped)):
        _ = idle.completion


@pytest.fixture
def halted(monkeypatch):
    """The next pass halts before its second layer, says so by the first event, and goes on with the second."""
    there, go_on = threading.Event(), threading.Event()
    attend = Pass.attend

    def halting(self: Pass, layer: int, *args: Any) -> Any:
        if layer == 1 and not there.is_set():
            there.set()
            go_on.wait(10)
        return attend(self, layer, *args)

    monkeypatch.setattr(Pass, "attend", halting)
    return there, go_on


def layers_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    written: list[int] = []
    write = Pass._write

    def recording(self: Pass, layer: int, *args: Any) -> None:
        written.append(layer)
        write(self, layer, *args)

    monkeypatch.setattr(Pass, "_write", recording)
    return written


def test_a_request_ends_it_in_the_middle_of_a_pass(halted, monkeypatch):
    there, go_on = halted
    written = layers_of(monkeypatch)
    with running(build()) as engine:
        idle = engine.compute_idle(request(200))
        assert there.wait(10)
        asked = engine.submit(request())
        go_on.set()
        with pytest.raises(EngineBusy):
            _ = idle.completion
        assert asked.completion.usage.completion_tokens == 1
        assert engine.compute_idle(request()).completion.usage.completion_tokens == 1
    assert written[:2] == [0, 0], "the first pass ended behind its first layer"


def test_closing_ends_a_pass_in_its_middle(halted, monkeypatch):
    there, go_on = halted
    written = layers_of(monkeypatch)
    engine = Engine(build(), memory=4 << 20).start()
    asked = engine.submit(request())
    assert there.wait(10)
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert engine._closing.wait(10)
    go_on.set()
    closing.join(10)
    with pytest.raises(EngineStopped):
        _ = asked.completion
    assert written == [0], "the pass ended behind its first layer"


def test_a_pass_that_nobody_wants_ends_in_its_middle(halted, monkeypatch):
    there, go_on = halted
    model = build()
    recorder = Recorder(model)
    written = layers_of(monkeypatch)
    with running(model) as engine:
        asked = engine.submit(Request(plan=PLAN, reuse="off"))
        assert there.wait(10)
        asked.cancel()
        go_on.set()
        assert asked.completion.finish_reason == "cancelled"
        assert written == [0], "the pass ended behind its first layer"
        answer(engine, PLAN)  # what was left half computed is not found
    expected = oracle_logits(stock("llama"), PLAN)
    assert (recorder.logits[-1] - expected).abs().max() < 1e-4
