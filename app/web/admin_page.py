"""The dashboard: what Gradio shows of the desk's numbers, and its refreshing. The login stands before it, in server and
guard.

Not covered: any action on the desk; this page only looks.
"""

import json
from datetime import UTC, datetime
from typing import Any, cast

import gradio as gr

from app.desk.interface import Desk
from app.domain.callers import Caller
from app.domain.errors import DeskError
from app.domain.translation import gettext, speaking
from app.web.admin_frame import links_for
from app.web.charts import RANGES, Axis, Range, charts
from app.web.languages import ENGLISH, LANGUAGES, page_language, translations
from app.web.rendering import render

REFRESH_S = 5.0
PARTS = ("head", "welcome", "tiles", "load", "charts", "savings", "memory", "answers", "prefixes", "misses")
"""Templates in templates/admin, from the top of the page down."""
ABOVE = 4
"""How many of them stand above the choice of the time range."""


def titles() -> dict[str, str]:
    """What the browser's tab says, by what HTML calls the page's language."""
    found = {}
    for language, tag in LANGUAGES.items():
        with speaking(translations(language)):
            found[tag] = f"{gettext('Dashboard')} · Warmdesk"
    return found


def build_admin(desk: Desk) -> gr.Blocks:
    """The page, not yet mounted: whoever mounts it must put the login before it."""
    links = links_for(Caller(role="admin"))

    def refresh(chosen: str, request: gr.Request) -> list[Any]:
        try:
            return drawn_now(chosen, request)
        except DeskError as error:
            if not error.is_of_database:
                raise
            return [gr.skip()] * (len(PARTS) + 1)  # what is there stays, and the next refresh may succeed

    def drawn_now(chosen: str, request: gr.Request) -> list[Any]:
        now, language = datetime.now(UTC), page_language(request.headers)
        overview, axis = desk.overview(), Axis.ending(now, cast("Range", chosen) if chosen in RANGES else "day")
        with speaking(translations(language)):
            usage = desk.usage_over_time(axis.since, axis.until, axis.range.step)
            drawn = charts(axis, usage, is_elsewhere=overview.is_elsewhere)
            choices = [(gettext(one.words), name) for name, one in RANGES.items()]
            label, ticks = gettext("Time range"), axis.ticks
        values = {"overview": overview, "load": desk.load(), "links": links, "charts": drawn, "ticks": ticks}
        values["savings"] = desk.savings(axis.since, axis.until)
        texts = [render(f"admin/{name}.html", language=language, now=now, **values) for name in PARTS]
        return [*texts, gr.Radio(choices=choices, label=label, visible=bool(overview.answers))]

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
