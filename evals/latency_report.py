"""What the times to the first token mean: ratios, and what each document token costs."""

from statistics import linear_regression
from typing import Any

from evals.markdown_sections import table

Row = dict[str, Any]


def slopes(rows: list[Row]) -> list[Row]:
    """Milliseconds to the first token for each document token (least squares over the smallest times), for every arm
    measured at two lengths or more. of_full_prefill: as a share of that arm's; None if it was not measured.
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
    """A row as a line of progress."""
    rate = f"  decode {row['decode_tokens_per_s']:6.1f} tokens/s" if row["decode_tokens_per_s"] else ""
    faster = f"  {row['faster']:5.1f} times as fast as full prefill" if row["faster"] else ""
    return (
        f"{row['model']}  {row['threads']} threads  {row['document_tokens']:5d} document tokens  {row['arm']:14s}"
        f" first token min {row['ttft_ms_min']:9.1f} ms  median {row['ttft_ms_median']:9.1f} ms"
        f"{faster}  {row['times_floor']:4.1f} of the floor{rate}"
    )


def markdown(result: dict[str, Any], command: str) -> str:
    """The result as a section of docs/evidence.md."""
    columns = {
        "model": "model",
        "threads": "threads",
        "document_tokens": "document tokens",
        "arm": "arm",
        "ttft_ms_min": "first token, least, ms",
        "ttft_ms_median": "median, ms",
        "faster": "times as fast as full prefill",
        "times_floor": "times the floor",
    }
    decoded = [row for row in result["rows"] if row["decode_tokens_per_s"] is not None]
    rate = {"decode_tokens_per_s": "then, tokens/s"} if decoded else {}
    cost = {
        "model": "model",
        "threads": "threads",
        "arm": "arm",
        "microseconds": "microseconds for each document token",
        "share": "of full prefill's",
    }
    slope_rows = [
        {
            **row,
            "microseconds": 1e3 * row["ms_per_token"],
            "share": None if row["of_full_prefill"] is None else f"{row['of_full_prefill']:.2%}",
        }
        for row in result["slopes"]
    ]
    peer = f" llama.cpp: {result['llama_cpp']}." if result["llama_cpp"] else ""
    return (
        f"`{command}` on {result['machine']}; {result['dtype']}, the documents in a new order in every request, a "
        f"question of {result['rows'][0]['question_tokens']} tokens.{peer}\n\n"
        + table(result["rows"], columns | rate)
        + (
            "\n\nThe time to the first token grows by, least squares:\n\n" + table(slope_rows, cost)
            if slope_rows
            else ""
        )
    )
