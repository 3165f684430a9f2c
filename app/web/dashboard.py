"""The dashboard: charts over time as SVG paths, and Gradio's components with their refresh. It changes nothing. Server
and guard require the login.

All charts share one time axis. Times without a measurement stay empty. A chart is 100 x 100 units, and the page
stretches it. Out of scope: counting (`app.storage.statistics`), colours and labels (`templates/admin/charts.html`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, log10
from typing import Any, Literal, cast

import gradio as gr

from app.desk.service import Service
from app.domain.callers import Caller
from app.domain.errors import DeskError
from app.domain.reuse_words import SOURCES
from app.domain.statistics import FirstTokenTimes, UsageSpan
from app.domain.words import count, gettext, milliseconds, percent, speaking, translatable
from app.web.admin_pages import links_for
from app.web.rendering import ENGLISH, LANGUAGES, page_language, render, translations

Range = Literal["hour", "day", "week", "month"]
_CLOCK, _DATE = "%H:%M", translatable("%-d %b")


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The range of a chart. ticks: labels along the time axis. label: their format."""

    words: str
    length: timedelta
    step: timedelta
    ticks: int
    label: str


RANGES: Mapping[Range, TimeRange] = {
    "hour": TimeRange(translatable("Hour"), timedelta(hours=1), timedelta(minutes=1), 4, _CLOCK),
    "day": TimeRange(translatable("Day"), timedelta(days=1), timedelta(minutes=30), 4, _CLOCK),
    "week": TimeRange(translatable("Week"), timedelta(days=7), timedelta(hours=3), 7, _DATE),
    "month": TimeRange(translatable("Month"), timedelta(days=30), timedelta(hours=12), 5, _DATE),
}
READ_FROM = (
    *(("module", translatable("Passages")), ("session", translatable("Same conversation"))),
    *(("prefix", translatable("Shared prefix")), ("computed", translatable("Computed now"))),
)
TIERS = tuple((name, words) for name, words in SOURCES.items() if name != "elsewhere")
FIRST_TOKEN = (
    ("warm-p50", translatable("Warm, median")),
    ("warm-p95", translatable("Warm, slowest 5%")),
    ("cold-p50", translatable("Cold, median")),
    ("cold-p95", translatable("Cold, slowest 5%")),
)
FIRST_TOKEN_ELSEWHERE = (
    ("server-p50", translatable("Model's server, median")),
    ("server-p95", translatable("Model's server, slowest 5%")),
)


Names = Sequence[tuple[str, str]]  # the series of a chart: name of the colour, and words


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart in the page's language. scale: labels of the vertical axis, from the top; the last one is zero. layers:
    name, words and SVG path of each series; the path is "" if it has no value. bins: for the pointer, the place of each
    step of the time axis, and its time and values in words.
    """

    title: str
    are_bars: bool
    scale: tuple[str, ...]
    layers: list[tuple[str, str, str]]
    bins: list[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Axis:
    """The time axis that charts share."""

    since: datetime
    until: datetime
    range: TimeRange

    @classmethod
    def ending(cls, now: datetime, name: Range) -> "Axis":
        """Return the axis of the latest `name` of time, in whole steps."""
        chosen = RANGES[name]
        step_s = chosen.step.total_seconds()
        until = datetime.fromtimestamp(ceil(now.timestamp() / step_s) * step_s, UTC)
        return cls(until - chosen.length, until, chosen)

    @property
    def width(self) -> float:
        """The width of a step."""
        return 100 * self.range.step / self.range.length

    @property
    def ticks(self) -> list[str]:
        parts = self.range.ticks
        times = (self.since + self.range.length * part / parts for part in range(parts + 1))
        return [time.astimezone().strftime(gettext(self.range.label)) for time in times]

    def place(self, span: UsageSpan) -> int:
        return round((span.start - self.since) / self.range.step)

    def when(self, step: int) -> str:
        time = (self.since + self.range.step * step).astimezone()
        return f"{time.strftime(gettext(_DATE))} {time.strftime(_CLOCK)}"


def charts(axis: Axis, spans: Sequence[UsageSpan], *, is_elsewhere: bool = False) -> list[Chart]:
    """Return all charts of the dashboard. spans: drawn if within the axis. is_elsewhere: the model is remote, so
    passages are unknown.
    """
    steps = {axis.place(span): span for span in spans if axis.since <= span.start < axis.until}
    tokens = {step: [span.tokens.get(name, 0) for name, _ in READ_FROM] for step, span in steps.items()}
    drawn = [
        _bars(gettext("Prompt tokens by source"), axis, READ_FROM, tokens),
        _bars(gettext("Share of prompt tokens"), axis, READ_FROM, tokens, as_shares=True),
    ]
    title = gettext("Time to first token")
    if is_elsewhere:
        first = {step: _first_token(span.server) for step, span in steps.items()}
        return [*drawn, _lines(title, axis, FIRST_TOKEN_ELSEWHERE, first)]
    uses = {step: [span.modules.get(name, 0) for name, _ in TIERS] for step, span in steps.items()}
    first = {step: _first_token(span.warm, span.cold) for step, span in steps.items()}
    found = _bars(gettext("Sources of passages"), axis, TIERS, uses, as_shares=True)
    return [*drawn, found, _lines(title, axis, FIRST_TOKEN, first)]


def _first_token(*times: FirstTokenTimes | None) -> list[float | None]:
    return [value for one in times for value in ((one.p50_ms, one.p95_ms) if one else (None, None))]


def _bars(
    title: str, axis: Axis, names: Names, values: Mapping[int, Sequence[int]], *, as_shares: bool = False
) -> Chart:
    """Return a chart of stacked values. as_shares: draw each as a share of the sum."""
    values = {step: row for step, row in values.items() if sum(row)}
    top = 100.0 if as_shares else _round_up(max(map(sum, values.values()), default=0))
    paths, width = [""] * len(names), axis.width
    for step, row in sorted(values.items()):
        unit = 100 / (sum(row) if as_shares else top)
        bottom = 100.0
        for i, value in enumerate(row):
            if value:
                bottom -= value * unit
                paths[i] += (
                    f"M{step * width:.2f} {bottom:.2f}h{0.86 * width:.2f}v{value * unit:.2f}h-{0.86 * width:.2f}z"
                )
    shown: Callable[[int, int], str] = percent if as_shares else lambda value, whole: count(value)
    words = {step: [shown(value, sum(row)) for value in row] for step, row in values.items()}
    scale = ("100%", "50%", "0%") if as_shares else (count(int(top)), count(int(top / 2)), "0")
    return Chart(title, True, scale, *_drawn(axis, names, paths, words))


def _lines(title: str, axis: Axis, names: Names, values: Mapping[int, Sequence[float | None]]) -> Chart:
    """Return a chart of step lines. A line ends where the next step has no value."""
    measured = {step: row for step, row in sorted(values.items()) if any(value is not None for value in row)}
    top = _round_up(max((value for row in measured.values() for value in row if value is not None), default=0))
    paths, width = [""] * len(names), axis.width
    for i in range(len(names)):
        before = -2
        for step, row in measured.items():
            if (value := row[i]) is not None:
                begin = "L" if step == before + 1 else "M"
                paths[i] += f"{begin}{step * width:.2f} {100 - 100 * value / top:.2f}h{width:.2f}"
                before = step
    words = {step: ["–" if value is None else milliseconds(value) for value in row] for step, row in measured.items()}
    scale = (milliseconds(top), milliseconds(top / 2), "0")
    return Chart(title, False, scale, *_drawn(axis, names, paths, words))


def _drawn(
    axis: Axis, names: Names, paths: Sequence[str], words: Mapping[int, Sequence[str]]
) -> tuple[list[tuple[str, str, str]], list[tuple[float, str]]]:
    """Return the layers and bins of a chart. words: the values of each step."""
    labels = [gettext(label) for _, label in names]
    layers = [(name, label, path) for (name, _), label, path in zip(names, labels, paths, strict=True)]
    bins = [
        (step * axis.width, "\n".join([axis.when(step), *map("{}: {}".format, labels, row)]))
        for step, row in sorted(words.items())
    ]
    return layers, bins


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    power = 10.0 ** int(log10(value)) if value >= 1 else 1.0
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value)


REFRESH_S = 5.0
PARTS = ("head", "welcome", "tiles", "load", "charts", "savings", "memory", "answers", "prefixes", "misses")
"""Templates in templates/admin, from the top of the page down."""
ABOVE = 4  # number of them above the choice of the time range


def titles() -> dict[str, str]:
    """Return the title of the browser's tab, by language code of HTML."""
    found = {}
    for language, tag in LANGUAGES.items():
        with speaking(translations(language)):
            found[tag] = f"{gettext('Dashboard')} · Warmdesk"
    return found


def build_admin(desk: Service) -> gr.Blocks:
    """Return the page, not yet mounted. The caller must require the login."""
    links = links_for(Caller(role="admin"))

    def refresh(chosen: str, request: gr.Request) -> list[Any]:
        try:
            return draw(chosen, request)
        except DeskError as error:
            if not error.is_of_database:
                raise
            return [gr.skip()] * (len(PARTS) + 1)  # the old numbers stay, and the next refresh may succeed

    def draw(chosen: str, request: gr.Request) -> list[Any]:
        now, language = datetime.now(UTC), page_language(request.headers)
        overview, axis = desk.overview(), Axis.ending(now, cast("Range", chosen) if chosen in RANGES else "day")
        with speaking(translations(language)):
            usage = desk.usage_over_time(axis.since, axis.until, axis.range.step)
            drawn = charts(axis, usage, is_elsewhere=overview.is_elsewhere)
            choices = [(gettext(one.words), name) for name, one in RANGES.items()]
            radio = gr.Radio(choices=choices, label=gettext("Time range"), visible=bool(overview.answers))
        values = {"overview": overview, "load": desk.load(), "links": links, "charts": drawn, "axis": axis}
        values["savings"] = desk.savings(axis.since, axis.until)
        texts = [render(f"admin/{name}.html", language=language, now=now, **values) for name in PARTS]
        return [*texts, radio]

    def part(name: str) -> gr.HTML:
        return gr.HTML("", elem_id=f"wd-{name}", js_on_load=None, apply_default_css=False)

    title = titles()
    with gr.Blocks(title=title[LANGUAGES[ENGLISH]], analytics_enabled=False, fill_width=True) as blocks:
        with gr.Column(elem_id="wd-admin"):
            parts = [part(name) for name in PARTS[:ABOVE]]
            choice = gr.Radio(
                choices=list(RANGES), value="day", visible=False, elem_id="wd-range", container=False, interactive=True
            )
            parts += [part(name) for name in PARTS[ABOVE:]]
        outputs = [*parts, choice]
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        blocks.load(refresh, [choice], outputs, **quiet)
        # Gradio has one title for all readers.
        blocks.load(js=f"() => {{ document.title = {json.dumps(title)}[document.documentElement.lang]; }}", **quiet)
        choice.input(refresh, [choice], outputs, **quiet)
        gr.Timer(REFRESH_S).tick(refresh, [choice], outputs, **quiet)
    return blocks
