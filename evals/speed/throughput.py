"""The load test: many clients at once, each asking one question after another about a few passages.

Passages are drawn from all documents by Zipf, in a new order for each question, and are warm (already encoded). A new
client starts every tenth of a second, and answers have 0.5 to 1.5 times the mean length, because real clients do not
start at the same moment and do not get equal answers. Every arm gets the same prompts and generates the same numbers of
tokens, sampled the same way. Arms:
  warmdesk             this engine
  transformers         its continuous batching, which reuses common prefixes
  llama.cpp same file  its server on the same GGUF file, with as many slots as this engine has at most,
                       prefix cache and cache_reuse
The time to the first token is from the question to the first piece of text, at the client. Out of scope: search, HTTP.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from app.domain.settings import Settings
from cache.engine.engine import Engine
from cache.engine.request import Limits, Request
from cache.errors import EngineFull
from cache.prompt.plan import Plan
from evals.peers.llama_cpp import SAME_FILE, LlamaCpp
from evals.peers.random_prompts import RandomDocuments, Zipf, answer_of, token_ids, tokens
from evals.peers.transformers_peer import ContinuousBatching, TransformersPeer
from evals.report import percentile, table
from evals.speed.models import Deadline, Floor, Measured, ModelCost, describe_floor, limits_in_words, warm_engine

MODULE_TOKENS, QUESTION_TOKENS = 200, 24
ARMS = ("warmdesk", SAME_FILE, "transformers")
START_EVERY_S = 0.1  # seconds between the first questions of two clients

Row = dict[str, Any]
Ask = Callable[[Plan, int], float | None]
"""Requests an answer of N tokens and waits for its end. Returns seconds to its first piece, None if refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """Settings of the load test. documents: total number. passages: number per prompt. zipf: exponent. answer_tokens:
    mean length. requests: total number; None: four per client, at least eight.
    """

    documents: int = 50
    passages: int = 4
    zipf: float = 1.0
    answer_tokens: int = 48
    requests: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return self.passages * MODULE_TOKENS

    def num_requests(self, clients: int) -> int:
        return self.requests or max(8, 4 * clients)

    def draw_answers(self, count: int) -> list[int]:
        rng = random.Random(2)
        return [rng.randint(-(-self.answer_tokens // 2), self.answer_tokens * 3 // 2) for _ in range(count)]


def measure_throughput(
    *,
    settings: Settings,
    clients: Sequence[int],
    load: LoadTest,
    arms: Sequence[str],
    llama_cpp: LlamaCpp | None,
    report: Callable[[str], None],
) -> dict[str, Any]:
    deadline, measured = Deadline(report), Measured.load(settings, report)
    floor = measured.floor()
    vocabulary = measured.model.info.vocabulary
    documents = RandomDocuments.make(load.documents * MODULE_TOKENS, vocabulary, random.Random(0), MODULE_TOKENS)
    opened: dict[str, Callable[[int], AbstractContextManager[Ask]]] = {
        "warmdesk": lambda count: open_warmdesk(measured, documents, load, count),
        "transformers": lambda count: open_transformers(settings, load, count),
    }
    if llama_cpp is not None:
        opened[SAME_FILE] = lambda count: open_llama_cpp(llama_cpp, load, floor.threads, count)
    rows: list[Row] = []
    for count in clients:
        plans = draw_plans(documents, load, vocabulary, load.num_requests(count) + 1)
        allowed = allowed_rate(measured.cost, floor, load, count)
        for arm in [arm for arm in arms if arm in opened and deadline.allows(f"{count} clients, {arm}")]:
            with opened[arm](count) as ask:
                ask(plans[0], load.answer_tokens)  # the first answer is slower and does not count
                answers = load.draw_answers(len(plans) - 1)
                rows.append(run_load(arm, ask, [*zip(plans[1:], answers, strict=True)], count, allowed))
            report(
                "{clients:3d} clients  {arm:20s} {tokens_per_s:7.1f} tokens/s  first token p50 {ttft_ms_p50:9.1f} ms  "
                "p95 {ttft_ms_p95:9.1f} ms  {refused} of {requests} refused".format(**rows[-1])
            )
    return {
        **measured.described(),
        "floor": describe_floor(floor),
        "llama_cpp": None if llama_cpp is None else llama_cpp.version,
        "load": {**asdict(load), "module_tokens": MODULE_TOKENS, "question_tokens": QUESTION_TOKENS},
        "rows": rows,
    }


def draw_plans(documents: RandomDocuments, load: LoadTest, vocabulary: int, count: int) -> list[Plan]:
    rng, popularity = random.Random(1), Zipf(load.zipf, documents.modules)
    return [
        documents.plan(tokens(QUESTION_TOKENS, vocabulary, rng), popularity.draw_different(load.passages, rng))
        for _ in range(count)
    ]


def run_load(arm: str, ask: Ask, asked: Sequence[tuple[Plan, int]], clients: int, allowed: float) -> Row:
    """Send all prompts, each with its number of answer tokens, from `clients` clients at once. allowed: the machine's
    limit in tokens per second; of_floor is the share of it.
    """

    def ask_in_turn(number: int) -> float | None:
        if number < clients:
            time.sleep(START_EVERY_S * number)
        return ask(*asked[number])

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        times = [*pool.map(ask_in_turn, range(len(asked)))]
    seconds = time.perf_counter() - started
    first = [ttft * 1e3 for ttft in times if ttft is not None]
    rate = sum(tokens for (_, tokens), ttft in zip(asked, times, strict=True) if ttft is not None) / seconds
    return {
        "arm": arm,
        "clients": clients,
        "requests": len(asked),
        "tokens_per_s": round(rate, 1),
        "requests_per_s": round(len(first) / seconds, 3),
        "ttft_ms_p50": round(percentile(first, 50), 1),
        "ttft_ms_p95": round(percentile(first, 95), 1),
        "refused": len(asked) - len(first),
        "of_floor": round(rate / allowed, 3),
    }


@contextmanager
def open_warmdesk(measured: Measured, documents: RandomDocuments, load: LoadTest, clients: int) -> Iterator[Ask]:
    own = (load.num_requests(clients) + clients + 1) * (QUESTION_TOKENS + 2 * load.answer_tokens)
    room = (load.documents + 1) * MODULE_TOKENS + own
    with warm_engine(measured.model, 2 * room, documents.modules) as engine:
        yield lambda plan, count: ask_engine(engine, plan, count)


def ask_engine(engine: Engine, plan: Plan, answer_tokens: int) -> float | None:
    started = time.perf_counter()
    pieces = iter(engine.submit(Request(plan=plan, sampling=answer_of(answer_tokens))))
    try:
        next(pieces, None)  # a short answer may have no text
    except EngineFull:
        return None
    ttft = time.perf_counter() - started
    for _ in pieces:
        pass
    return ttft


@contextmanager
def open_transformers(settings: Settings, load: LoadTest, clients: int) -> Iterator[Ask]:
    one = load.prompt_tokens + MODULE_TOKENS + QUESTION_TOKENS + 2 * load.answer_tokens
    hf = TransformersPeer.load(settings).hf
    with ContinuousBatching(hf, tokens=2 * one * min(clients, Limits().running)) as batching:
        yield lambda plan, count: batching.answer(token_ids(plan), count)


@contextmanager
def open_llama_cpp(llama_cpp: LlamaCpp, load: LoadTest, threads: int, clients: int) -> Iterator[Ask]:
    context = load.prompt_tokens + MODULE_TOKENS + QUESTION_TOKENS + 2 * load.answer_tokens
    slots = min(clients, Limits().running)
    with llama_cpp.serve(threads=threads, slots=slots, context=context) as server:
        yield lambda plan, count: server.answer(token_ids(plan), count).ttft_s


def allowed_rate(cost: ModelCost, floor: Floor, load: LoadTest, clients: int) -> float:
    """Return the machine's limit in tokens per second: questions computed, answers decoded, everything else cached."""
    running = min(clients, Limits().running)
    placed = load.prompt_tokens + MODULE_TOKENS
    own = QUESTION_TOKENS + load.answer_tokens // 2
    shared = min(load.documents, running * load.passages) * MODULE_TOKENS
    decode = load.answer_tokens / cost.decode_rate(
        floor, conversations=running, seen=placed + own, stored=shared + running * own
    )
    return load.answer_tokens / (decode + cost.first_token_ms(floor, computed=QUESTION_TOKENS, placed=placed) / 1e3)


def markdown(result: dict[str, Any], command: str) -> str:
    load, floor = result["load"], result["floor"]
    columns = {
        "clients": "at once",
        "arm": "arm",
        "requests": "questions",
        "tokens_per_s": "tokens/s",
        "ratio": "times one",
        "of_floor": "of the floor",
        "ttft_ms_p50": "first token, median, ms",
        "ttft_ms_p95": "95 %, ms",
        "refused": "refused",
    }
    fewest = {row["arm"]: row["tokens_per_s"] for row in reversed(result["rows"])}
    rows = [{**row, "ratio": row["tokens_per_s"] / fewest[row["arm"]]} for row in result["rows"]]
    return (
        f"`{command}` on {result['machine']}; {result['model']}, {result['dtype']}; {load['passages']} of "
        f"{load['documents']} warm passages of {load['module_tokens']} tokens, Zipf {load['zipf']}, questions of "
        f"{load['question_tokens']} tokens, answers of {load['answer_tokens']} on average. "
        f"llama.cpp: {result['llama_cpp']}. "
        f"The floor of the machine: {limits_in_words(floor)}.\n\n" + table(rows, columns, of_floor=".0%")
    )
