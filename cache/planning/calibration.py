"""Costs of forward passes on this machine, measured in a short run of the engine with random token ids.

All passes are described by one linear cost (`PassCosts`), fitted to relative errors. It takes about half a minute with
the bundled model on two cores. Out of scope: models that are not on this machine.
"""

import os
import platform
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from scipy.optimize import nnls

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Request
from cache.memory.disk import DiskTier
from cache.model.language_model import Model
from cache.planning.costs import PassCosts
from cache.prompt.plan import Plan, Segment, Span

MODULE_TOKENS, MODULES = 200, 32
SHARED, OWN = ((1, 1), (1, 8), (4, 8), (16, 1), (16, 8)), ((4, 8), (8, 4), (32, 1))
"""Concurrent answers, and the modules before each: the same for all, or different ones."""
QUESTIONS = (24, 96, 384)
PLACED = (1, 8)  # modules before a question
ANSWER_TOKENS, REPEATS = 24, 3
ROOM_TOKENS, OTHERS_TOKENS = 16_384, 2048
Draw = Callable[[int], tuple[int, ...]]  # returns so many random token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPass:
    """Seconds of one pass, and its parts. requests: number that started with it."""

    seconds: float
    prefill_rows: int = 0
    decode_rows: int = 0
    read_tokens: float
    pairs: float
    requests: int = 0

    @property
    def parts(self) -> tuple[float, ...]:
        return 1, self.prefill_rows, self.decode_rows, self.read_tokens, self.pairs, self.requests


def measure_costs(model: Model, name: str, threads: int) -> PassCosts:
    """Run the engine with a model whose shape is `name`. threads: the engine's. Nothing is stored."""
    rng, vocabulary, per_token = random.Random(0), model.info.vocabulary, model.info.kv.bytes_per_token

    def draw(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary // 4, vocabulary) for _ in range(count))

    model.info = replace(model.info, stop_tokens=frozenset())
    segments = [Segment(name=f"m{i}", tokens=draw(MODULE_TOKENS)) for i in range(MODULES)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    with TemporaryDirectory(prefix="warmdesk-") as folder:
        engine = Engine(model, memory=ROOM_TOKENS * per_token, disk=DiskTier(Path(folder), 1 << 34)).start()
        try:
            measured = [
                time_modules(engine, segments),
                *time_answers(engine, segments, draw),
                *time_questions(engine, segments, draw),
            ]
            load_token_s = time_load(engine, segments)
            crowded = time_crowded(engine, segments, draw)
        finally:
            engine.close()
            torch.set_num_threads(before)
    parts = np.array([one.parts for one in measured])
    seconds = np.array([one.seconds for one in measured])
    fitted = nnls(parts / seconds[:, None], np.ones(len(measured)))[0]
    pass_s, prefill_row_s, decode_row_s, read_token_s, pair_s, request_s = map(float, fitted)
    return PassCosts(
        model=name,
        machine=f"{platform.machine()}, torch {torch.__version__}",
        threads=threads,
        cores=os.cpu_count() or 1,
        number_bytes=model.info.kv.dtype.itemsize,
        pass_s=pass_s,
        prefill_row_s=prefill_row_s,
        decode_row_s=decode_row_s,
        read_token_s=read_token_s,
        pair_s=pair_s,
        request_s=request_s,
        load_token_s=load_token_s,
        crowded=crowded,
    )


def time_modules(engine: Engine, segments: list[Segment]) -> MeasuredPass:
    seconds = []
    for segment in segments:
        started = time.perf_counter()
        engine.encode([segment]).result().raise_failed()
        seconds.append(time.perf_counter() - started)
    pairs = MODULE_TOKENS * MODULE_TOKENS / 2
    return MeasuredPass(seconds=median(seconds), prefill_rows=MODULE_TOKENS, read_tokens=MODULE_TOKENS, pairs=pairs)


def time_answers(engine: Engine, segments: list[Segment], draw: Draw) -> Iterator[MeasuredPass]:
    own_tokens = 2 + ANSWER_TOKENS / 2
    for kind in (SHARED, OWN):
        for count, placed in kind:
            each = [segments[placed * i : placed * (i + 1)] if kind is OWN else segments[:placed] for i in range(count)]
            seconds = median(time_decoding(engine, each, draw) for _ in range(REPEATS))
            different = len({segment for modules in each for segment in modules})
            yield MeasuredPass(
                seconds=seconds,
                decode_rows=count,
                read_tokens=different * MODULE_TOKENS + count * own_tokens,
                pairs=count * (placed * MODULE_TOKENS + own_tokens),
            )


def time_decoding(engine: Engine, each: list[list[Segment]], draw: Draw) -> float:
    """Return the seconds of one pass while all answers are generated. each: the modules before each answer."""
    plans = [plan_of(placed, draw(2)) for placed in each]
    sampling = Sampling(max_tokens=ANSWER_TOKENS, temperature=1.0, top_k=40, seed=0)
    started = time.perf_counter()
    submitted = [
        (time.perf_counter() - started, engine.submit(Request(plan=plan, sampling=sampling))) for plan in plans
    ]
    ended = [(at, generation.completion) for at, generation in submitted]
    first = max(at + one.timings.ttft / 1e3 for at, one in ended)
    last = min(at + one.timings.total / 1e3 for at, one in ended)
    return (last - first) / max(1, min(len(one.tokens or ()) for _, one in ended) - 1)


def time_questions(engine: Engine, segments: list[Segment], draw: Draw) -> Iterator[MeasuredPass]:
    sampling = Sampling(max_tokens=1, temperature=1.0, top_k=40, seed=0)
    for rows in QUESTIONS:
        for placed in PLACED:
            plans = [plan_of(segments[:placed], draw(rows)) for _ in range(REPEATS)]
            timings = [engine.submit(Request(plan=plan, sampling=sampling)).completion.timings for plan in plans]
            seen = placed * MODULE_TOKENS
            yield MeasuredPass(
                seconds=median(one.ttft for one in timings) / 1e3,
                prefill_rows=rows,
                read_tokens=seen + rows,
                pairs=rows * (seen + rows / 2),
                requests=1,
            )


def time_load(engine: Engine, segments: list[Segment]) -> float:
    """Return the seconds per token of modules that are read from disk, one after another."""
    engine.call(lambda store: store.flush())
    engine.call(lambda store: [store.device.evict(store.key(segment)) for segment in segments])
    started = time.perf_counter()
    for segment in segments:
        engine.encode([segment], into_memory=True).result().raise_failed()
    return (time.perf_counter() - started) / (len(segments) * MODULE_TOKENS)


def time_crowded(engine: Engine, segments: list[Segment], draw: Draw) -> float:
    """Return the slowdown of a pass while one engine per core generates answers; at least 1."""
    model, each = engine.model, [segments[:1]]
    others = max(1, (os.cpu_count() or 1) // torch.get_num_threads()) - 1
    if not others:
        return 1.0
    alone = median(time_decoding(engine, each, draw) for _ in range(REPEATS))
    endless = Sampling(max_tokens=OTHERS_TOKENS // 2, temperature=1.0, top_k=40, seed=0)
    with ExitStack() as stack:
        for _ in range(others):
            other = Engine(model, memory=OTHERS_TOKENS * model.info.kv.bytes_per_token).start()
            stack.callback(other.close)
            next(iter(other.submit(Request(plan=plan_of([], draw(24)), sampling=endless))))
        beside = median(time_decoding(engine, each, draw) for _ in range(REPEATS))
    return max(1.0, beside / alone)


def plan_of(placed: list[Segment], question: tuple[int, ...]) -> Plan:
    starts = range(0, len(placed) * MODULE_TOKENS, MODULE_TOKENS)
    spans = [Span(start=at, tokens=one.tokens, segment=one) for at, one in zip(starts, placed, strict=True)]
    return Plan(spans=(*spans, Span(start=len(placed) * MODULE_TOKENS, tokens=question)))
