"""Time to the first token, with documents reused and not, against transformers on the same weights.

Every request asks a new question of `question_tokens` about the same documents in a new order, the situation of a
support desk. Arms:
  full_prefill   transformers computes the whole prompt (its default attention, a fresh cache)
  no_reuse       this engine computes the whole prompt
  prefix_cache   transformers keeps the previous request's cache and computes what is behind the common prefix
  reuse          this engine places the documents it has read before and computes the question
  llama.cpp bf16  llama.cpp's server with its prefix cache and cache_reuse; at one size
Encoding the documents is not part of `reuse`; it is reported apart, because it is paid once.

Decoding is measured behind the same prompt: transformers' `generate` with its cache, against the engine.
Prompts are random token ids, which take the same time as text. Not covered: quality, retrieval, disk.
"""

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Request, Reuse
from cache.prompt.plan import Plan
from evals.floor import Floor, ModelCost, describe_floor, measure_floor
from evals.llama_cpp import LlamaCpp
from evals.machine import describe_machine
from evals.measured_model import Measured
from evals.random_prompts import MODULE_TOKENS, SYSTEM_TOKENS, RandomDocuments, token_ids, tokens
from evals.threads import using_threads
from evals.transformers_peer import TransformersPeer

LLAMA_CPP = "llama.cpp bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRow:
    """One arm at one size. times_floor: ttft_ms_min over what the machine allows for the rows that it computes: with
    reuse the question, else all. decode_tokens_per_s: the best of the repeats, None where it was not measured.
    """

    arm: str
    threads: int
    document_tokens: int
    question_tokens: int
    ttft_ms_min: float
    ttft_ms_median: float
    runs: int
    times_floor: float
    decode_tokens_per_s: float | None = None


class Ours:
    """The engine under test."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def first_token(self, plan: Plan, reuse: Reuse) -> float:
        """Seconds to the first token."""
        request = Request(plan=plan, sampling=Sampling(max_tokens=1), reuse=reuse)
        return self.engine.submit(request).completion.timings.ttft / 1e3

    def decode_rate(self, plan: Plan, new_tokens: int, reuse: Reuse) -> float:
        """Tokens per second after the first."""
        request = Request(plan=plan, sampling=Sampling(max_tokens=new_tokens + 1), reuse=reuse)
        completion = self.engine.submit(request).completion
        seconds = (completion.timings.total - completion.timings.ttft) / 1e3
        return (completion.usage.completion_tokens - 1) / seconds


def measure(
    *,
    model: str | None,
    converted: Path,
    sizes: tuple[int, ...],
    threads: tuple[int, ...],
    question_tokens: int,
    repeats: int,
    decode_at: int,
    llama_cpp: LlamaCpp | None,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Run all arms; the result is ready for JSON. decode_at: the size at which decoding and llama.cpp are measured,
    too. llama_cpp: None leaves it out. report: called with a line per finished row.
    """
    measured, baseline = Measured.load(model, converted), TransformersPeer.load(model, converted)
    rows: list[LatencyRow] = []
    floors: list[Floor] = []
    for count in threads:
        with using_threads(count):
            floors.append(measure_floor(measured.model.info.kv.dtype))
            for size in sizes:
                memory = (2 * size + 4096) * measured.model.info.kv.bytes_per_token
                engine = Engine(measured.model, memory=memory).start()
                peer = llama_cpp if size == decode_at else None
                try:
                    for row in measure_size(
                        baseline,
                        Ours(engine),
                        size,
                        floors[-1],
                        measured.cost,
                        question_tokens,
                        repeats,
                        decode=size == decode_at,
                        llama_cpp=peer,
                    ):
                        rows.append(row)
                        report(describe(row))
                finally:
                    engine.close()
    return {
        "machine": describe_machine(),
        "model": measured.model.info.name,
        "dtype": measured.dtype,
        "module_tokens": MODULE_TOKENS,
        "system_tokens": SYSTEM_TOKENS,
        "llama_cpp": None if llama_cpp is None else llama_cpp.version,
        "floors": [describe_floor(floor) for floor in floors],
        "rows": [asdict(row) for row in rows],
    }


def measure_size(
    baseline: TransformersPeer,
    ours: Ours,
    size: int,
    floor: Floor,
    cost: ModelCost,
    question_tokens: int,
    repeats: int,
    *,
    decode: bool,
    llama_cpp: LlamaCpp | None,
) -> Iterator[LatencyRow]:
    """All arms for documents of one size, in turn within each repeat so that drift of the machine hits all alike."""
    rng = random.Random(size)
    vocabulary = ours.engine.model.info.vocabulary
    documents = RandomDocuments.make(size, vocabulary, rng)
    context = SYSTEM_TOKENS + size

    def plan() -> Plan:
        return documents.shuffled(tokens(question_tokens, vocabulary, rng), rng)

    def prompt() -> list[int]:
        return token_ids(plan())

    arms: dict[str, Callable[[], float]] = {
        "full_prefill": lambda: baseline.first_token(prompt(), keep=False),
        "no_reuse": lambda: ours.first_token(plan(), "off"),
        "prefix_cache": lambda: baseline.first_token(prompt(), keep=True),
        "reuse": lambda: ours.first_token(plan(), "on"),
    }
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    ours.first_token(plan(), "on")  # encodes the documents
    baseline.first_token(prompt()[: 2 * question_tokens], keep=False)
    for _ in range(repeats):
        for arm, run in arms.items():
            times[arm].extend(run() for _ in range(3 if arm == "reuse" else 1))
    if llama_cpp is not None:
        room = context + question_tokens + 8
        with llama_cpp.serve("bf16", threads=floor.threads, slots=1, context=room) as server:
            server.answer(prompt(), 1)
            times[LLAMA_CPP] = [server.answer(prompt(), 1).ttft_s for _ in range(repeats)]
    rates: dict[str, float] = {}
    if decode:
        rates["full_prefill"] = max(baseline.decode_rate(prompt(), 64) for _ in range(repeats))
        rates["no_reuse"] = max(ours.decode_rate(plan(), 64, "off") for _ in range(repeats))
        rates["reuse"] = max(ours.decode_rate(plan(), 64, "on") for _ in range(repeats))
    for arm, seconds in times.items():
        is_placed = arm == "reuse"
        computed = question_tokens if is_placed else context + question_tokens
        allowed_ms = cost.first_token_ms(floor, computed=computed, placed=context if is_placed else 0)
        yield LatencyRow(
            arm=arm,
            threads=floor.threads,
            document_tokens=size,
            question_tokens=question_tokens,
            ttft_ms_min=round(min(seconds) * 1e3, 2),
            ttft_ms_median=round(statistics.median(seconds) * 1e3, 2),
            runs=len(seconds),
            times_floor=round(min(seconds) * 1e3 / allowed_ms, 2),
            decode_tokens_per_s=round(rates[arm], 1) if arm in rates else None,
        )


def describe(row: LatencyRow) -> str:
    """A row for people."""
    rate = f"  decode {row.decode_tokens_per_s:6.1f} tokens/s" if row.decode_tokens_per_s else ""
    return (
        f"{row.threads} threads  {row.document_tokens:5d} document tokens  {row.arm:14s}"
        f" first token min {row.ttft_ms_min:9.1f} ms  median {row.ttft_ms_median:9.1f} ms"
        f"  {row.times_floor:4.1f} of the floor{rate}"
    )
