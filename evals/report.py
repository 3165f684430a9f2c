"""Publish results as sections of Markdown pages, tables and plots.

Plots are SVG files and need matplotlib. Lines differ in colour and marker; the colours by Okabe and Ito are also clear
to colour-blind people. Out of scope: the figures themselves.
"""

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from app.domain.errors import DeskError


def describe_machine() -> str:
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{processor()}, {torch.get_num_threads()} threads at most, {versions}"


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, linearly interpolated; 0 for no values."""
    return float(np.percentile(values, percent)) if values else 0.0


def read_section(file: Path, name: str) -> tuple[str, str]:
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    try:
        content = file.read_text(encoding="utf-8")
    except OSError as error:
        raise DeskError(f"{file}: {error.strerror or error}", code="no-such-file") from error
    if content.count(begin) != 1 or content.count(end) != 1 or content.index(begin) > content.index(end):
        raise DeskError(f"{file} must contain {begin!r} once and, after it, {end!r} once", code="no-section")
    return content[: content.index(begin) + len(begin)], content[content.index(end) :]


def write_section(file: Path, name: str, text: str) -> None:
    head, tail = read_section(file, name)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(f"{head}\n{text.strip()}\n{tail}", encoding="utf-8")
    os.replace(temporary, file)


def table(rows: list[dict[str, Any]], columns: dict[str, str], **forms: str) -> str:
    """Return a Markdown table. columns: titles by key. forms: formats of numbers by key."""
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row[key], forms.get(key)) for key in columns) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: object, form: str | None = None) -> str:
    if value is None:
        return ""
    if isinstance(value, float | int):
        return format(value, form or (",.1f" if isinstance(value, float) else ","))
    return str(value)


if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "-"),
    ("#009E73", "^", "-"),
    ("#CC79A7", "D", "--"),
    ("#000000", "v", "-"),
    ("#E69F00", "P", "--"),
)
"""Colour, marker and style of each line in turn."""

Rows = Sequence[dict[str, Any]]


@contextmanager
def drawn(file: Path, panels: int = 1) -> "Iterator[list[Axes]]":
    """Yield plots (axes) side by side, and write them to an SVG file at the end. Equal figures make equal files."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasSVG(figure)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for one in axes:
        one.grid(alpha=0.3)
    yield axes
    with matplotlib.rc_context({"svg.hashsalt": file.name}):
        figure.savefig(file, format="svg", metadata={"Date": None})


def add_lines(axes: "Axes", rows: Rows, names: Iterable[str], *, name: str, x: str, y: str) -> None:
    """Draw a line for each of `names` that occurs in the field `name`. x, y: fields of the values; x is logarithmic,
    with a tick for each value. The first line is wide, so that it is visible under an equal one.
    """
    axes.set_xscale("log")
    axes.xaxis.set_ticks(sorted({row[x] for row in rows}), minor=False)
    axes.xaxis.set_ticks([], minor=True)
    write_in_full(axes.xaxis)
    for i, (line, (colour, marker, style)) in enumerate(zip(names, cycle(LINES), strict=False)):
        points = sorted((row[x], row[y]) for row in rows if row[name] == line)
        if not points:
            continue
        width, size = (1.5, 5) if i else (4.0, 10)
        look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": style}
        axes.plot(*zip(*points, strict=True), label=line, linewidth=width, markersize=size, **look)


def add_legend(axes: "Axes") -> None:
    figure, (handles, labels) = axes.get_figure(root=True), axes.get_legend_handles_labels()
    assert figure is not None
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def in_order(rows: Rows, name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))


def write_in_full(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def draw_eviction(result: dict[str, Any], file: Path) -> None:
    rows = [{**row, "hit_rate": 100 * row["hit_rate"]} for row in result["rows"]]
    with drawn(file) as (axes,):
        add_lines(axes, rows, in_order(rows, "policy"), name="policy", x="budget", y="hit_rate")
        axes.set(xlabel="room for modules", ylabel="hits, % of uses")
        add_legend(axes)


def draw_throughput(result: dict[str, Any], file: Path) -> None:
    rows = result["rows"]
    labels = {"tokens_per_s": "tokens per second", "ttft_ms_p95": "first token, 95 % within, ms"}
    with drawn(file, panels=2) as panels:
        for axes, (field, label) in zip(panels, labels.items(), strict=True):
            add_lines(axes, rows, in_order(rows, "arm"), name="arm", x="clients", y=field)
            axes.set(xlabel="clients at once", ylabel=label)
        panels[0].set_ylim(bottom=0)
        panels[1].set_yscale("log")
        write_in_full(panels[1].yaxis)
        add_legend(panels[0])


def draw_latency(result: dict[str, Any], file: Path) -> None:
    threads = max(row["threads"] for row in result["rows"])
    rows = [row for row in result["rows"] if row["threads"] == threads]
    models = in_order(rows, "model")
    arms = sorted(in_order(rows, "arm"), key=lambda arm: arm != "reuse")
    with drawn(file, panels=len(models)) as panels:
        for axes, model in zip(panels, models, strict=True):
            own = [row for row in rows if row["model"] == model]
            if axes is not panels[0]:
                axes.sharey(panels[0])
            add_lines(axes, own, arms, name="arm", x="document_tokens", y="ttft_ms_min")
            axes.set(yscale="log", title=f"{model}, threads: {threads}")
            axes.set(xlabel="document tokens", ylabel="first token, ms")
            write_in_full(axes.yaxis)
        add_legend(panels[0])


def draw_gpu(result: dict[str, Any], file: Path) -> bool:
    """Draw the ratio of each row to the lower bound of the GPU, and its baseline's ratio if measured in the same run.
    Returns whether there was anything to draw.
    """
    rows = [row for row in result["rows"] if row["of_floor"]]
    if not rows:
        return False
    floors = [row["of_floor"] for row in rows]
    others = [row["of_floor"] * row["ratio"] if row["ratio"] else 0.0 for row in rows]
    with drawn(file) as (axes,):
        (ours, *_), (theirs, *_) = LINES[:2]
        places = range(len(rows))
        axes.barh([place + 0.2 for place in places], floors, 0.4, label="warmdesk", color=ours)
        axes.barh([place - 0.2 for place in places], others, 0.4, label="baseline", color=theirs)
        axes.axvline(1, color="#000000", linestyle="--", linewidth=1)
        axes.set_yticks(places, [f"{row['row']}" for row in rows])
        axes.set(xscale="log", xlabel="times the lower bound of the GPU")
        axes.invert_yaxis()
        write_in_full(axes.xaxis)
        add_legend(axes)
    return True
