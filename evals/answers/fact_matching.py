"""Check whether a text holds a fact. Words are compared after their spelling is unified.

Unified: case, full-width characters, typographic quotes, dashes, spaces and hyphens, English number words ("twenty-one"
is 21), thousands separators (1,000 is 1000), and zero cents (5.00 is 5). A fact counts only as complete words: 18 is
not in 180, "renew" not in "renewal". A Chinese or Japanese character is a word. Out of scope: thousands separated by
plain spaces or full stops, inflection ("day", "days"), units ("1 hour", "60 minutes"). A fact lists all its forms.
"""

import re
import unicodedata
from collections.abc import Sequence

from retrieval.text.terms import CHINESE_JAPANESE

Fact = Sequence[str]
"""The forms of one fact, any of which counts."""

TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TO_NINETY = "twenty thirty forty fifty sixty seventy eighty ninety"
UNITS = {word: number for number, word in enumerate(TO_NINETEEN.split())}
TENS = {word: 10 * number for number, word in enumerate(TO_NINETY.split(), start=2)}
SCALES = {"hundred": 100, "thousand": 1000}

ALIKE = str.maketrans({**dict.fromkeys("‘’ʼ´`", "'"), **dict.fromkeys("‐‑‒–—−-", " "), "ß": "ss"})
THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:[,'’\u00a0\u2009\u202f]\d{3})+)(?!\d|[.,]\d{3})")
NOUGHT_CENTS = re.compile(r"(\d)[.,]00(?!\d)")
WORD = re.compile(rf"[{CHINESE_JAPANESE}]|\d+(?:[.,:/]\d+)*|[^\W\d{CHINESE_JAPANESE}]+(?:'[^\W\d]+)*|[€$£¥%]")


def words(text: str) -> list[str]:
    """Return the words in one spelling. Numbers, currency signs and % are words."""
    text = THOUSANDS.sub(lambda found: found[1] + re.sub(r"\D", "", found[2]), text)
    text = unicodedata.normalize("NFKC", text).casefold().translate(ALIKE)
    return _with_digits(WORD.findall(NOUGHT_CENTS.sub(r"\1", text)))


def holds_fact(text: str, fact: Fact) -> bool:
    there = words(text)
    return any(_is_within(words(form), there) for form in fact)


def holds_all(text: str, facts: Sequence[Fact]) -> bool:
    return all(holds_fact(text, fact) for fact in facts)


def _is_within(part: Sequence[str], whole: Sequence[str]) -> bool:
    length = len(part)
    return length > 0 and any(whole[at : at + length] == part for at in range(len(whole) - length + 1))


def _with_digits(spelled: list[str]) -> list[str]:
    """Write number words as digits: "twenty one" is 21, "two hundred" 200. Longer numbers stay."""
    found: list[str] = []
    at = 0
    while at < len(spelled):
        word, following = spelled[at], spelled[at + 1] if at + 1 < len(spelled) else ""
        at += 1
        if word in TENS and UNITS.get(following, 0) in range(1, 10):
            found.append(str(TENS[word] + UNITS[following]))
            at += 1
        elif word in UNITS and following in SCALES:
            found.append(str(UNITS[word] * SCALES[following]))
            at += 1
        elif word in UNITS or word in TENS:
            found.append(str(UNITS.get(word, TENS.get(word))))
        else:
            found.append(word)
    return found
