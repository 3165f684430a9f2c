"""Errors of events that have no place on the page: one line, shown for a while in the reader's language. Without this,
Gradio logs a traceback, and the reader learns nothing.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr

from app.domain.errors import DeskError
from app.domain.translation import gettext, speaking
from app.web.error_words import error_words
from app.web.languages import translations

log = logging.getLogger(__name__)


@contextmanager
def shown_as_toast(language: str) -> Iterator[None]:
    """Turns an error of the desk into what Gradio shows."""
    try:
        yield
    except DeskError as error:
        if not error.is_away:
            log.warning("the chat page shows an error (%s): %s", error.code, error)
        with speaking(translations(language)):
            raise gr.Error(gettext(error_words(error)), title="", print_exception=False) from None
