"""What the desk says and understands without documents, in each language: one file of `texts` a language.

For another language, write its file with the same keys; the tests compare it with the English one.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FALLBACK = "en"
"""The language for those that have no file."""
_FOLDER = Path(__file__).parent / "texts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A language. says: texts by name. hears: what customers write, by kind (`app.replies.smalltalk`). around: words
    that may stand beside, by kind; those under "any" beside every kind.
    """

    says: Mapping[str, str]
    hears: Mapping[str, Sequence[str]]
    around: Mapping[str, Sequence[str]]


@cache
def all_texts() -> Mapping[str, Texts]:
    """Every language that there is, by its code."""
    return {file.stem: Texts(**tomllib.loads(file.read_text("utf-8"))) for file in sorted(_FOLDER.glob("*.toml"))}


def texts_in(language: str) -> Texts:
    """The texts of a language, or the English ones."""
    return all_texts().get(language, all_texts()[FALLBACK])
