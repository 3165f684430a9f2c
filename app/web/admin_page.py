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
from app.domain.reuse_words import source_words
from app.domain.translation import gettext, speaking, translatable
from app.web.languages import page_language, translations
from app.web.rendering import render

REFRESH_S = 5.0
PARTS = ("head", "welcome", "tiles", "memory", "answers", "prefixes", "misses")
"""Templates in templates/admin, from the top of the page down; the plots come behind the first three."""
COLUMNS = (
    *(translatable("Document"), translatable("Passage"), translatable("Tokens"), translatable("Size (MiB)")),
    *(translatable("Kept in"), translatable("Uses"), translatable("Missed"), translatable("Tokens saved")),
    translatable("Last use"),
)
HEADINGS = (
    *(translatable("Reused and newly read tokens"), translatable("Time to first token")),
    translatable("Passages the model has read"),
)
_BINS = (
    *((2 * 3600, "1m", "%H:%M"), (24 * 3600, "10m", "%H:%M"), (4 * 86_400, "1h", translatable("%-d %b %H:%M"))),
    *((21 * 86_400, "6h", translatable("%-d %b")), (float("inf"), "1d", translatable("%-d %b"))),
)
"""Up to which span in seconds: the width of a bar, and the format of its label."""
_REUSED, _READ_NOW = "#2f7d6b", "#d08a5b"


def module_rows(overview: Overview, now: datetime) -> list[list[object]]:
    """The module table, what saved most first."""
    rows = sorted(overview.modules, key=lambda row: (-row.saved, row.document, row.passage))
    return [
        [
            gettext(short_path(row.document)),  # the instructions to the model have a name of ours
            row.passage,
            row.tokens,
            round(row.num_bytes / 2**20, 1),
            gettext("Not kept") if row.tier == "none" else source_words(row.tier),
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
    return next((width, gettext(label)) for limit, width, label in _BINS if span_s <= limit)


def token_frame(points: tuple[AnswerPoint, ...]) -> pd.DataFrame:
    """Two rows for each answer: reused tokens, and those read now."""
    rows = [
        (utc(point.created), tokens, kind)
        for point in points
        for kind, tokens in zip(
            token_colors(), (point.reused_tokens, point.prompt_tokens - point.reused_tokens), strict=True
        )
    ]
    return pd.DataFrame(rows, columns=[gettext("Time"), gettext("Tokens"), gettext("Tokens were")])


def token_colors() -> dict[str, str]:
    """Colours by kind of token, in the page's language."""
    return {gettext("Reused"): _REUSED, gettext("Read now"): _READ_NOW}


def latency_frame(points: tuple[AnswerPoint, ...]) -> pd.DataFrame:
    """Time to the first token of each answer."""
    rows = [(utc(point.created), point.ttft_ms, gettext("First token")) for point in points]
    return pd.DataFrame(rows, columns=[gettext("Time"), gettext("First token (ms)"), gettext("Series")])


def signature(overview: Overview, now: datetime) -> str:
    """Changes when a table or plot would look different; relative times count by the minute only."""
    shown = (overview.modules, overview.points, now.strftime("%Y%m%d%H%M"))
    return hashlib.sha256(repr(shown).encode()).hexdigest()


def axes(frame: pd.DataFrame) -> dict[str, str]:
    """Which column of a frame is drawn as what."""
    return dict(zip(("x", "y", "color"), map(str, frame.columns), strict=True))


def build_admin(desk: Desk) -> gr.Blocks:
    """The page, not yet mounted: whoever mounts it must put the login before it."""

    def refresh(seen: str, request: gr.Request) -> tuple[Any, ...]:
        now, language = datetime.now(UTC), page_language(request.headers)
        overview = desk.overview()
        current = signature(overview, now)
        texts = [render(f"admin/{name}.html", language=language, overview=overview, now=now) for name in PARTS]
        if current == seen:
            return (*texts, *([gr.skip()] * 8), current)
        with speaking(translations(language)):
            return (*texts, *drawn(overview, now), current)

    def drawn(overview: Overview, now: datetime) -> tuple[Any, ...]:
        """Headings, plots and table, in the order of the page's outputs."""
        headings = [f"<h2>{gettext(text)}</h2>" for text in HEADINGS]
        width, label = bins(overview.points)
        frame, latencies = token_frame(overview.points), latency_frame(overview.points)
        tokens = gr.BarPlot(frame, x_bin=width, x_axis_format=label, color_map=token_colors(), **axes(frame))
        latency = gr.LinePlot(
            latencies, color_map={gettext("First token"): _REUSED}, colors_in_legend=[], **axes(latencies)
        )
        plots = (gr.update(visible=bool(overview.points)), tokens, latency)
        columns = [gettext(column) for column in COLUMNS]
        modules = gr.Dataframe(module_rows(overview, now), headers=columns, label=gettext(HEADINGS[-1]))
        return (*headings, *plots, gr.update(visible=bool(overview.modules)), modules)

    def part(name: str) -> gr.HTML:
        return gr.HTML("", elem_id=f"wd-{name}", js_on_load=None, apply_default_css=False)

    plot: dict[str, Any] = {"height": 240, "buttons": [], "x_title": " ", "color_title": " ", "container": False}
    with gr.Blocks(title="Admin · Warmdesk", analytics_enabled=False, fill_width=True) as blocks:
        with gr.Column(elem_id="wd-admin"):
            above = [part(name) for name in PARTS[:3]]
            with gr.Row(visible=False, elem_id="wd-plots") as plots:
                with gr.Column(elem_classes="wd-panel", min_width=300):
                    headings = [gr.HTML("", apply_default_css=False)]
                    tokens = gr.BarPlot(y_aggregate="sum", y_title=" ", **plot)
                with gr.Column(elem_classes="wd-panel", min_width=300):
                    headings.append(gr.HTML("", apply_default_css=False))
                    latency = gr.LinePlot(y_title="ms", **plot)
            below = [part(name) for name in PARTS[3:]]
            with gr.Column(visible=False, elem_classes="wd-panel", elem_id="wd-modules") as table:
                headings.append(gr.HTML("", apply_default_css=False))
                modules = gr.Dataframe(
                    col_count=(len(COLUMNS), "fixed"),
                    datatype=["str", "str", *["number"] * 2, "str", *["number"] * 3, "str"],
                    column_widths=["20%", "22%", "8%", "9%", "11%", "6%", "7%", "8%", "9%"],
                    wrap=True,  # long headings must not push the numbers out of sight
                    interactive=False,
                    show_search="search",
                    max_height=420,
                    show_label=False,
                    elem_id="wd-module-table",
                )
        seen = gr.State("")
        outputs = [*above, *below, *headings, plots, tokens, latency, table, modules, seen]
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        blocks.load(refresh, [seen], outputs, **quiet)
        gr.Timer(REFRESH_S).tick(refresh, [seen], outputs, **quiet)
    return blocks
