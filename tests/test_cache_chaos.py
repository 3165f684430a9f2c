"""Faults at every stage, from a seeded random source: nobody is left without an answer or one clear line, and nothing
is lost of the memory. WARMDESK_CHAOS=1000 asks so many instead of 100.
"""

import logging
import os
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from test_cache_engine import SYSTEM, plan_of
from tiny import build, make_segment

import cache.engine.restarts
import cache.memory.disk
from cache.decoding.sampling import Sampler, Sampling
from cache.engine.encoder import Encoder
from cache.engine.engine import Engine
from cache.engine.request import Completion, Encoded, Generation, Request
from cache.engine.running import Running
from cache.errors import CacheError
from cache.memory.background import Loader
from cache.memory.disk import DiskTier
from cache.memory.store import Store
from cache.prompt.plan import Plan, Segment, Span

ASKED = int(os.environ.get("WARMDESK_CHAOS", "100"))
READERS = 8
LONGEST_S = 60.0  # nobody waits longer for the end of an answer; a request that was lost would wait for ever
OUT_OF_MEMORY = RuntimeError("[enforce fail] can't allocate memory: you tried to allocate 1 byte\nstack")
MODULES = [make_segment(f"m{i}", f"Page {i} says something of its own. " * (1 + i % 4), SYSTEM) for i in range(24)]
TOO_LARGE = make_segment("large", "x" * 3000, SYSTEM)


class Chaos:
    """Lets calls fail at random. injected: how often, by what was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self._monkeypatch, self._random = monkeypatch, random.Random(seed)
        self.injected: dict[str, int] = {}
        self.is_on = True

    def inject(self, owner: Any, name: str, share: float, error: Exception) -> None:
        whole = getattr(owner, name)

        def fragile(*given: Any, **named: Any) -> Any:
            if self.is_on and self._random.random() < share:
                self.injected[name] = self.injected.get(name, 0) + 1
                raise error
            return whole(*given, **named)

        self._monkeypatch.setattr(owner, name, fragile)


def ask(engine: Engine, number: int) -> str:
    chance = random.Random(number)
    modules = [MODULES[min(int(chance.paretovariate(0.7)) - 1, len(MODULES) - 1)] for _ in range(2)]
    plan = plan_of(SYSTEM, *dict.fromkeys(modules), f"Question {number % 50}?")
    if chance.random() < 0.05:
        plan = Plan(spans=(Span(start=0, tokens=(1, 5000)),))  # ids of another model
    sampling = Sampling(max_tokens=chance.randrange(1, 9), temperature=chance.choice([0.0, 1.0]), seed=number)
    generation = engine.submit(
        Request(plan=plan, sampling=sampling, session=f"s{number % 20}", tenant=f"t{number % 5}")
    )
    if chance.random() < 0.1:
        with suppress(CacheError):
            next(iter(generation), "")  # somebody who leaves after the first words
        generation.cancel()
    return end_of(generation)


def end_of(generation: Generation) -> str:
    try:
        assert isinstance(generation.completion, Completion)
    except CacheError as error:
        is_clear = len(str(error).splitlines()) == 1 and len(str(error)) < 300
        return type(error).__name__ if is_clear else f"unclear: {error}"
    return "answered"


def change(engine: Engine, number: int) -> None:
    """What else goes on meanwhile: prefetching, encoding ahead, forgetting, calls that raise."""
    chance = random.Random(number)
    some = chance.sample(MODULES, 4)
    with suppress(CacheError):
        engine.prefetch(some)
        engine.prefetch([*chance.sample(MODULES, 6), TOO_LARGE]).cancel()
    encoding: Future[Encoded] = engine.encode([*some, TOO_LARGE])
    calls: list[Callable[[], object]] = [
        lambda: engine.call(lambda store: 1 // 0),
        lambda: engine.forget({engine.key(some[0])}),
        lambda: engine.call(lambda store: [store.remove(store.key(one)) for one in some]),
        lambda: engine.drop_prefixes(f"t{number % 5}"),
    ]
    for call in calls:
        with suppress(CacheError, ZeroDivisionError):
            call()
    with suppress(CacheError):
        assert TOO_LARGE in encoding.result(timeout=LONGEST_S).failed


def test_chaos_costs_no_desk_no_memory_and_no_reader_an_end(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(cache.engine.restarts, "FIRST_REST_S", 0.0)
    model = build()
    memory, disk = 1200 * model.info.kv.bytes_per_token, DiskTier(tmp_path, 300_000)
    engine = Engine(model, memory=memory, host_memory=60_000, disk=disk, kv_storage="int8").start()
    chaos = Chaos(monkeypatch, seed=2)
    broken_disk = OSError(5, "Input/output error")
    for owner, name in ((Path, "unlink"), (Path, "exists"), (Path, "stat"), (os, "fsync"), (os, "replace")):
        chaos.inject(owner, name, 0.05, broken_disk)
    chaos.inject(cache.memory.disk, "read_file", 0.1, broken_disk)
    chaos.inject(safetensors.torch, "save_file", 0.1, safetensors.SafetensorError("No space left on device"))
    chaos.inject(Loader, "_load", 0.05, OUT_OF_MEMORY)
    chaos.inject(model, "forward", 0.03, OUT_OF_MEMORY)
    chaos.inject(Sampler, "draw", 0.01, ValueError("probability tensor contains inf"))
    for owner, name in ((Encoder, "collect"), (Running, "finish"), (Store, "find")):
        chaos.inject(owner, name, 0.003, ZeroDivisionError("nobody foresaw this"))
    with ThreadPoolExecutor(READERS) as readers:
        asked = [readers.submit(ask, engine, number) for number in range(ASKED)]
        changed = [readers.submit(change, engine, number) for number in range(0, ASKED, 20)]
        ends = [one.result(timeout=LONGEST_S * ASKED / 200) for one in asked]
        for other in changed:
            other.result(timeout=LONGEST_S)
    chaos.is_on = False
    assert ends.count("answered") > ASKED // 2
    assert {"answered", "PromptError"} < set(ends) <= {"answered", "PromptError", "CapacityError", "CacheError"}
    assert len(chaos.injected) > 5, chaos.injected  # which of the rarest come depends on the threads
    assert [ask_soundly(engine, module) for module in MODULES] == ["answered"] * len(MODULES)
    assert engine.is_running  # not before: it may have been beginning anew
    engine.call(Store.check_integrity)
    engine.close()
    print(f"{len(ends)} asked, {ends.count('answered')} answered, {engine.num_restarts} restarts, {chaos.injected}")


def ask_soundly(engine: Engine, module: Segment) -> str:
    return end_of(engine.submit(Request(plan=plan_of(SYSTEM, module, "Still there?"), sampling=Sampling(max_tokens=2))))
