"""Whether memory stays as it is while modules come and go: many requests with room for a tenth of their modules.

    python -m evals.steady_memory [--modules 500] [--room 50] [--requests 2000]

Modules are drawn by Zipf, and nothing is on disk. After every request the accounting is checked: each prompt token has
one source, and each missing module one reason. Prints one JSON document. Not covered: how good the choice of what stays
is (`evals.eviction`).
"""

import argparse
import json
import os
import random
from typing import Any

import psutil

from app.domain.settings import load_settings
from cache.engine.engine import Engine
from cache.engine.request import Completion, Request
from cache.memory.store import Store
from cache.prompt.plan import Plan
from evals.machine import describe_machine
from evals.measured_model import Measured
from evals.random_prompts import RandomDocuments, Zipf, answer_of, tokens

MODULE_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS, PASSAGES = 40, 12, 4, 4
PARTS = 8
"""Of the requests; memory is read at the end of each."""


def measure(measured: Measured, modules: int, room: int, requests: int) -> dict[str, Any]:
    """resident_mib: memory of the process after each eighth of the requests. hit_rate: modules that were in memory when
    a request wanted them.
    """
    rng, info = random.Random(0), measured.model.info
    documents = RandomDocuments.make(modules * MODULE_TOKENS, info.vocabulary, rng, MODULE_TOKENS)
    popularity = Zipf(1.0, documents.modules)
    slots = (room + 2) * MODULE_TOKENS + 4 * (QUESTION_TOKENS + ANSWER_TOKENS)
    engine = Engine(measured.model, memory=slots * info.kv.bytes_per_token).start()
    hits, resident = 0, list[float]()
    try:
        for number in range(1, requests + 1):
            chosen = popularity.draw_different(PASSAGES, rng)
            plan = documents.plan(tokens(QUESTION_TOKENS, info.vocabulary, rng), chosen)
            completion = engine.submit(Request(plan=plan, sampling=answer_of(ANSWER_TOKENS))).completion
            check_accounting(plan, completion)
            hits += sum(use.miss_reason is None for use in completion.modules[1:])
            if number % max(1, requests // PARTS) == 0:
                engine.call(Store.check_integrity)
                resident.append(round(psutil.Process().memory_info().rss / 2**20, 1))
    finally:
        engine.close()
    return {
        "machine": describe_machine(),
        "model": info.name,
        "modules": modules,
        "room": room,
        "requests": requests,
        "hit_rate": round(hits / (requests * PASSAGES), 4),
        "evictions": engine.store.device.evictions["module"],
        "resident_mib": resident,
    }


def check_accounting(plan: Plan, completion: Completion) -> None:
    """Assert that every prompt token has one source, and every missing module a reason."""
    usage = completion.usage
    assert usage.prompt_tokens == plan.num_tokens == usage.computed + usage.cached_tokens, usage
    for use in completion.modules:
        assert (use.miss_reason is None) == (use.source != "computed"), use


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=500)
    parser.add_argument("--room", type=int, default=50)
    parser.add_argument("--requests", type=int, default=2000)
    asked = parser.parse_args()
    settings = load_settings({}, os.environ)
    measured = Measured.load(settings.model, settings.models_folder)
    print(json.dumps(measure(measured, asked.modules, asked.room, asked.requests)))


if __name__ == "__main__":
    main()
