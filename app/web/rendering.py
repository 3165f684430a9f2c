"""The pages' HTML, from the templates beside this file, in the reader's language. Whatever a template is given is
escaped.

Every template can use the macros of `macros.html`, and the same words for numbers, sizes and times as on the command
line. Its own words stand in _("..."), where a % is written %%; a text in a variable is `translated(text)`.
"""

from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from app.domain import formatting, notices, reuse_words, translation
from app.domain.translation import gettext, speaking
from app.web.error_words import problem_words
from app.web.languages import LANGUAGES, translations
from app.web.markup import answer_html, caret_html, linked, without_controls
from app.web.sources import sources_of, statements_html

_FUNCTIONS = (
    *(formatting.ago, formatting.count, formatting.counted, formatting.milliseconds, formatting.percent),
    *(formatting.short_path, formatting.size, formatting.until, formatting.interval, notices.notice_words),
    *(reuse_words.reason_words, reuse_words.cure_words, reuse_words.reuse_line, reuse_words.source_words),
)
_WORDS = ("SYSTEM_TEXT", "EXACT", "APPROXIMATE", "ELSEWHERE")


def render(template: str, /, *, language: str, **values: object) -> str:
    """HTML of a template (its path in `templates`). language: one of `LANGUAGES`. Raises jinja2.UndefinedError for a
    value that is not given.
    """
    with speaking(translations(language)):
        return _environment().get_template(template).render(html_language=LANGUAGES[language], **values).strip()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        auto_reload=False,
        extensions=["jinja2.ext.i18n"],
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.install_gettext_callables(translation.gettext, translation.ngettext, newstyle=True)  # type: ignore[attr-defined]
    environment.globals |= {
        function.__name__: function
        for function in (*_FUNCTIONS, answer_html, caret_html, linked, day, problem_words, sources_of, statements_html)
    }
    environment.globals |= {"translated": translation.gettext, "_": _in_page_language}
    environment.globals |= {name: getattr(reuse_words, name) for name in _WORDS}
    macros = environment.get_template("macros.html").module
    environment.globals |= {name: getattr(macros, name) for name in ("icon", "scrolling_table", "admin_head")}
    return environment


def _in_page_language(text: str, **values: object) -> Markup:
    """What the extension's own `_` does, in one call instead of three: a long conversation makes a thousand."""
    said = Markup(gettext(text))
    return said % values if "%" in said else said


def _printable(value: object) -> object:
    """What is written, without control characters, which a value within a translated text could bring, too."""
    return type(value)(without_controls(value)) if isinstance(value, str) else value


def day(moment: datetime, now: datetime) -> str:
    """The heading under which a conversation is listed."""
    days = (formatting.utc(now).date() - formatting.utc(moment).date()).days
    if days <= 1:
        return gettext("Today") if days <= 0 else gettext("Yesterday")
    return gettext("This week") if days < 7 else gettext("Earlier")
