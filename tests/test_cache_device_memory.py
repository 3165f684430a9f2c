"""How large the arena is: as much as was asked for, or what there is room for. The GPU is made up."""

from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
import pytest
import torch
from test_cache_engine import QUESTION, SYSTEM, A, plan_of
from tiny import CONFIGS, UNPLACEABLE, build

from cache.decoding.sampling import Sampling
from cache.engine import device_memory
from cache.engine.device_memory import GIB, RowLimit, allocate_arena, room_on_gpu, run_largest_passes, trial_arena
from cache.engine.engine import Engine
from cache.engine.request import Request
from cache.engine.scheduler import MOST_ROWS
from cache.errors import CapacityError
from cache.memory.arena import Arena
from cache.memory.kv_shape import KVShape

CPU = torch.device("cpu")


class Gpu:
    """A GPU with so much free, on which passes need `per_row` for each row, and at most `most_rows` fit."""

    def __init__(self, free: int, total: int = 80 * GIB, per_row: int = 1 << 20, most_rows: int = MOST_ROWS) -> None:
        self.memory, self.per_row, self.most_rows = (free, total), per_row, most_rows
        self.rows: list[int] = []

    def free(self) -> tuple[int, int]:
        return self.memory

    def peak_of(self, run: Callable[[], None]) -> int:
        run()
        return self.per_row * self.rows[-1]

    def forward(self, chunks: Any, arena: Any, outputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        self.rows.append(sum(len(chunk.tokens) for chunk in chunks))
        if self.rows[-1] > self.most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return torch.zeros(len(outputs), 300)


def room(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, limit: RowLimit) -> int:
    model = build()
    monkeypatch.setattr(model, "forward", gpu.forward)
    return room_on_gpu(model, 64, limit, gpu)


def test_a_gpu_gives_what_passes_do_not_need(monkeypatch, caplog):
    assert room(Gpu(70 * GIB), monkeypatch, RowLimit(CPU)) == (70 - 2 - 4) * GIB
    (line,) = caplog.messages
    assert line == (
        "memory of cpu: 70.00 GiB of 80.00 GiB are free after the weights, passes need 2.00 GiB, 4.00 GiB stay "
        "free; 64.00 GiB are used for keys and values"
    )
    assert room(Gpu(7 * GIB, 8 * GIB), monkeypatch, RowLimit(CPU)) == 4.5 * GIB


def test_where_the_largest_pass_does_not_fit_passes_are_smaller_from_the_start(monkeypatch):
    limit, gpu = RowLimit(CPU), Gpu(7 * GIB, 8 * GIB, most_rows=700)
    assert room(gpu, monkeypatch, limit) == 6 * GIB
    assert [*dict.fromkeys(gpu.rows)] == [2048, 1024, 512]
    assert limit.most == 512


def test_a_gpu_without_room_is_one_line(monkeypatch):
    with pytest.raises(CapacityError, match=r"has no room for keys and values \(2\.25 GiB of 8\.00 GiB are .*model"):
        room(Gpu(9 * GIB // 4, 8 * GIB), monkeypatch, RowLimit(CPU))


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "mistral-window"])
def test_the_trial_runs_real_passes_of_all_rows(family):
    assert family in CONFIGS | UNPLACEABLE
    model, rows = build(family), []
    forward = model.forward

    def counted(chunks: Any, *given: Any, **named: Any) -> Any:
        rows.append((sum(len(chunk.tokens) for chunk in chunks), len(named.get("scored", ()))))
        return forward(chunks, *given, **named)

    model.forward = counted  # type: ignore[method-assign]
    run_largest_passes(model, trial_arena(model, 80), 80, 64)
    assert rows == [(80, 0), (80, 1)][: 1 + model.info.places_modules]


def test_a_model_with_few_positions_reads_several_sequences():
    model = build("dynamic-rope")
    run_largest_passes(model, trial_arena(model, 500), 500, 64)


@pytest.mark.parametrize(
    ("free", "heads", "expected"),
    [(100 * GIB, 1, GIB * 3 // 4), (2 * GIB, 1, GIB // 2), (100 * GIB, 8, 2 * GIB), (GIB, 8, GIB // 4)],
)
def test_a_processor_gives_a_share_of_what_is_free(free, heads, expected, monkeypatch, caplog):
    kv = KVShape(layers=16, kv_heads=heads, head_dim=128, dtype="bfloat16")

    class Memory(NamedTuple):
        available: int
        total: int

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(free, 200 * GIB))
    assert device_memory.room_on_host(kv, device_memory.Gauge()) == expected
    assert "of 200.00 GiB are free" in caplog.text


@pytest.fixture
def small_machine(monkeypatch):
    monkeypatch.setattr(device_memory.Gauge, "free", lambda _: (8 << 20, 16 << 20))


@pytest.mark.usefixtures("small_machine")
def test_an_engine_answers_from_what_there_was_room_for():
    engine = Engine(build(), memory="auto").start()
    assert engine.store.device.allocator.capacity == (2 << 20) // engine.info.kv.bytes_per_token
    assert engine.submit(Request(plan=plan_of(SYSTEM, A, QUESTION), sampling=Sampling(max_tokens=3))).completion.text
    engine.close()


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_an_arena_that_does_not_fit_says_what_to_set(error, monkeypatch):
    def full(*_: Any) -> Arena:
        raise error

    monkeypatch.setattr(device_memory, "Arena", full)
    with pytest.raises(CapacityError) as caught:
        Engine(build(), memory=40 * GIB)
    assert str(caught.value) == (
        "device_memory is 40.00 GiB, and cpu has 0.01 GiB of 0.02 GiB free: "
        "set device_memory (--memory) lower, or to auto"
    )


def test_other_errors_stay_what_they_are(monkeypatch):
    def broken(*_: Any) -> Arena:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(device_memory, "Arena", broken)
    with pytest.raises(RuntimeError, match="device-side assert"):
        allocate_arena(build(), 1 << 20, 64, RowLimit(CPU))
