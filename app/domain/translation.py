"""Texts in the language of the page that is being drawn. English stands in the code and is what nobody translated.

Who draws a page says so once (`speaking`); whatever words are made below it are then in that language. The command line
never does, so it speaks English. Not covered: which language a page has, and the translations (`app.web.languages`);
what the desk answers (`app.replies`), which follows the question.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from gettext import NullTranslations

_ENGLISH = NullTranslations()
_speaking: ContextVar[NullTranslations] = ContextVar("translations", default=_ENGLISH)


@contextmanager
def speaking(translations: NullTranslations) -> Iterator[None]:
    """Within it, texts are translated. Not around a `yield`: who resumes a generator may do so in another context."""
    before = _speaking.set(translations)
    try:
        yield
    finally:
        _speaking.reset(before)


def gettext(text: str) -> str:
    """The translation of an English text."""
    return _speaking.get().gettext(text) if text else ""  # a catalogue keeps its own header under ""


def ngettext(one: str, several: str, number: int) -> str:
    """The translation of an English text that depends on a number."""
    return _speaking.get().ngettext(one, several, number)


def translatable(text: str) -> str:
    """The text itself. Marks one that is kept in English and given to `gettext` where it is shown."""
    return text
