"""KV memory of conversations that share modules: slots of the arena in use, against one copy of the modules and what
each conversation has of its own, and against a copy for each.

All conversations have the same modules, each in an order of its own, and answer at the same time. Counted is the most
that was in use at any moment until all have ended. Not covered: weights, and what the program needs beside.
"""

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cache.engine.request import Request
from cache.memory.store import Store
from evals.peers.random_prompts import RandomDocuments, answer_of, tokens
from evals.report import describe_machine, table
from evals.speed.models import Measured, warm_engine

MODULE_TOKENS, QUESTION_TOKENS = 256, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Tokens of KV memory. shared: one copy of system text and modules. private: questions and answers. used: the most
    in use. separate: what a copy of the modules for each conversation would take. ratio: used / (shared + private).
    """

    conversations: int
    modules: int
    shared_tokens: int
    private_tokens: int
    used_tokens: int
    separate_tokens: int
    ratio: float
    used_mib: float


def measure_memory(
    *, model: str | None, converted: Path, conversations: int, modules: int, answer_tokens: int
) -> dict[str, Any]:
    """Answer all conversations at once and count; the result is ready for JSON."""
    measured = Measured.load(model, converted)
    row = measure_conversations(measured, conversations, modules, answer_tokens)
    return {
        "machine": describe_machine(),
        "model": measured.model.info.name,
        "dtype": measured.dtype,
        "rows": [asdict(row)],
    }


def measure_conversations(measured: Measured, conversations: int, modules: int, answer_tokens: int) -> MemoryRow:
    """Of a loaded model."""
    rng, info = random.Random(0), measured.model.info
    documents = RandomDocuments.make(modules * MODULE_TOKENS, info.vocabulary, rng, MODULE_TOKENS)
    plans = [documents.shuffled(tokens(QUESTION_TOKENS, info.vocabulary, rng), rng) for _ in range(conversations)]
    separate = sum(plan.num_tokens + answer_tokens for plan in plans)
    private = conversations * (QUESTION_TOKENS + answer_tokens)
    shared = (separate - private) // conversations
    with warm_engine(measured.model, 2 * separate, documents.modules) as engine:
        answers = [engine.submit(Request(plan=plan, sampling=answer_of(answer_tokens))) for plan in plans]
        used = 0
        for answer in answers:
            for _ in answer:
                used = max(used, engine.call(slots_in_use))
        used = max(used, engine.call(slots_in_use))
    return MemoryRow(
        conversations=conversations,
        modules=modules,
        shared_tokens=shared,
        private_tokens=private,
        used_tokens=used,
        separate_tokens=separate,
        ratio=round(used / (shared + private), 3),
        used_mib=round(used * info.kv.bytes_per_token / 2**20, 1),
    )


def slots_in_use(store: Store) -> int:
    """Slots of the arena that are not free."""
    return store.device.allocator.capacity - store.device.allocator.free_slots


def markdown(result: dict[str, Any], command: str) -> str:
    """The result as a section of docs/evidence.md."""
    columns = {
        "conversations": "conversations",
        "modules": "modules",
        "shared_tokens": "one copy, tokens",
        "private_tokens": "questions and answers, tokens",
        "used_tokens": "used at most, tokens",
        "ratio": "ratio",
        "separate_tokens": "with a copy for each, tokens",
        "used_mib": "used, MiB",
    }
    rows = [{**row, "ratio": f"{row['ratio']:.2f}"} for row in result["rows"]]
    return (
        f"`{command}`: {result['model']}, {result['dtype']}, modules of {MODULE_TOKENS} tokens. It counts slots and "
        "does not depend on the machine.\n\n" + table(rows, columns)
    )
