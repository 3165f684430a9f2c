"""The facts that a text states explicitly: amounts, dates and times, addresses, model numbers, names.

No part of a text is read as facts of two kinds. Not covered: names written in lower case, names among German nouns
(with a capital, each of them may be one), sums.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from app.grounding.amounts import amounts
from app.grounding.dates import dates, times, weekdays
from app.grounding.fact import Fact, without
from app.grounding.words import CONTRACTED, WORD, is_function_word, stem

ADDRESS = re.compile(
    r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"
    r"|(?:https?://)?\b[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){0,6}\.[a-z]{2,18}\b(?:/[\w./%-]*[\w/])?"
)
CODE = re.compile(r"\b(?!(?:EUR|GBP|USD)\d)(?=[A-Za-z-]{0,40}\d)[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*\b")
PHONE = re.compile(r"\+\d(?: ?\d){5,18}|(?<![\w.,:/+-])0\d{2,4}(?:[ /-]\d{2,8}){1,4}(?![\w:/]|[.,]\d)")
CAPITAL = re.compile(r"[A-ZÀ-ÖØ-Þ]\w*(?:['’]\w+)*")
ODD_CASE = str.maketrans("İıſ", "Iis")
"""Letters that patterns without regard to case match as "i" and "s", although their lower case is another letter."""
NOT_NAMES = frozenset({"I", "EUR", "GBP", "USD", "OK"})
CAPITAL_NOUNS = frozenset({"de"})
"""Languages that write every noun with a capital letter."""
OPENS = frozenset(".!?:;(\n–—•*")
"""Characters after which a sentence begins."""
QUOTES = "\"'“”‘’ "
BESIDE = 4
"""How many words on each side of a fact are beside it."""
LONGEST_RANGE = 9
"""Most characters between the starts of two facts that are the ends of a range, such as "9:00 to 17:00"."""
STOPS = re.compile(r"[;:!?()]|[.,]\s|\b(?:and|or|but|while)\b", re.IGNORECASE)


def facts(text: str, language: str = "en") -> list[Fact]:
    """Every fact of a text in this language, names last."""
    text = text.translate(ODD_CASE)
    found: list[Fact] = []
    rest = text
    for read in (addresses, phones, dates, times, codes, partial(amounts, language=language), weekdays):
        new = list(read(rest))
        found += new
        rest = without(rest, new)
    return [*with_words(found, rest), *names(text, rest, language)]


def with_words(found: list[Fact], rest: str) -> list[Fact]:
    """The facts with the words and other facts beside them. rest: the text without facts."""
    words = [(m.start(), "", stem(m[0])) for m in WORD.finditer(rest) if not is_function_word(m[0])]
    all_in_order = sorted([*words, *((fact.place, fact.kind, fact.key) for fact in found if fact.is_bound)])
    return [replace(fact, beside=frozenset(words_beside(fact, all_in_order, rest))) for fact in found]


def words_beside(fact: Fact, words: list[tuple[int, str, str]], rest: str) -> Iterator[str]:
    """Some words on each side of a fact, up to the next fact of its kind or the end of the clause."""
    behind = bisect_left(words, (fact.place + 1, "", ""))
    before = bisect_left(words, (fact.place, "", ""))
    for side in (words[behind : behind + BESIDE], words[max(0, before - BESIDE) : before][::-1]):
        for place, kind, word in side:
            is_range = kind == fact.kind and abs(place - fact.place) <= LONGEST_RANGE
            has_ended = STOPS.search(rest, min(place, fact.place), max(place, fact.place))
            if (kind == fact.kind and not is_range) or has_ended:
                break
            if not is_range:
                yield word


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


def names(text: str, rest: str, language: str) -> Iterator[Fact]:
    """Capitalised words of `rest`, what is left of `text`. A word that begins a sentence may or may not be a name, and
    so may any word of a language that capitalises its nouns.
    """
    for match in CAPITAL.finditer(rest):
        word = CONTRACTED.sub("", match[0])
        if word not in NOT_NAMES and not is_function_word(word):
            is_bound = language not in CAPITAL_NOUNS and not begins_sentence(text, match.start())
            yield Fact("name", stem(word), "", match[0], match.start(), is_bound)


def begins_sentence(text: str, place: int) -> bool:
    """Whether only quotation marks and spaces stand between a place and the end of the sentence before."""
    before = text[:place].rstrip(QUOTES)
    return not before or before[-1] in OPENS
