"""How long a customer waits for the first token while many passages are encoded ahead of use, beside an idle desk.

    python -m evals.encoding_ahead [--documents 5000] [--questions 40]

One customer asks again and again, with a pause between, about a few of the passages that are warm; first with nothing
else to do, then while the engine encodes passages that nobody waits for. Prints one JSON document. Not covered: search,
the web.
"""

import argparse
import json
import os
import random
import time
from dataclasses import asdict, dataclass

from app.domain.settings import load_settings
from cache.engine.engine import Engine
from cache.prompt.plan import Plan
from evals.machine import describe_machine
from evals.measured_model import Measured, warm_engine
from evals.random_prompts import RandomDocuments, tokens
from evals.throughput import MODULE_TOKENS, QUESTION_TOKENS, ask_engine, percentile

PASSAGES, WARM, ANSWER_TOKENS, PAUSE_S = 4, 50, 12, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """Milliseconds to the first token."""

    median: float
    p95: float


def measure(measured: Measured, documents: int, questions: int) -> dict[str, object]:
    """Both; `ratio` is of the 95th percentiles. evicted_meanwhile: passages that had to go for those encoded."""
    vocabulary, rng = measured.model.info.vocabulary, random.Random(0)
    warm = RandomDocuments.make(WARM * MODULE_TOKENS, vocabulary, rng, MODULE_TOKENS)
    cold = RandomDocuments.make(documents * MODULE_TOKENS, vocabulary, rng, MODULE_TOKENS).modules
    plans = [
        warm.plan(tokens(QUESTION_TOKENS, vocabulary, rng), rng.sample(warm.modules, PASSAGES))
        for _ in range(2 * questions + 1)
    ]
    with warm_engine(measured.model, 4 * WARM * MODULE_TOKENS, warm.modules) as engine:
        engine.keep({engine.store.key(segment) for segment in (warm.system, *warm.modules)})
        ask_engine(engine, plans[0], ANSWER_TOKENS)  # a first answer is slower, and is not counted
        idle = ask_all(engine, plans[1 : questions + 1])
        before = engine.call(lambda store: store.device.evictions["module"])
        engine.encode(cold)
        busy = ask_all(engine, plans[questions + 1 :])
        was_busy = not engine.is_idle
        evicted = engine.call(lambda store: store.device.evictions["module"]) - before
    return {
        "machine": describe_machine(),
        "model": measured.model.info.name,
        "questions": questions,
        "idle_ms": asdict(idle),
        "encoding_ms": asdict(busy),
        "ratio": round(busy.p95 / idle.p95, 2),
        "evicted_meanwhile": evicted,
        "still_encoding": was_busy,
    }


def ask_all(engine: Engine, plans: list[Plan]) -> FirstTokens:
    """One after another."""
    times = []
    for plan in plans:
        time.sleep(PAUSE_S)
        ttft = ask_engine(engine, plan, ANSWER_TOKENS)
        assert ttft is not None
        times.append(ttft * 1e3)
    return FirstTokens(median=round(percentile(times, 0.5), 1), p95=round(percentile(times, 0.95), 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--questions", type=int, default=40)
    asked = parser.parse_args()
    settings = load_settings({}, os.environ)
    measured = Measured.load(settings.model, settings.models_folder)
    print(json.dumps(measure(measured, asked.documents, asked.questions)))


if __name__ == "__main__":
    main()
