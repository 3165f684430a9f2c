"""Time to the first token with and without reuse, compared with llama.cpp and transformers.

Each request asks a new question of `QUESTION_TOKENS` about the same documents in a new order, as customers do. Arms:
  no_reuse             this engine computes the whole prompt
  reuse                this engine places the encoded documents and computes the question
  llama.cpp same file  llama.cpp's server on the same GGUF file, with its prefix cache and cache_reuse
  llama.cpp without cache  the same, computing the whole prompt
  full_prefill         transformers computes the whole prompt (its default attention, an empty cache)
  prefix_cache         transformers keeps the cache of the previous request and computes what follows the common prefix
`reuse` does not include encoding the documents, which is done once.

Decoding is measured after the same prompt: `generate` of transformers with its cache, and this engine. Prompts are
random token ids, which take the same time as text. Out of scope: quality, retrieval, disk.
"""

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from statistics import linear_regression
from typing import Any

from app.domain.settings import Settings
from cache.decoding.sampling import Sampling
from cache.engine.request import Reuse
from cache.prompt.plan import Plan
from evals.peers.llama_cpp import NO_CACHE, SAME_FILE, LlamaCpp
from evals.peers.random_prompts import MODULE_TOKENS, SYSTEM_TOKENS, RandomDocuments, token_ids, tokens
from evals.peers.transformers_peer import TransformersPeer
from evals.report import table
from evals.speed.models import (
    Deadline,
    Floor,
    Measured,
    decode_rate,
    describe_floor,
    first_token,
    using_threads,
    warm_engine,
)

QUESTION_TOKENS = 24
DECODE_AT = 2048  # document tokens
TRANSFORMERS_ARMS = ("full_prefill", "prefix_cache")
ARMS = ("no_reuse", "reuse", SAME_FILE, NO_CACHE, *TRANSFORMERS_ARMS)

Row = dict[str, Any]


def measure(
    *,
    settings: Settings,
    sizes: tuple[int, ...],
    threads: tuple[int, ...],
    repeats: int,
    arms: Sequence[str],
    llama_cpp: LlamaCpp | None,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Run arms; the result is ready for JSON. llama_cpp: None omits it. report: called with a line per finished row."""
    rows: list[Row] = []
    floors: dict[int, Floor] = {}
    deadline, measured = Deadline(report), Measured.load(settings, report)
    is_needed = any(arm in TRANSFORMERS_ARMS for arm in arms)
    baseline = TransformersPeer.load(settings) if is_needed else None
    for count in threads:
        with using_threads(count):
            floor = floors[count] = measured.floor()
            for size in [size for size in sizes if deadline.allows(f"{count} threads, {size} document tokens")]:
                decode = size == DECODE_AT
                for row in measure_size(measured, baseline, llama_cpp, size, floor, repeats, decode=decode, arms=arms):
                    rows.append(row)
                    report(describe(row))
    return {
        **measured.described(),
        "module_tokens": MODULE_TOKENS,
        "system_tokens": SYSTEM_TOKENS,
        "llama_cpp": None if llama_cpp is None else llama_cpp.version,
        "floors": [describe_floor(floor) for floor in floors.values()],
        "rows": rows,
        "slopes": slopes(rows),
    }


def measure_size(
    measured: Measured,
    baseline: TransformersPeer | None,
    llama_cpp: LlamaCpp | None,
    size: int,
    floor: Floor,
    repeats: int,
    *,
    decode: bool,
    arms: Sequence[str],
) -> Iterator[Row]:
    """Measure the arms for documents of one size, in turn within each repeat so that drift affects all arms equally.
    times_floor: ttft_ms_min divided by the lower bound of the rows that an arm computes: with reuse the question, else
    all. faster: ratio to `full_prefill`, else to `no_reuse`. than_llama_cpp: ratio of medians, to its arm with or
    without cache. decode_tokens_per_s: the best of the repeats. These are None if not measured.
    """
    with warm_engine(measured.model, 2 * size + 4096) as engine:
        info = measured.model.info
        rng = random.Random(size)
        documents = RandomDocuments.make(size, info.vocabulary, rng)
        context = SYSTEM_TOKENS + size

        def plan() -> Plan:
            return documents.shuffled(tokens(QUESTION_TOKENS, info.vocabulary, rng), rng)

        def prompt() -> list[int]:
            return token_ids(plan())

        def seconds_to_first(reuse: Reuse) -> float:
            return first_token(engine, plan(), reuse).timings.ttft / 1e3

        ways: dict[str, Callable[[], float]] = {
            "no_reuse": lambda: seconds_to_first("off"),
            "reuse": lambda: seconds_to_first("on"),
        }
        if baseline is not None:
            ways["full_prefill"] = lambda: baseline.first_token(prompt(), keep=False)
            ways["prefix_cache"] = lambda: baseline.first_token(prompt(), keep=True)
        times: dict[str, list[float]] = {arm: [] for arm in ways if arm in arms}
        first_token(engine, plan())  # encodes the documents
        if baseline is not None:
            baseline.first_token(prompt()[: 2 * QUESTION_TOKENS], keep=False)
        for _ in range(repeats):
            for arm, seconds in times.items():
                seconds.extend(ways[arm]() for _ in range(3 if arm == "reuse" else 1))
        peers = {arm: arm == SAME_FILE for arm in arms if arm in (SAME_FILE, NO_CACHE)}
        if peers and llama_cpp is not None:
            room = context + QUESTION_TOKENS + 8
            with llama_cpp.serve(threads=floor.threads, slots=1, context=room) as server:
                server.answer(prompt(), 1)
                for arm, is_cached in peers.items():
                    times[arm] = [server.answer(prompt(), 1, is_cached=is_cached).ttft_s for _ in range(repeats)]
        decoded: dict[str, Callable[[], float]] = {
            "no_reuse": lambda: decode_rate(engine, [plan()], Sampling(max_tokens=65), "off"),
            "reuse": lambda: decode_rate(engine, [plan()], Sampling(max_tokens=65)),
        }
        if baseline is not None:
            decoded["full_prefill"] = lambda: baseline.decode_rate(prompt(), 64)
        rates = {arm: max(run() for _ in range(repeats)) for arm, run in decoded.items() if decode and arm in arms}
        whole = times.get("full_prefill") or times.get("no_reuse")
        for arm, seconds in times.items():
            is_placed = arm == "reuse"
            peer = times.get(SAME_FILE if arm in ("reuse", "prefix_cache", SAME_FILE) else NO_CACHE)
            computed = QUESTION_TOKENS if is_placed else context + QUESTION_TOKENS
            placed = context if is_placed else 0
            allowed_ms = measured.cost.first_token_ms(floor, computed=computed, placed=placed)
            yield {
                "model": info.name,
                "arm": arm,
                "threads": floor.threads,
                "document_tokens": size,
                "question_tokens": QUESTION_TOKENS,
                "ttft_ms_min": round(min(seconds) * 1e3, 2),
                "ttft_ms_median": round(statistics.median(seconds) * 1e3, 2),
                "runs": len(seconds),
                "times_floor": round(min(seconds) * 1e3 / allowed_ms, 2),
                "faster": None if whole is None else round(min(whole) / min(seconds), 2),
                "than_llama_cpp": None
                if peer is None
                else round(statistics.median(peer) / statistics.median(seconds), 2),
                "decode_tokens_per_s": round(rates[arm], 1) if arm in rates else None,
            }


def slopes(rows: list[Row]) -> list[Row]:
    """Return milliseconds to the first token per document token (least squares over the smallest times), for every arm
    measured at two or more lengths. of_full_prefill: as a share of the slope of `full_prefill`; None if not measured.
    """
    times: dict[tuple[str, int, str], list[tuple[int, float]]] = {}
    for row in rows:
        times.setdefault((row["model"], row["threads"], row["arm"]), []).append(
            (row["document_tokens"], row["ttft_ms_min"])
        )
    found = {
        key: linear_regression(*zip(*points, strict=True)).slope for key, points in times.items() if len(points) > 1
    }
    return [
        {
            "model": model,
            "threads": threads,
            "arm": arm,
            "ms_per_token": round(slope, 5),
            "of_full_prefill": None if (full := found.get((model, threads, "full_prefill"))) is None else slope / full,
        }
        for (model, threads, arm), slope in found.items()
    ]


def describe(row: Row) -> str:
    rate = f"  decode {row['decode_tokens_per_s']:6.1f} tokens/s" if row["decode_tokens_per_s"] else ""
    than = f"  {row['than_llama_cpp']:.1f} times as fast as llama.cpp" if row["than_llama_cpp"] else ""
    faster = f"  {row['faster']:5.1f} times as fast as the whole prompt" if row["faster"] else ""
    return (
        f"{row['model']}  {row['threads']} threads  {row['document_tokens']:5d} document tokens  {row['arm']:20s}"
        f" first token min {row['ttft_ms_min']:9.1f} ms  median {row['ttft_ms_median']:9.1f} ms"
        f"{faster}{than}  {row['times_floor']:4.1f} of the floor{rate}"
    )


def markdown(result: dict[str, Any], command: str) -> str:
    columns = {
        "model": "model",
        "threads": "threads",
        "document_tokens": "document tokens",
        "arm": "arm",
        "ttft_ms_min": "first token, least, ms",
        "ttft_ms_median": "median, ms",
        "faster": "times as fast as the whole prompt",
        "than_llama_cpp": "as llama.cpp",
        "times_floor": "times the floor",
    }
    decoded = [row for row in result["rows"] if row["decode_tokens_per_s"] is not None]
    rate = {"decode_tokens_per_s": "then, tokens/s"} if decoded else {}
    cost = {
        "model": "model",
        "threads": "threads",
        "arm": "arm",
        "microseconds": "microseconds for each document token",
        "of_full_prefill": "of full prefill's",
    }
    slope_rows = [{**row, "microseconds": 1e3 * row["ms_per_token"]} for row in result["slopes"]]
    peer = f" llama.cpp: {result['llama_cpp']}." if result["llama_cpp"] else ""
    return (
        f"`{command}` on {result['machine']}; {result['dtype']}, the documents in a new order in every request, a "
        f"question of {result['rows'][0]['question_tokens']} tokens.{peer}\n\n"
        + table(result["rows"], columns | rate)
        + (
            "\n\nThe time to the first token grows by, least squares:\n\n"
            + table(slope_rows, cost, of_full_prefill=".2%")
            if slope_rows
            else ""
        )
    )
