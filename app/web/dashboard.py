"""The two dashboards, of customers' conversations and of the engine, with charts over time as SVG paths. They are
read-only; admin.js redraws them after a change.

The URL contains the time range. All charts share one time axis. Times without a measurement stay empty. A chart has
100 x 100 units, and the page stretches it. Out of scope: counting (`app.storage.statistics`), colours
(`static/admin.css`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, log10
from typing import Annotated, Any, TypeAlias

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse

from app.desk.service import Service
from app.domain.answers import OUTCOME_WORDS
from app.domain.callers import Id
from app.domain.quality import ENDED_WORDS
from app.domain.statistics import FirstTokenTimes, UsageSpan
from app.domain.words import SOURCES, count, gettext, milliseconds, percent, speaking, translatable
from app.storage.conversation_care import Period, Transcripts
from app.web.admin_pages import admin_page
from app.web.rendering import page_language, translations

_CLOCK, _DATE = "%H:%M", translatable("%-d %b")


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time range of a chart. ticks: number of parts between labels of the time axis. label: their format."""

    words: str
    length: timedelta
    step: timedelta
    ticks: int
    label: str


RANGES: Mapping[str, TimeRange] = {
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
OUTCOMES = tuple((name, words) for name, words in OUTCOME_WORDS.items() if name != "smalltalk")
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
    name, words and SVG path of each series; the path is "" if it has no value. bins: the place of each measured step of
    the time axis, its time, and the values of the layers in words.
    """

    title: str
    are_bars: bool
    scale: tuple[str, ...]
    layers: list[tuple[str, str, str]]
    bins: list[tuple[float, str, Sequence[str]]]

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [(words, "wd-num") for _, words, _ in self.layers]


@dataclass(frozen=True, slots=True)
class Axis:
    """The time axis that charts share."""

    name: str
    since: datetime
    until: datetime
    range: TimeRange

    @classmethod
    def ending(cls, now: datetime, name: str) -> "Axis":
        """Return the axis up to `now`, in whole steps. name: a key of RANGES; an unknown name means "day"."""
        name = name if name in RANGES else "day"
        chosen = RANGES[name]
        step_s = chosen.step.total_seconds()
        until = datetime.fromtimestamp(ceil(now.timestamp() / step_s) * step_s, UTC)
        return cls(name, until - chosen.length, until, chosen)

    @property
    def width(self) -> float:
        """Return the width of a step, in units of the chart (of 100)."""
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


def outcomes(axis: Axis, spans: Sequence[UsageSpan]) -> Chart:
    """Return the chart of the outcomes of questions. spans: drawn if within the axis."""
    ended = {step: [span.answers.get(name, 0) for name, _ in OUTCOMES] for step, span in _placed(axis, spans).items()}
    return _bars(gettext("Outcomes of questions"), axis, OUTCOMES, ended)


def _placed(axis: Axis, spans: Sequence[UsageSpan]) -> dict[int, UsageSpan]:
    return {axis.place(span): span for span in spans if axis.since <= span.start < axis.until}


def charts(axis: Axis, spans: Sequence[UsageSpan], is_elsewhere: bool) -> list[Chart]:
    """Return the charts of the engine. spans: drawn if within the axis. is_elsewhere: the model is remote, so passages
    are unknown.
    """
    steps = _placed(axis, spans)
    tokens = {step: [span.tokens.get(name, 0) for name, _ in READ_FROM] for step, span in steps.items()}
    drawn = [_bars(gettext("Prompt tokens by source"), axis, READ_FROM, tokens)]
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
) -> tuple[list[tuple[str, str, str]], list[tuple[float, str, Sequence[str]]]]:
    """Return the layers and bins of a chart. words: the values of each step."""
    labels = [gettext(label) for _, label in names]
    layers = [(name, label, path) for (name, _), label, path in zip(names, labels, paths, strict=True)]
    return layers, [(step * axis.width, axis.when(step), row) for step, row in sorted(words.items())]


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    power = 10.0 ** int(log10(value)) if value >= 1 else 1.0
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value)


Drawing: TypeAlias = Callable[[Axis, Sequence[UsageSpan], bool], list[Chart]]
Numbers: TypeAlias = Callable[[datetime, datetime], dict[str, Any]]  # figures of a period, by name in the template
ChosenRange = Annotated[Id, Query(alias="range")]


def add_dashboard_routes(app: FastAPI, desk: Service, transcripts: Transcripts) -> None:
    def page(request: Request, name: str, range_: str, draw: Drawing, more: Numbers) -> HTMLResponse:
        axis = Axis.ending(datetime.now(UTC), range_)
        period, overview = (axis.since, axis.until), desk.overview()
        with speaking(translations(page_language(request.headers))):
            drawn = draw(axis, desk.usage_over_time(*period, axis.range.step), overview.is_elsewhere)
        shown = {"overview": overview, "axis": axis, "charts": drawn, "ranges": RANGES, **more(*period)}
        shown["usage"] = desk.usage_within(*period, axis.range.step)
        return admin_page(request, f"admin/{name}.html", **shown)

    def conversations(since: datetime, until: datetime) -> dict[str, Any]:
        return {"numbers": transcripts.how_many(Period(since=since, until=until)), "ended_words": ENDED_WORDS}

    def work(since: datetime, until: datetime) -> dict[str, Any]:
        return {"load": desk.load(), "savings": desk.savings(since, until)}

    @app.get("/admin/")
    def support(request: Request, range_: ChosenRange = "") -> HTMLResponse:
        return page(request, "support", range_, lambda axis, spans, _: [outcomes(axis, spans)], conversations)

    @app.get("/admin/engine")
    def engine(request: Request, range_: ChosenRange = "") -> HTMLResponse:
        return page(request, "engine", range_, charts, work)
