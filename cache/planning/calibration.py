"""What passes cost here, from a short run of the engine with random token ids: answers at once, questions, files.

All passes are described by one linear cost (`PassCosts`), fitted to the times so that each counts relative to its size.
About half a minute with the bundled model on two cores. Not covered: models that are not on this machine.
"""

import os
import platform
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
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

MODULE_TOKENS, MODULES = 200, 8
CONVERSATIONS, QUESTIONS = (1, 4, 16), (24, 96, 384)
PLACED = (1, 8)
"""Modules before a question."""
ANSWER_TOKENS, REPEATS = 24, 3
ROOM_TOKENS = 16_384

Measured = tuple[tuple[float, ...], float]
"""What a time is made of (passes, prompt rows, rows of answers, pairs, requests), and seconds."""


def measure_costs(model: Model, name: str) -> PassCosts:
    """Run the engine with a model whose shape is `name`. Nothing of it is kept."""
    rng = random.Random(0)
    vocabulary, per_token = model.info.vocabulary, model.info.kv.bytes_per_token
    model.info = replace(model.info, stop_tokens=frozenset())
    segments = [Segment(name=f"m{i}", tokens=drawn(MODULE_TOKENS, vocabulary, rng)) for i in range(MODULES)]
    with TemporaryDirectory(prefix="warmdesk-") as folder:
        engine = Engine(model, memory=ROOM_TOKENS * per_token, disk=DiskTier(Path(folder), 1 << 34)).start()
        try:
            engine.encode(segments).result().raise_failed()
            times = [
                *time_answers(engine, segments, vocabulary, rng),
                *time_questions(engine, segments, vocabulary, rng),
            ]
            load_token_s = time_load(engine, segments)
        finally:
            engine.close()
    parts = np.array([made for made, _ in times])
    seconds = np.array([one for _, one in times])
    pass_s, prefill_row_s, decode_row_s, pair_s, request_s = nnls(parts / seconds[:, None], np.ones(len(times)))[0]
    return PassCosts(
        model=name,
        machine=f"{platform.machine()}, torch {torch.__version__}",
        threads=torch.get_num_threads(),
        cores=os.cpu_count() or 1,
        number_bytes=model.info.kv.dtype.itemsize,
        pass_s=float(pass_s),
        prefill_row_s=float(prefill_row_s),
        decode_row_s=float(decode_row_s),
        pair_s=float(pair_s),
        request_s=float(request_s),
        load_token_s=load_token_s,
    )


def time_answers(engine: Engine, segments: list[Segment], vocabulary: int, rng: random.Random) -> Iterator[Measured]:
    """Seconds of a pass over the next tokens of so many answers, behind few and many tokens; the fastest of some."""
    for count in CONVERSATIONS:
        for placed in PLACED:
            best = min(time_decoding(engine, segments[:placed], count, vocabulary, rng) for _ in range(2))
            seen = placed * MODULE_TOKENS + 2 + ANSWER_TOKENS / 2
            yield (1, 0, count, count * seen, 0), best


def time_decoding(engine: Engine, placed: list[Segment], count: int, vocabulary: int, rng: random.Random) -> float:
    """Seconds of one pass, from when the last one has its first token to when the first one ends."""
    plans = [plan_of(placed, drawn(2, vocabulary, rng)) for _ in range(count)]
    sampling = Sampling(max_tokens=ANSWER_TOKENS, temperature=1.0, top_k=40, seed=0)
    started = time.perf_counter()
    submitted = [
        (time.perf_counter() - started, engine.submit(Request(plan=plan, sampling=sampling))) for plan in plans
    ]
    ended = [(at, generation.completion) for at, generation in submitted]
    first = max(at + one.timings.ttft / 1e3 for at, one in ended)
    last = min(at + one.timings.total / 1e3 for at, one in ended)
    return (last - first) / max(1, min(len(one.tokens or ()) for _, one in ended) - 1)


def time_questions(engine: Engine, segments: list[Segment], vocabulary: int, rng: random.Random) -> Iterator[Measured]:
    """Seconds to the first token of questions of several lengths, behind few and many tokens; the fastest of some."""
    sampling = Sampling(max_tokens=1, temperature=1.0, top_k=40, seed=0)
    for rows in QUESTIONS:
        for placed in PLACED:
            plans = [plan_of(segments[:placed], drawn(rows, vocabulary, rng)) for _ in range(REPEATS)]
            timings = [engine.submit(Request(plan=plan, sampling=sampling)).completion.timings for plan in plans]
            best = min(one.ttft for one in timings) / 1e3
            yield (1, rows, 0, rows * (placed * MODULE_TOKENS + rows / 2), 1), best


def time_load(engine: Engine, segments: list[Segment]) -> float:
    """Seconds of a token of modules that are read from disk, one after another."""
    engine.call(lambda store: store.flush())
    engine.call(lambda store: [store.device.evict(store.key(segment)) for segment in segments])
    started = time.perf_counter()
    for segment in segments:
        engine.encode([segment], into_memory=True).result().raise_failed()
    return (time.perf_counter() - started) / (len(segments) * MODULE_TOKENS)


def plan_of(placed: list[Segment], question: tuple[int, ...]) -> Plan:
    """A question behind modules."""
    starts = range(0, len(placed) * MODULE_TOKENS, MODULE_TOKENS)
    spans = [Span(start=at, tokens=one.tokens, segment=one) for at, one in zip(starts, placed, strict=True)]
    return Plan(spans=(*spans, Span(start=len(placed) * MODULE_TOKENS, tokens=question)))


def drawn(count: int, vocabulary: int, rng: random.Random) -> tuple[int, ...]:
    """Random ordinary token ids."""
    return tuple(rng.randrange(vocabulary // 4, vocabulary) for _ in range(count))
