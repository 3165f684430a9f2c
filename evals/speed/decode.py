"""Measure tokens per second of decoding after placed documents: one answer, and several at the same time.

All conversations have the same documents in different orders. Their prompts were computed before, so that only decoding
counts: this engine places the documents, llama.cpp has each prompt in its own slot. Arms:
  warmdesk             this engine
  llama.cpp same file  its server on the same GGUF file
  transformers         `generate` with its cache, on the weights in floating point; one answer at a time
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from app.domain.settings import Settings
from cache.prompt.plan import Plan
from evals.peers.llama_cpp import SAME_FILE, LlamaCpp, LlamaServer
from evals.peers.random_prompts import SYSTEM_TOKENS, RandomDocuments, answer_of, token_ids, tokens
from evals.peers.transformers_peer import TransformersPeer
from evals.report import table
from evals.speed.models import Deadline, Measured, decode_rate, describe_floor, limits_in_words, warm_engine

QUESTION_TOKENS, ANSWER_TOKENS = 24, 64
ARMS = ("warmdesk", SAME_FILE, "transformers")

Measure = Callable[[], float]  # tokens per second of all conversations together, measured once


def measure_decode(
    *,
    settings: Settings,
    documents: int,
    conversations: Sequence[int],
    repeats: int,
    arms: Sequence[str],
    llama_cpp: LlamaCpp | None,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Run all arms; the result is ready for JSON. documents: tokens. llama_cpp: None omits it. In the rows of the
    result, tokens_per_s is the total of all conversations, the best of the repeats. of_floor: its share of the
    machine's limit for these weights.
    """
    deadline, measured = Deadline(report), Measured.load(settings, report)
    floor = measured.floor()
    rng, vocabulary = random.Random(documents), measured.model.info.vocabulary
    texts = RandomDocuments.make(documents, vocabulary, rng)
    context = SYSTEM_TOKENS + documents + QUESTION_TOKENS
    rows: list[dict[str, Any]] = []
    for count in conversations:
        plans = [texts.shuffled(tokens(QUESTION_TOKENS, vocabulary, rng), rng) for _ in range(count)]
        own = QUESTION_TOKENS + ANSWER_TOKENS // 2
        allowed = measured.cost.decode_rate(
            floor, conversations=count, seen=context + ANSWER_TOKENS // 2, stored=documents + count * own
        )
        opened: dict[str, Callable[[], AbstractContextManager[Measure]]] = {
            "warmdesk": partial(open_warmdesk, measured, texts, plans, repeats)
        }
        if count == 1:
            opened["transformers"] = partial(open_transformers, settings, plans[0])
        if llama_cpp is not None:
            opened[SAME_FILE] = partial(open_llama_cpp, llama_cpp, floor.threads, plans)
        for arm in [arm for arm in arms if arm in opened and deadline.allows(f"{count} conversations, {arm}")]:
            with opened[arm]() as measure:
                rate = max(measure() for _ in range(repeats))
            rows.append(
                {
                    "arm": arm,
                    "conversations": count,
                    "context_tokens": context,
                    "tokens_per_s": round(rate, 1),
                    "of_floor": round(rate / allowed, 3),
                }
            )
            report(f"{count:2d} conversations  {arm:20s} {rate:7.1f} tokens/s")
    return {
        **measured.described(),
        "floor": describe_floor(floor),
        "llama_cpp": None if llama_cpp is None else llama_cpp.version,
        "answer_tokens": ANSWER_TOKENS,
        "repeats": repeats,
        "rows": rows,
    }


@contextmanager
def open_warmdesk(measured: Measured, texts: RandomDocuments, plans: Sequence[Plan], repeats: int) -> Iterator[Measure]:
    own = SYSTEM_TOKENS + QUESTION_TOKENS + ANSWER_TOKENS
    room = sum(len(module.tokens) for module in texts.modules) + (repeats + 2) * len(plans) * own
    with warm_engine(measured.model, 2 * room, texts.modules) as engine:
        decode_rate(engine, plans, answer_of(ANSWER_TOKENS))
        yield lambda: decode_rate(engine, plans, answer_of(ANSWER_TOKENS))


@contextmanager
def open_transformers(settings: Settings, plan: Plan) -> Iterator[Measure]:
    transformers = TransformersPeer.load(settings)
    yield lambda: transformers.decode_rate(token_ids(plan), ANSWER_TOKENS)


@contextmanager
def open_llama_cpp(llama_cpp: LlamaCpp, threads: int, plans: Sequence[Plan]) -> Iterator[Measure]:
    context = plans[0].num_tokens + ANSWER_TOKENS + 8
    with llama_cpp.serve(threads=threads, slots=len(plans), context=context) as server:
        for slot, plan in enumerate(plans):
            server.answer(token_ids(plan), 1, slot)
        answers = [partial(served_times, server, plan, slot) for slot, plan in enumerate(plans)]
        yield lambda: served_rate(answers)


def served_times(server: LlamaServer, plan: Plan, slot: int) -> tuple[float, float]:
    started = time.perf_counter()
    served = server.answer(token_ids(plan), ANSWER_TOKENS, slot)
    return started + served.ttft_s, started + served.total_s


def served_rate(answers: Sequence[Callable[[], tuple[float, float]]]) -> float:
    """Return tokens per second without each answer's first token, from the earliest first token to the last token."""
    with ThreadPoolExecutor(len(answers)) as pool:
        times = [future.result() for future in [pool.submit(answer) for answer in answers]]
    seconds = max(last for _, last in times) - min(first for first, _ in times)
    return len(times) * (ANSWER_TOKENS - 1) / seconds


def markdown(result: dict[str, Any], command: str) -> str:
    floor = result["floor"]
    columns = {
        "conversations": "at once",
        "arm": "arm",
        "tokens_per_s": "tokens/s",
        "ratio": "warmdesk / arm",
        "of_floor": "of the floor",
    }
    rates = {(row["arm"], row["conversations"]): row["tokens_per_s"] for row in result["rows"]}
    ours = [rates.get(("warmdesk", row["conversations"])) for row in result["rows"]]
    rows = [
        {**row, "ratio": None if rate is None else rate / row["tokens_per_s"]}
        for rate, row in zip(ours, result["rows"], strict=True)
    ]
    return (
        f"`{command}` on {result['machine']}; {result['model']}, {result['dtype']}; after "
        f"{result['rows'][0]['context_tokens']:,} tokens, {result['answer_tokens']} new ones, "
        f"best of {result['repeats']}. llama.cpp: {result['llama_cpp']}. The floor of the machine: "
        f"{limits_in_words(floor)}.\n\n" + table(rows, columns, ratio=".2f", of_floor=".0%")
    )
