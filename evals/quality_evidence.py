"""Tables and plots of `warmdesk eval quality` for docs/evidence.md."""

from pathlib import Path
from typing import Any

from evals.machine import describe_machine
from evals.markdown_sections import table
from evals.plots import drawn
from evals.quality import NOISE

COLUMNS = {
    "arm": "arm",
    "kl": "KL [95 %]",
    "top1": "top-1",
    "agree": "same answer",
    "gold": "gold log-probability [95 %]",
    "contains_gold": "holds gold",
    "f1": "F1",
    "refused_right": "refused rightly",
    "refused_wrong": "wrongly",
    "recomputed": "passage tokens computed",
    "ttft_ms": "first token, ms",
}


def markdown(result: dict[str, Any], command: str) -> str:
    """The section of a run: what was measured, with which command, and a row for every arm."""
    rows = [cells(row) for row in result["rows"]]
    questions = result["rows"][0]["n"]
    adapter = f", adapter {Path(result['adapter']).name}" if result["adapter"] else ", no adapter"
    head = (
        f"`{command}`: {result['model']}{adapter}, {result['dtype']}; {questions} questions of {result['file']}, "
        f"{result['passages']} passages; {describe_machine()}.\n"
    )
    return f"{head}\n{table(rows, COLUMNS)}\n"


def cells(row: dict[str, Any]) -> dict[str, Any]:
    """The cells of a row as text."""
    return {
        "arm": f"`{row['policy']}`",
        "kl": with_interval(row["kl"], row["kl_interval"], ".3f"),
        "top1": figure(row["top1"], ".2f"),
        "agree": figure(row["agree"], ".0%"),
        "gold": with_interval(row["gold_logp_delta"], row["gold_logp_delta_interval"], "+.2f"),
        "contains_gold": figure(row["contains_gold"], ".0%"),
        "f1": figure(row["f1"], ".2f"),
        "refused_right": figure(row["refused_right"], ".0%"),
        "refused_wrong": figure(row["refused_wrong"], ".0%"),
        "recomputed": f"{row['recomputed_tokens']:,.0f} ({row['recomputed_share']:.0%})",
        "ttft_ms": figure(row["ttft_ms"], ",.0f"),
    }


def figure(value: float | None, form: str) -> str:
    """A formatted number, empty for None."""
    return "" if value is None else format(value, form)


def with_interval(value: float | None, interval: tuple[float, float] | None, form: str) -> str:
    """A formatted number with its 95 % interval, empty for None."""
    if value is None or interval is None:
        return ""
    return f"{value:{form}} [{interval[0]:{form}}, {interval[1]:{form}}]"


def draw(result: dict[str, Any], file: Path) -> None:
    """Plot the distance to full attention over the time to the first token, one point for each arm."""
    with drawn(file) as (axes,):
        for row in result["rows"]:
            if row["kl"] is None or row["policy"] in ("none", NOISE):
                continue
            low, high = row["kl_interval"]
            at, spread = (row["ttft_ms"], row["kl"]), [[row["kl"] - low], [high - row["kl"]]]
            axes.errorbar(*at, yerr=spread, fmt="o", capsize=3)
            axes.annotate(row["policy"], at, xytext=(6, 4), textcoords="offset points", fontsize=8)
        axes.set(xscale="log", xlabel="time to the first token, ms", ylabel="KL to full attention, nats per token")
