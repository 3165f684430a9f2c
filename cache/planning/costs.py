"""Costs of a model's forward passes on a machine. They are measured in a short run of the engine with random token ids,
and scaled to other models by their sizes.

One linear cost function describes all passes (`PassCosts`). The fit minimises relative errors. Out of scope: measuring
models that are not on this machine.
"""

import json
import os
import platform
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Request
from cache.errors import PlanError
from cache.memory.disk import DiskTier
from cache.model.language_model import Model
from cache.prompt.plan import Plan, Segment, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Dimensions of a Llama-like model. The properties are numbers of weights."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def weights(self) -> int:
        return self.layer_weights + self.hidden * self.vocabulary

    @property
    def attention_width(self) -> int:
        """Length of one token's queries, over all heads and layers."""
        return self.layers * self.heads * self.head_dim

    def bytes_per_token(self, number_bytes: int) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * number_bytes


BUNDLED = "bundled"
SHAPES = {
    BUNDLED: ModelShape(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocabulary=49_152),
    "Qwen2.5-0.5B": ModelShape(
        layers=24, hidden=896, intermediate=4864, heads=14, kv_heads=2, head_dim=64, vocabulary=151_936
    ),
    "Qwen3-4B": ModelShape(
        layers=36, hidden=2560, intermediate=9728, heads=32, kv_heads=8, head_dim=128, vocabulary=151_936
    ),
    "Llama-3.1-8B": ModelShape(
        layers=32, hidden=4096, intermediate=14_336, heads=32, kv_heads=8, head_dim=128, vocabulary=128_256
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """Costs in seconds, sizes in bytes. A pass costs pass_s, plus prefill_row_s per prompt row, decode_row_s per row of
    a running answer, read_token_s per token whose keys and values a row sees, and pair_s per pair of a row and such a
    token. Each request costs request_s once, each token from disk load_token_s. threads: of one engine. cores: of the
    machine. crowded: slowdown of a pass while engines use all cores. bytes_per_token: of keys and values. is_scaled:
    scaled from another model, not measured.
    """

    model: str
    machine: str
    threads: int
    cores: int
    bytes_per_token: int
    weight_bytes: int
    pass_s: float
    prefill_row_s: float
    decode_row_s: float
    read_token_s: float
    pair_s: float
    request_s: float
    load_token_s: float
    crowded: float = 1.0
    is_scaled: bool = False

    def pass_seconds(self, prefill_rows: int, decode_rows: int, read_tokens: float, pairs: float) -> float:
        rows = prefill_rows * self.prefill_row_s + decode_rows * self.decode_row_s
        return self.pass_s + rows + read_tokens * self.read_token_s + pairs * self.pair_s

    def shares_cores(self, busy: int) -> bool:
        return busy * self.threads > self.cores

    def slowdown(self, busy: int, chance: float) -> float:
        """Return the slowdown of a pass while `busy` engines of a machine compute. If they have at most one thread per
        core, they compete only for memory. Otherwise they share cores, and some cores get one more thread. chance: a
        random number from 0 to 1; it decides if this engine has a thread on one of them.
        """
        most = max(1, self.cores // self.threads)
        waiting = (min(busy, most) - 1) / (most - 1) if most > 1 else 0.0
        on_each, left = divmod(busy * self.threads, self.cores)
        crowded_threads = left * (on_each + 1) / (busy * self.threads)
        is_on_one = chance < 1 - (1 - crowded_threads) ** self.threads
        return (1 + (self.crowded - 1) * waiting) * max(1, on_each + is_on_one)

    def scaled_to(self, model: str) -> "PassCosts":
        """Return the costs of another model on the same machine. Passes are scaled by all weights, rows by the weights
        of layers, pairs by the width of queries, tokens by their bytes. Raises PlanError for an unknown model.
        """
        if model == self.model:
            return self
        if unknown := {self.model, model} - SHAPES.keys():
            raise PlanError(f"{min(unknown)!r} cannot be scaled: give a GGUF file, or one of {', '.join(SHAPES)}")
        old, new = SHAPES[self.model], SHAPES[model]
        rows = new.layer_weights / old.layer_weights
        width = new.bytes_per_token(1) / old.bytes_per_token(1)
        return replace(
            self,
            model=model,
            bytes_per_token=round(self.bytes_per_token * width),
            weight_bytes=round(self.weight_bytes * new.weights / old.weights),
            pass_s=self.pass_s * new.weights / old.weights,
            prefill_row_s=self.prefill_row_s * rows,
            decode_row_s=self.decode_row_s * rows,
            pair_s=self.pair_s * new.attention_width / old.attention_width,
            read_token_s=self.read_token_s * width,
            load_token_s=self.load_token_s * width,
            is_scaled=True,
        )


def threads_each(engines: int) -> int:
    return max(1, (os.cpu_count() or 1) // engines)


def read_costs(file: Path) -> PassCosts:
    try:
        costs = PassCosts(**json.loads(file.read_text(encoding="utf-8")))
        if min(costs.pass_s, costs.prefill_row_s, costs.threads, costs.cores, costs.bytes_per_token) <= 0:
            raise ValueError(costs)
    except OSError as error:
        raise PlanError(f"{file}: {error.strerror or error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise PlanError(f"{file} has no costs of forward passes: delete it, and they are measured again") from error
    return costs


def write_costs(costs: PassCosts, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(costs), indent=2) + "\n", encoding="utf-8")


MODULE_TOKENS, MODULES = 200, 32
SHARED, OWN = ((1, 1), (1, 8), (4, 8), (16, 1), (16, 8)), ((4, 8), (8, 4), (32, 1))
"""(concurrent answers, modules before each). SHARED: all have the same modules. OWN: each has different modules."""
QUESTIONS = (24, 96, 384)
PLACED = (1, 8)  # modules before a question
ANSWER_TOKENS, REPEATS = 24, 3
ROOM_TOKENS, OTHERS_TOKENS = 16_384, 2048
Draw = Callable[[int], tuple[int, ...]]  # returns a given number of random token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPass:
    """Seconds of one pass, and what it computed. requests: number of requests that started with it."""

    seconds: float
    prefill_rows: int = 0
    decode_rows: int = 0
    read_tokens: float
    pairs: float
    requests: int = 0

    @property
    def parts(self) -> tuple[float, ...]:
        return 1, self.prefill_rows, self.decode_rows, self.read_tokens, self.pairs, self.requests


def measure_costs(model: Model, name: str, weight_bytes: int, threads: int) -> PassCosts:
    """Measure the costs of a model with the engine. name, weight_bytes: copied to the result. threads: of the engine.
    Stores nothing. Takes about half a minute on two cores with the bundled model.
    """
    from scipy.optimize import nnls  # a slow import, needed only here

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
        bytes_per_token=per_token,
        weight_bytes=weight_bytes,
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
    """Return the seconds per token to load modules from disk, one after another."""
    engine.call(lambda store: store.flush())
    engine.call(lambda store: [store.device.evict(store.key(segment)) for segment in segments])
    started = time.perf_counter()
    for segment in segments:
        engine.encode([segment], into_memory=True).result().raise_failed()
    return (time.perf_counter() - started) / (len(segments) * MODULE_TOKENS)


def time_crowded(engine: Engine, segments: list[Segment], draw: Draw) -> float:
    """Return the slowdown of a pass while engines on all cores generate answers; at least 1."""
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
