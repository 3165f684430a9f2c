"""The result as a section of docs/gpu.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals.gpu.plan import PLANS
from evals.markdown_sections import table

COLUMNS = {
    "row": "row",
    "what": "what",
    "shape": "model",
    "value": "measured",
    "baseline": "baseline, times as good as it",
    "floor": "floor, times the floor",
    "goal": "goal",
    "met": "met",
    "note": "",
}
MET = {True: "yes", False: "**no**", None: ""}
MEASURE = "*not measured*: `warmdesk bench gpu --rows {}`"


def markdown(result: dict[str, Any], command: str) -> str:
    """A table of all rows, and what they were measured on."""
    versions = ", ".join(f"{name} {result[name]}" for name in ("torch", "transformers", "triton") if result.get(name))
    card = f"{result.get('card', result['device'])}, {versions}" if versions else str(result["device"])
    warning = f" **{result['note'][0].upper()}{result['note'][1:]}.**" if result["note"] else ""
    return (
        f"`{command}` on {card}, {result['seconds']:,.0f} s in all.{warning} Medians; weights are random but for the "
        "bundled model.\n\n" + table(readable(result["rows"]), COLUMNS)
    )


def readable(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with numbers beside their units, and what was not measured with the command that measures it."""
    return [
        {
            **row,
            "row": f"`{row['row']}`",
            "value": measured(row),
            "baseline": f"{beside(row['baseline'], row['ratio'])} ({row['baseline_name']})" if row["baseline"] else "",
            "floor": beside(row["floor"], row["of_floor"]),
            "met": MET[row["met"]],
        }
        for row in rows
    ]


def measured(row: dict[str, Any]) -> str:
    """A value, or how to get it."""
    if row["value"] is None:
        return MEASURE.format(row["row"])
    behind = f", 95 % within {number(row['p95'])}" if row["p95"] is not None else ""
    return f"{number(row['value'])} {row['unit']}".strip() + behind


def beside(other: float | None, times: float | None) -> str:
    """What a value is compared with, and how many times."""
    return "" if other is None or times is None else f"{number(other)}, {number(times)}x"


def number(value: float | None) -> str:
    """Three digits that count, no powers of ten above them."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def nothing_measured() -> str:
    """The section before anything was measured."""
    return table(readable([plan.empty("").as_json() for plan in PLANS]), COLUMNS)


def drawing_of(plot: Path, page: Path | None) -> str:
    """A line with the plot, for a page in the same folder; nothing for other pages."""
    if page is None or page.absolute().parent != plot.absolute().parent:
        return ""
    return f"\n\n![How far the rows are from the floor of the card]({plot.name})"
