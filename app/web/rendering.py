"""The pages' HTML, from the templates beside this file. Whatever a template is given is escaped.

Every template can use the macros of `macros.html`, and the same words for numbers, sizes and times as on the command
line.
"""

from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from app.domain import formatting, reuse_words
from app.web.markup import answer_html, caret_html, linked, without_controls

_FUNCTIONS = (
    *(formatting.ago, formatting.count, formatting.milliseconds, formatting.percent, formatting.short_path),
    *(formatting.size, reuse_words.reason_words, reuse_words.reuse_line),
)
_WORDS = ("SOURCES", "SYSTEM_TEXT", "EXACT", "APPROXIMATE")


def render(template: str, /, **values: object) -> str:
    """HTML of a template (its path in `templates`). Raises jinja2.UndefinedError for a value that is not given."""
    return _environment().get_template(template).render(**values).strip()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        function.__name__: function for function in (*_FUNCTIONS, answer_html, caret_html, linked, day)
    }
    environment.globals |= {name: getattr(reuse_words, name) for name in _WORDS}
    macros = environment.get_template("macros.html").module
    environment.globals |= {name: getattr(macros, name) for name in ("icon", "scrolling_table")}
    return environment


def _printable(value: object) -> object:
    return without_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def day(moment: datetime, now: datetime) -> str:
    """The heading under which a conversation is listed."""
    days = (formatting.utc(now).date() - formatting.utc(moment).date()).days
    return "Today" if days <= 0 else "Yesterday" if days == 1 else "This week" if days < 7 else "Earlier"
