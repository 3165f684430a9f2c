"""Memory of conversations that share modules: slots of the KV pool in use, compared with one copy of the modules and
the private tokens of each conversation, and with a copy for each conversation.

All conversations have the same modules in different orders, and answer at the same time. The figure is the maximum in
use until all have ended. The resident memory is also measured, of this process and of llama.cpp's server with the same
file and room for one such conversation, after an answer.
"""

import random
from typing import Any

import torch

from app.domain.settings import Settings
from evals.peers.llama_cpp import SAME_FILE, LlamaCpp, resident_bytes
from evals.peers.random_prompts import RandomDocuments, tokens
from evals.report import table
from evals.speed.models import Measured, Report, most_slots_used, warm_engine

MODULE_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 256, 24, 32


def measure_memory(
    settings: Settings, conversations: int, modules: int, llama_cpp: LlamaCpp | None, report: Report
) -> dict[str, Any]:
    """Return counts of tokens, and the resident memory of each program in MiB."""
    before, measured = resident_bytes(), Measured.load(settings, report)
    report(f"{conversations} conversations with {modules} modules")
    row = measure_conversations(measured, conversations, modules)
    resident = {"warmdesk": resident_bytes(), "warmdesk, before the model": before}
    if llama_cpp is not None:
        report(SAME_FILE)
        room = modules * MODULE_TOKENS + 256
        with llama_cpp.serve(threads=torch.get_num_threads(), slots=1, context=room) as server:
            server.answer([*range(5, 5 + modules * MODULE_TOKENS)], ANSWER_TOKENS)
            resident[SAME_FILE] = server.resident_bytes
    return {**measured.described(), "resident_mib": {name: one >> 20 for name, one in resident.items()}, "rows": [row]}


def measure_conversations(measured: Measured, conversations: int, modules: int) -> dict[str, float]:
    """Measure KV memory in tokens. ratio: used / (shared + private)."""
    rng, info = random.Random(0), measured.model.info
    documents = RandomDocuments.make(modules * MODULE_TOKENS, info.vocabulary, rng, MODULE_TOKENS)
    plans = [documents.shuffled(tokens(QUESTION_TOKENS, info.vocabulary, rng), rng) for _ in range(conversations)]
    separate = sum(plan.num_tokens + ANSWER_TOKENS for plan in plans)
    private = conversations * (QUESTION_TOKENS + ANSWER_TOKENS)
    shared = (separate - private) // conversations
    with warm_engine(measured.model, 2 * separate, documents.modules) as engine:
        used = most_slots_used(engine, plans, ANSWER_TOKENS)
    return {
        "conversations": conversations,
        "modules": modules,
        "shared_tokens": shared,
        "private_tokens": private,
        "used_tokens": used,
        "separate_tokens": separate,
        "ratio": round(used / (shared + private), 3),
        "used_mib": round(used * info.kv.bytes_per_token / 2**20, 1),
    }


def markdown(result: dict[str, Any], command: str) -> str:
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
    resident = ", ".join(f"{name} {one:,} MiB" for name, one in result["resident_mib"].items())
    return (
        f"`{command}`: {result['model']}, {result['dtype']}, modules of {MODULE_TOKENS} tokens. It counts slots and "
        "does not depend on the machine.\n\n"
        + table(result["rows"], columns, ratio=".2f")
        + f"\n\nResident memory: {resident}."
    )
