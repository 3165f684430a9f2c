"""The engine's times on a device that computes behind the host's back, as a GPU does: one that is made up, in a time of
its own. It is done with a pass only later, and the host learns of it only where it waits.
"""

import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from test_cache_priority import a_core, ask, encode, long_modules
from torch import Tensor

from cache.engine.device_memory import EventTimer
from cache.engine.engine_core import EngineCore
from cache.engine.request import Completion, Generation, Request
from cache.engine.text_delivery import AnswerText
from cache.engine.waiting import Waiting
from cache.prompt.plan import Plan, Span

ROW_S, LAUNCH_S, TEXT_S = 2e-3, 1e-3, 0.05
"""What the device takes for a row, the host to launch a pass, and the host to deliver a piece of text."""


class Device:
    """done_at: when it will have done all it was given. waits: how often the host had to wait for it. ends: when each
    of its passes was done.
    """

    def __init__(self) -> None:
        self.now = self.done_at = 100.0
        self.waits = 0
        self.ends: list[float] = []

    def launch(self, rows: int) -> None:
        self.done_at = max(self.done_at, self.now) + rows * ROW_S
        self.ends.append(self.done_at)
        self.now += LAUNCH_S

    def wait(self) -> None:
        self.waits += self.done_at > self.now
        self.now = max(self.now, self.done_at)

    def is_idle(self) -> bool:
        return self.done_at <= self.now

    def record(self) -> "DeviceEvent":
        return DeviceEvent(self, max(self.now, self.done_at))


class DeviceEvent:
    def __init__(self, device: Device, at: float) -> None:
        self._device, self.at = device, at

    def query(self) -> bool:
        return self.at <= self._device.now

    def elapsed_time(self, other: Any) -> float:
        assert self.query()
        assert other.query()
        return float(np.float32((other.at - self.at) * 1e3))


@pytest.fixture
def device(monkeypatch):
    device = Device()
    monkeypatch.setattr(time, "perf_counter", lambda: device.now)
    monkeypatch.setattr("cache.engine.engine_core.timer_for", lambda _: EventTimer(device))
    return device


def core_on(device: Device, monkeypatch: pytest.MonkeyPatch) -> EngineCore:
    """An engine whose passes the device computes, and whose text takes a while to be delivered."""

    class OnDevice(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
            if func in (Tensor.cpu, Tensor.tolist, Tensor.item):
                device.wait()
            return result.as_subclass(Tensor) if func is Tensor.cpu else result

    core = a_core()
    forward, update = core.model.forward, AnswerText.update

    def launch(chunks: Any, *others: Any) -> Tensor:
        device.launch(sum(len(chunk.tokens) for chunk in chunks))
        return forward(chunks, *others).as_subclass(OnDevice)

    def slowly(text: AnswerText, answer: Any, **named: Any) -> None:
        device.now += TEXT_S
        update(text, answer, **named)

    monkeypatch.setattr(core.model, "forward", launch)
    monkeypatch.setattr(AnswerText, "update", slowly)
    return core


def end_of(core: EngineCore, generation: Generation) -> Completion:
    while core.has_work:
        core.step()
    return generation.completion


def cost_after(*seconds_per_row: float) -> float:
    mean = 1e-3
    for seconds in seconds_per_row:
        mean += 0.1 * (seconds - mean)
    return mean


def test_first_tokens_come_when_the_device_has_computed_them(device, monkeypatch):
    core, began = core_on(device, monkeypatch), device.now
    asked = [ask(core, tokens=1, question=f"{n}: What can I return, and how long may it take?") for n in range(3)]
    timings = [end_of(core, one).timings for one in asked]
    assert [one.ttft for one in timings] == [pytest.approx((device.ends[0] - began) * 1e3, abs=1e-3)] * 3
    assert [one.prefill for one in timings] == [one.ttft for one in timings]
    assert all(one.total > one.ttft for one in timings)
    assert len(device.ends) == device.waits == 1


def test_a_prompt_of_several_passes_waits_for_the_last_alone(device, monkeypatch):
    """The passes before it are launched one after another, before the device has computed the first."""
    core, began = core_on(device, monkeypatch), device.now
    asked = ask(core, tokens=1, question="x" * 1200)
    assert end_of(core, asked).timings.ttft == pytest.approx((began + 1200 * ROW_S - began) * 1e3, abs=1e-2)
    assert (len(device.ends), device.waits) == (3, 1)
    end_of(core, ask(core, tokens=1))
    assert core.store.compute_cost.mean == pytest.approx(cost_after(ROW_S, ROW_S, ROW_S))


def test_an_answer_that_is_read_has_its_time_too(device, monkeypatch):
    core, began, generation = core_on(device, monkeypatch), device.now, Generation()
    plan = Plan(spans=(Span(start=0, tokens=(1, 2, 3, 4)),))
    core.inbox.append(Waiting(Request(plan=plan, teacher_forced=(5, 6)), generation, time.perf_counter()))
    assert end_of(core, generation).timings.ttft == pytest.approx((device.ends[0] - began) * 1e3, abs=1e-3)


def test_what_modules_cost_is_learnt_once_they_are_computed(device, monkeypatch):
    core = core_on(device, monkeypatch)
    for segment, expected in zip(long_modules(3), [(), (ROW_S,), (ROW_S, ROW_S)], strict=True):
        done: Future[Any] = encode(core, segment)
        while core.has_work:
            core.step()
        assert done.done()
        assert core.store.compute_cost.mean == pytest.approx(cost_after(*expected)), "the last one is not done yet"
        device.now += 10
    assert device.waits == 0


def test_times_stay_exact_when_the_desk_has_run_for_days():
    """Events count milliseconds in float32: ten days after the first one they are 64 ms apart."""
    device = Device()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: device.now)
        timer = EventTimer(device)
        device.now += 864_000
        timer.start()
        device.launch(7)
        timer.launched(7)
        timer.to_host(torch.zeros(1))
        device.wait()
        assert timer.finished() == pytest.approx(device.done_at, abs=1e-5)
        ((seconds, rows),) = timer.costs()
        assert seconds == pytest.approx(7 * ROW_S)
        assert rows == 7


def test_a_token_that_had_to_follow_is_there_before_the_device_is_done():
    device = Device()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: device.now)
        timer = EventTimer(device)
        timer.start()
        device.launch(7)
        timer.launched(7)
        assert timer.finished() == device.now < device.done_at
        assert timer.costs() == []
