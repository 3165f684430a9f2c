"""The model under test, with answers that always have the requested length, engines for it, and an end in time."""

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.domain.settings import Settings
from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Completion, Request, Reuse
from cache.memory.store import Store
from cache.model.language_model import Model
from cache.model.loading import (
    bundled_gguf,
    find_device,
    load_model,
    load_packed,
    load_stock,
    open_gguf,
)
from cache.native.decoder import load_library
from cache.prompt.plan import Plan, Segment
from evals.peers.random_prompts import answer_of, no_stop_tokens
from evals.report import describe_machine
from evals.speed.floor import Floor, ModelCost, measure_floor

TIME_S = 180  # seconds in which parts of a measurement may begin; each ends within two minutes, so all within five
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A model, and the cost of its passes."""

    model: Model
    cost: ModelCost
    library: ctypes.CDLL | None = None

    @classmethod
    def load(cls, settings: Settings, report: Report = print) -> "Measured":
        """Load a model as a desk does, but without an adapter. A GGUF file runs as it is."""
        name, converted = settings.model, settings.models_folder
        report(f"loading {name or 'the bundled model'}")
        if (model := load_packed(name, converted, None)) is None:
            hf, _, _ = load_stock(name, device=find_device("cpu"), converted=converted)
            cost, other = ModelCost.of(hf), load_model(name, device="cpu", converted=converted)
            other.info = no_stop_tokens(other.info)
            return cls(model=other, cost=cost)
        model.info = no_stop_tokens(model.info)
        path = bundled_gguf() if name is None else Path(name).expanduser()
        library = load_library(converted, torch.bfloat16)
        return cls(model=model, cost=ModelCost.of_file(open_gguf(path)), library=library)

    def floor(self) -> Floor:
        return measure_floor(self.model.info.kv.dtype, self.library)

    def described(self) -> dict[str, str]:
        info = self.model.info
        dtype = "its own bits" if self.library else str(info.kv.dtype).removeprefix("torch.")
        return {"machine": describe_machine(), "model": info.name, "dtype": dtype}


class Deadline:
    """Ends a measurement in time: what begins too late is left out, and said. report: called with a line."""

    def __init__(self, report: Report, seconds: float = TIME_S) -> None:
        self._report, self._end = report, time.monotonic() + seconds

    def allows(self, what: str) -> bool:
        if time.monotonic() < self._end:
            return True
        self._report(f"left out, because the time is over: {what}")
        return False


@contextmanager
def warm_engine(model: Model, tokens: int, segments: Sequence[Segment] = (), **options: Any) -> Iterator[Engine]:
    """Open an engine with KV memory for `tokens` tokens and encode the segments. options: passed to `Engine`."""
    engine = Engine(model, memory=tokens * model.info.kv.bytes_per_token, **options).start()
    try:
        if segments:
            engine.encode(segments).result()
        yield engine
    finally:
        engine.close()


def first_token(engine: Engine, plan: Plan, reuse: Reuse = "on") -> Completion:
    return engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=1), reuse=reuse)).completion


def decode_rate(engine: Engine, plans: Sequence[Plan], sampling: Sampling, reuse: Reuse = "on") -> float:
    """Answer all prompts at once. Returns the tokens after the first of each answer, per second from the first token of
    all to the last of all.
    """
    started, answers = [], []
    for plan in plans:
        started.append(time.perf_counter())
        answers.append(engine.submit(Request(plan=plan, sampling=sampling, reuse=reuse)))
    timings = [answer.completion.timings for answer in answers]
    first = min(at + 1e-3 * timing.ttft for at, timing in zip(started, timings, strict=True))
    last = max(at + 1e-3 * timing.total for at, timing in zip(started, timings, strict=True))
    return len(plans) * (sampling.max_tokens - 1) / (last - first)


def most_slots_used(engine: Engine, plans: Sequence[Plan], answer_tokens: int) -> int:
    answers = [engine.submit(Request(plan=plan, sampling=answer_of(answer_tokens))) for plan in plans]
    used = 0
    for answer in answers:
        for _ in answer:
            used = max(used, engine.call(_slots_in_use))
    return max(used, engine.call(_slots_in_use))


def _slots_in_use(store: Store) -> int:
    return store.device.allocator.capacity - store.device.allocator.free_slots
