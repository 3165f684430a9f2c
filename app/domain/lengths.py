"""Maximum lengths of callers' texts.

Every entry point checks this before any other work on a text: a body may have a megabyte, which becomes eighteen when
normalised. Routes use the types below; methods of the service begin with `check_length`. Stored texts often have
shorter limits of their own.
"""

from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from app.domain.errors import DeskError

LONGEST_ID = 64
LONGEST_LINE = 4_096
LONGEST_TEXT = 100_000
LONGEST_PAST = 40_000
"""Characters of a conversation that a program sends along; earlier messages are skipped."""


def _at_most(most: int) -> AfterValidator:
    """Not pydantic's own bound, which refuses half a pair of UTF-16: browsers send such."""

    def check(text: str) -> str:
        if len(text) > most:
            raise ValueError(f"a text of at most {most:,} characters is needed")
        return text

    return AfterValidator(check)


Id: TypeAlias = Annotated[str, _at_most(LONGEST_ID)]
"""An id, or a word that a page's script sends."""
Line: TypeAlias = Annotated[str, _at_most(LONGEST_LINE)]
"""A name, a title, a search, an address, a path."""
LongText: TypeAlias = Annotated[str, _at_most(LONGEST_TEXT)]
"""A text of several lines."""


def check_length(text: str, most: int, name: str = "question") -> None:
    """Raises DeskError for a longer text. name: its name for people."""
    if len(text) > most:
        message = f"the {name} has {len(text):,} characters, the limit is {most:,}: shorten it"
        raise DeskError(message, code="question-too-long")
