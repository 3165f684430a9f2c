"""The facts that a text states explicitly: amounts, dates and times, addresses, model numbers, names.

No part of a text is read as facts of two kinds. Not covered: names written in lower case, names among German nouns
(with a capital, each of them may be one), sums.
"""

import re
from collections.abc import Iterator
from functools import partial

from app.grounding.amounts import amounts
from app.grounding.dates import dates, times, weekdays
from app.grounding.fact import Fact, without
from app.grounding.words import is_function_word, stem

ADDRESS = re.compile(
    r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"
    r"|(?:https?://)?\b[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){0,6}\.[a-z]{2,18}\b(?:/[\w./%-]*[\w/])?"
)
CODE = re.compile(r"\b(?!(?:EUR|GBP|USD)\d)(?=[A-Za-z-]{0,40}\d)[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*\b")
PHONE = re.compile(r"\+\d(?: ?\d){5,18}|(?<![\w.,:/+-])0\d{2,4}(?:[ /-]\d{2,8}){1,4}(?![\w:/]|[.,]\d)")
NAME = re.compile(r"(?<=[\w,>&%] )[\"'“‘]?(?!(?:I|EUR|GBP|USD|OK)\b)(?P<name>[A-ZÀ-ÖØ-Þ]\w*)")
"""A word with a capital letter that begins no sentence."""
ODD_CASE = str.maketrans("İıſ", "Iis")
"""Letters that patterns without regard to case match as "i" and "s", although their lower case is another letter."""
CAPITAL_NOUNS = frozenset({"de"})
"""Languages that write every noun with a capital letter."""


def facts(text: str, language: str = "en") -> list[Fact]:
    """Every fact of a text in this language."""
    found: list[Fact] = []
    rest = text.translate(ODD_CASE)
    spoken = [partial(read, language=language) for read in (amounts, names)]
    for read in (addresses, phones, dates, times, codes, spoken[0], weekdays, spoken[1]):
        new = list(read(rest))
        found += new
        rest = without(rest, new)
    return found


def addresses(text: str) -> Iterator[Fact]:
    """E-mail addresses and web addresses; each implies its host."""
    for match in ADDRESS.finditer(text):
        value = re.sub(r"^(?:https?://)?(?:www\.)?", "", match[0].lower()).rstrip("/")
        yield Fact("address", value, "", match[0], match.start())
        yield Fact("address", value.partition("@")[2] or value.partition("/")[0], "", match[0], match.start(), False)


def phones(text: str) -> Iterator[Fact]:
    """Telephone numbers, with their country code or a leading zero."""
    for match in PHONE.finditer(text):
        yield Fact("number", re.sub("[ /-]", "", match[0]), "phone", match[0], match.start())


def codes(text: str) -> Iterator[Fact]:
    """Model numbers, error codes, order numbers: letters with digits; hyphens and case do not count."""
    for match in CODE.finditer(text):
        yield Fact("code", match[0].replace("-", "").upper(), "", match[0], match.start())


def names(text: str, language: str) -> Iterator[Fact]:
    """Capitalised words, except in a language that writes every noun so."""
    for match in NAME.finditer(text) if language not in CAPITAL_NOUNS else ():
        if not is_function_word(match["name"]):
            yield Fact("name", stem(match["name"]), "", match["name"], match.start("name"))
