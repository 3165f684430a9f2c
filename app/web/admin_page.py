"""The dashboard: Gradio components, their data and their refreshing. The login stands before it, in server and guard.

Tables and plots are sent again only when their numbers changed, so that a search or a sorted column survives the timer.
Not covered: any action on the desk; this page only looks.
"""

import hashlib
from datetime import UTC, datetime
from typing import Any

import gradio as gr
import pandas as pd  # type: ignore[import-untyped]

from app.desk.interface import Desk
from app.domain.answers import AnswerPoint, Overview
from app.domain.formatting import ago, short_path, utc
from app.domain.reuse_words import SOURCES
from app.web.rendering import render

REFRESH_S = 5.0
PARTS = ("head", "welcome", "tiles", "memory", "answers", "prefixes", "misses")
"""Templates in templates/admin, from the top of the page down; the plots come behind the first three."""
COLUMNS = ("Document", "Passage", "Tokens", "Size (MiB)", "Kept in", "Uses", "Missed", "Tokens saved", "Last use")
_BINS = (
    *((2 * 3600, "1m", "%H:%M"), (24 * 3600, "10m", "%H:%M"), (4 * 86_400, "1h", "%-d %b %H:%M")),
    *((21 * 86_400, "6h", "%-d %b"), (float("inf"), "1d", "%-d %b")),
)
"""Up to which span in seconds: the width of a bar, and the format of its label."""
_KINDS = {"Reused": "#2f7d6b", "Read now": "#d08a5b"}


def module_rows(overview: Overview, now: datetime) -> list[list[object]]:
    """The module table, what saved most first."""
    rows = sorted(overview.modules, key=lambda row: (-row.saved, row.document, row.passage))
    return [
        [
            short_path(row.document),
            row.passage,
            row.tokens,
            round(row.num_bytes / 2**20, 1),
            "Not kept" if row.tier == "none" else SOURCES.get(row.tier, row.tier),
            row.hits,
            row.misses,
            row.saved,
            ago(row.last_used, now),
        ]
        for row in rows
    ]


def bins(points: tuple[AnswerPoint, ...]) -> tuple[str, str]:
    """Width and label format of the token plot's bars: some dozens, whether the desk is an hour or a month old."""
    moments = [utc(point.created) for point in points]
    span_s = (max(moments) - min(moments)).total_seconds() if moments else 0.0
    return next((width, label) for limit, width, label in _BINS if span_s <= limit)


def token_frame(points: tuple[AnswerPoint, ...]) -> pd.DataFrame:
    """Two rows for each answer: reused tokens, and those read now."""
    rows = [
        (utc(point.created), kind, tokens)
        for point in points
        for kind, tokens in zip(_KINDS, (point.reused_tokens, point.prompt_tokens - point.reused_tokens), strict=True)
    ]
    return pd.DataFrame(rows, columns=["Time", "Tokens were", "Tokens"])


def latency_frame(points: tuple[AnswerPoint, ...]) -> pd.DataFrame:
    """Time to the first token of each answer."""
    rows = [(utc(point.created), point.ttft_ms, "First token") for point in points]
    return pd.DataFrame(rows, columns=["Time", "First token (ms)", "Series"])


def signature(overview: Overview, now: datetime) -> str:
    """Changes when a table or plot would look different; relative times count by the minute only."""
    shown = (overview.modules, overview.points, now.strftime("%Y%m%d%H%M"))
    return hashlib.sha256(repr(shown).encode()).hexdigest()


def build_admin(desk: Desk) -> gr.Blocks:
    """The page, not yet mounted: whoever mounts it must put the login before it."""

    def refresh(seen: str) -> tuple[Any, ...]:
        now = datetime.now(UTC)
        overview = desk.overview()
        current = signature(overview, now)
        texts = [render(f"admin/{name}.html", overview=overview, now=now) for name in PARTS]
        if current == seen:
            return (*texts, *([gr.skip()] * 5), current)
        width, label = bins(overview.points)
        tokens = gr.BarPlot(token_frame(overview.points), x_bin=width, x_axis_format=label)
        plots = (gr.update(visible=bool(overview.points)), tokens, latency_frame(overview.points))
        table = (gr.update(visible=bool(overview.modules)), module_rows(overview, now))
        return (*texts, *plots, *table, current)

    def part(name: str) -> gr.HTML:
        return gr.HTML("", elem_id=f"wd-{name}", js_on_load=None, apply_default_css=False)

    plot: dict[str, Any] = {"height": 240, "buttons": [], "x_title": " ", "color_title": " ", "container": False}
    with gr.Blocks(title="Admin · Warmdesk", analytics_enabled=False, fill_width=True) as blocks:
        with gr.Column(elem_id="wd-admin"):
            above = [part(name) for name in PARTS[:3]]
            with gr.Row(visible=False, elem_id="wd-plots") as plots:
                with gr.Column(elem_classes="wd-panel", min_width=300):
                    gr.HTML("<h2>Reused and newly read tokens</h2>", apply_default_css=False)
                    tokens = gr.BarPlot(
                        x="Time",
                        y="Tokens",
                        color="Tokens were",
                        color_map=_KINDS,
                        y_aggregate="sum",
                        y_title=" ",
                        **plot,
                    )
                with gr.Column(elem_classes="wd-panel", min_width=300):
                    gr.HTML("<h2>Time to first token</h2>", apply_default_css=False)
                    latency = gr.LinePlot(
                        x="Time",
                        y="First token (ms)",
                        y_title="ms",
                        color="Series",
                        color_map={"First token": _KINDS["Reused"]},
                        colors_in_legend=[],
                        **plot,
                    )
            below = [part(name) for name in PARTS[3:]]
            with gr.Column(visible=False, elem_classes="wd-panel", elem_id="wd-modules") as table:
                gr.HTML("<h2>Passages the model has read</h2>", apply_default_css=False)
                modules = gr.Dataframe(
                    headers=list(COLUMNS),
                    datatype=["str", "str", *["number"] * 2, "str", *["number"] * 3, "str"],
                    column_widths=["20%", "22%", "8%", "9%", "11%", "6%", "7%", "8%", "9%"],
                    wrap=True,  # long headings must not push the numbers out of sight
                    interactive=False,
                    show_search="search",
                    max_height=420,
                    label="Passages the model has read",
                    show_label=False,
                    elem_id="wd-module-table",
                )
        seen = gr.State("")
        outputs = [*above, *below, plots, tokens, latency, table, modules, seen]
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        blocks.load(refresh, [seen], outputs, **quiet)
        gr.Timer(REFRESH_S).tick(refresh, [seen], outputs, **quiet)
    return blocks
