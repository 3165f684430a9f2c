"""The facts that a text states in so many words: amounts with their units, times, dates, names.

Each fact has a form in which it can be compared: 2 weeks are 14 days, 14:00 is 2 pm, EUR 3.50 is 3,50 €, three is 3.
Rules for English, with the digits of dates and amounts in Chinese and Japanese. Not covered: sums and conversions
between currencies, fractions in words, and names written in lower case.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from app.words import CJK, CONTRACTED, STOP, WORD, stem

FactKind = Literal["number", "time", "date", "month", "weekday", "code", "address", "name"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a text. place: the offset of its first character. is_bound: whether the text asserts it, and not only
    implies it as "an hour" does 1 hour. as_written: an amount before it was put into base units. beside:
    the words next to it, as far as the next fact of its kind.
    """

    kind: FactKind
    value: str
    unit: str
    text: str
    place: int
    is_bound: bool = True
    as_written: str = ""
    beside: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """The fact as a word, equal for equal facts."""
        return f"#{self.kind} {self.value} {self.unit}".rstrip()


UNITS: dict[str, tuple[str, str]] = {
    "EUR": ("1", "eur|euros?|€"),
    "GBP": ("1", "gbp|pounds?|£"),
    "USD": ("1", r"usd|dollars?|\$"),
    "cents": ("1", "cents?"),
    "%": ("1", "%|percent|per cent|％"),
    "seconds": ("1", "seconds?|secs?|秒"),
    "minutes": ("60", "minutes?|mins?|分钟|分間|分"),
    "hours": ("3600", "hours?|hrs?|h|小时|時間"),
    "working days": ("1", r"(?:working|business)[ -]days?|个?工作日|営業日"),
    "days": ("1", "days?|天|日"),
    "weeks": ("7", "weeks?|周|週間"),
    "months": ("1", "months?|个月|か月|ヶ月"),
    "years": ("12", "years?|年"),
    "g": ("1", "g|grams?|grammes?"),
    "kg": ("1000", "kg|kilos?|kilograms?"),
    "ml": ("1", "ml|millilit(?:re|er)s?"),
    "l": ("1000", "l|lit(?:re|er)s?"),
    "mm": ("1", "mm|millimet(?:re|er)s?"),
    "cm": ("10", "cm|centimet(?:re|er)s?"),
    "m": ("1000", "m|met(?:re|er)s?"),
    "km": ("1000000", "km|kilomet(?:re|er)s?"),
    "degrees": ("1", r"°\s?c|degrees(?: celsius)?"),
    "hardness": ("1", "°dh"),
    "W": ("1", "w|watts?"),
    "Wh": ("1", "wh|watt[ -]hours?"),
    "V": ("1", "v|volts?"),
    "GHz": ("1", "ghz"),
    "dB": ("1", "db|decibels?"),
    "MB": ("1", "mb|megabytes?"),
    "rpm": ("1", "rpm"),
    "tog": ("1", "togs?"),
}
BASE = {
    **{"minutes": "seconds", "hours": "seconds", "weeks": "days", "years": "months", "kg": "g", "l": "ml"},
    **{"cm": "mm", "m": "mm", "km": "mm"},
}
CURRENCIES = frozenset({"EUR", "GBP", "USD"})
ANY_UNIT = "|".join(f"(?P<u{i}>(?:{forms})(?![^\\W\\d_{CJK}]))" for i, (_, forms) in enumerate(UNITS.values()))
QUALIFIER = r"(?:(?:full|more|extra|further|additional|calendar|consecutive|whole)\s)?"
AFTER = re.compile(rf"[\s-]?{QUALIFIER}(?:{ANY_UNIT})", re.IGNORECASE)
CURRENCY_BEFORE = re.compile(r"(?:(EUR|€)|(GBP|£)|(USD|\$))\s?$", re.IGNORECASE)
RANGE = re.compile(r"\s?(?:to|or|and|by|-|–|x|×|until)\s?(?:EUR|€|GBP|£|USD|\$)?\s?", re.IGNORECASE)

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SPELLED = {
    **{word: n for n, word in enumerate(ONES)},
    **{word: 10 * n for n, word in enumerate(TENS, start=2)},
    **{f"{tens}-{one}": 10 * n + ones for n, tens in enumerate(TENS, start=2) for ones, one in enumerate(ONES[:10])},
    "hundred": 100,
    "thousand": 1000,
}
NUMBER = re.compile(
    rf"(?:(?<![^\W{CJK}])(?<![.\d])|(?<=EUR)|(?<=GBP)|(?<=USD))"
    rf"(?:\d+(?:[.,]\d+)*|(?:{'|'.join(sorted(SPELLED, key=len, reverse=True))})(?!\w))",
    re.IGNORECASE,
)
IMPLIED = re.compile(rf"\ban?\s{QUALIFIER}(?:{ANY_UNIT})", re.IGNORECASE)
THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")

MONTHS = "january february march april may june july august september october november december".split()
WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
MONTH = (
    "(?:(?i:january|february|april|june|july|august|september|october|november|december)|March|May|"
    r"(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)(?!\w)"
)
DAY = r"\d{1,2}(?:st|nd|rd|th)?"
DAY_MONTH = re.compile(
    rf"\b(?P<days>{DAY}(?:\s?(?:,|and|or|to|until|-|–)\s?{DAY}){{0,4}})(?:\sof)?\s(?P<month>{MONTH})(?:\s(?P<year>\d{{4}}))?"
)
MONTH_DAY = re.compile(rf"\b(?P<month>{MONTH})\s(?:the\s)?(?P<days>{DAY})(?![\w:])(?![.,]\d)(?:,?\s(?P<year>\d{{4}}))?")
MONTH_ALONE = re.compile(
    r"\b(?P<month>(?i:january|february|april|june|july|august|september|october|november|december)"
    r"|(?:(?<=[Ii]n )|(?<=of )|(?<=until )|(?<=since )|(?<=from )|(?<=every ))(?:March|May))(?!\w)"
)
ISO = re.compile(r"\b(?P<year>\d{4})-(?P<month>\d{2})-(?P<days>\d{2})\b")
NUMERIC = re.compile(r"\b(?P<days>\d{1,2})[./](?P<month>\d{1,2})[./](?P<year>\d{4})\b")
CJK_DATE = re.compile(r"(?:(?P<year>\d{4})年)?(?P<month>\d{1,2})月(?P<days>\d{1,2})[日号]")
WEEKDAY = re.compile(
    r"\b(?P<day>(?i:monday|tuesday|wednesday|thursday|friday|saturday|sunday))(?i:s)?\b"
    r"|\b(?P<short>Mon|Tues?|Wed|Thu(?:rs)?|Fri|Sat|Sun)\b|\b(?P<group>(?i:weekdays?|weekends?))\b"
)
TO = re.compile(r"\s?(?:to|until|through|-|–)\s?", re.IGNORECASE)
CLOCK = re.compile(
    r"\b(?P<hour>\d{1,2})(?:[:.](?P<minute>\d{2}))?\s?(?P<half>[ap])\.?m\b\.?"
    r"|\b(?P<hour24>\d{1,2}):(?P<minute24>\d{2})(?!\d)|\b(?P<word>noon|midnight)\b",
    re.IGNORECASE,
)

ADDRESS = re.compile(
    r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"
    r"|(?:https?://)?\b[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){0,6}\.[a-z]{2,18}\b(?:/[\w./%-]*[\w/])?"
)
CODE = re.compile(r"\b(?!(?:EUR|GBP|USD)\d)(?=[A-Za-z-]*\d)[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*\b")
PHONE = re.compile(r"\+\d(?: ?\d){5,18}")
NOT_NAMES = frozenset("I EUR GBP USD OK".split())
LONGEST_NUMBER = 20
"""Digits of a number that can be calculated with; longer ones are compared as written."""
CAPITAL = re.compile(r"[A-ZÀ-ÖØ-Þ]\w*(?:['’]\w+)*")
BESIDE = 4
LONGEST_RANGE = 9
"""Characters between the beginnings of two facts that are the ends of a range, such as "9:00 to 17:00"."""
STOPS = re.compile(r"[;:!?()]|[.,]\s|\b(?:and|or|but|while)\b", re.IGNORECASE)
OPENS = frozenset(".!?:;(\n–—•*")
"""What a sentence begins after."""
QUOTES = "\"'“”‘’ "


def facts(text: str) -> list[Fact]:
    """Every fact of a text. What was read as one kind of fact is not read as another."""
    found: list[Fact] = []
    rest = text
    for read in (addresses, phones, dates, times, codes, amounts, weekdays):
        new = list(read(rest))
        found += new
        rest = without(rest, new)
    return [*with_words(found, rest), *names(text, rest)]


def with_words(found: list[Fact], rest: str) -> list[Fact]:
    """The facts with the words and other facts beside them. rest: the text without facts."""
    words = [(m.start(), "", stem(m[0])) for m in WORD.finditer(rest) if m[0].lower() not in STOP]
    all_in_order = sorted([*words, *((fact.place, fact.kind, fact.key) for fact in found if fact.is_bound)])
    return [replace(fact, beside=frozenset(words_beside(fact, all_in_order, rest))) for fact in found]


def words_beside(fact: Fact, words: list[tuple[int, str, str]], rest: str) -> Iterator[str]:
    """Up to three words on each side of a fact, as far as the next fact of its kind or the end of the clause."""
    behind = bisect_left(words, (fact.place + 1, "", ""))
    before = bisect_left(words, (fact.place, "", ""))
    for side in (words[behind : behind + BESIDE], words[max(0, before - BESIDE) : before][::-1]):
        for place, kind, word in side:
            is_range = kind == fact.kind and abs(place - fact.place) <= LONGEST_RANGE
            if (kind == fact.kind and not is_range) or not is_open(rest, place, fact.place):
                break
            if not is_range:
                yield word


def is_open(text: str, place: int, other: int) -> bool:
    """Whether no sentence, cell or bracket ends between two places."""
    return STOPS.search(text, min(place, other), max(place, other)) is None


def without(text: str, found: list[Fact]) -> str:
    """The text with the given facts blanked out, everything else in its place."""
    letters = list(text)
    for fact in found:
        letters[fact.place : fact.place + len(fact.text)] = " " * len(fact.text)
    return "".join(letters)


def addresses(text: str) -> Iterator[Fact]:
    """E-mail addresses and web addresses; each implies its host."""
    for match in ADDRESS.finditer(text):
        value = re.sub(r"^https?://|^www\.", "", match[0].lower()).rstrip("/")
        yield Fact("address", value, "", match[0], match.start())
        yield Fact("address", value.partition("@")[2] or value.partition("/")[0], "", match[0], match.start(), False)


def phones(text: str) -> Iterator[Fact]:
    """Telephone numbers with their country code."""
    for match in PHONE.finditer(text):
        yield Fact("number", match[0].replace(" ", ""), "phone", match[0], match.start())


def dates(text: str) -> Iterator[Fact]:
    """Days of the year in the usual ways to write them, and months; a year counts as a fact of its own."""
    for pattern in (ISO, NUMERIC, CJK_DATE, DAY_MONTH, MONTH_DAY):
        matches = list(pattern.finditer(text))
        for match in matches:
            yield from dates_of(match)
        for match in matches:
            text = text[: match.start()] + " " * len(match[0]) + text[match.end() :]
    for match in MONTH_ALONE.finditer(text):
        yield Fact("month", month_number(match["month"]), "", match[0], match.start())


def dates_of(match: re.Match[str]) -> Iterator[Fact]:
    """The dates of one match: "24 and 31 December" are two."""
    month = month_number(match["month"])
    for day in re.findall(r"\d+", match["days"]):
        yield Fact("date", f"{month}-{int(day)}", "", match[0], match.start())
    yield Fact("month", month, "", match[0], match.start(), False)
    if match["year"]:
        yield Fact("number", match["year"], "", match[0], match.start(), False)


def month_number(name: str) -> str:
    """1 to 12 for a month's name, its first three letters or its number."""
    if name.isdigit():
        return str(int(name))
    return str(1 + next(i for i, month in enumerate(MONTHS) if month[:3] == name[:3].lower()))


def times(text: str) -> Iterator[Fact]:
    """Times of day in minutes since midnight."""
    for match in CLOCK.finditer(text):
        if match["word"]:
            minutes = 720 if match["word"].lower() == "noon" else 0
        elif match["half"]:
            minutes = int(match["hour"]) % 12 * 60 + int(match["minute"] or 0) + 720 * (match["half"].lower() == "p")
        else:
            minutes = int(match["hour24"]) * 60 + int(match["minute24"])
        yield Fact("time", str(minutes), "", match[0], match.start())


def codes(text: str) -> Iterator[Fact]:
    """Model numbers, error codes, order numbers: letters with digits; hyphens and case do not count."""
    for match in CODE.finditer(text):
        yield Fact("code", match[0].replace("-", "").upper(), "", match[0], match.start())


def amounts(text: str) -> Iterator[Fact]:
    """Numbers with their units in base units; "2 to 4 days" are 2 days and 4 days."""
    found = [amount(text, match) for match in NUMBER.finditer(text)]
    for i in range(1, len(found)):
        if not found[i].unit and found[i - 1].unit in CURRENCIES and is_range(text, found[i - 1], found[i]):
            found[i] = replace(found[i], unit=found[i - 1].unit)
    for i in reversed(range(1, len(found))):
        if not found[i - 1].unit and is_range(text, found[i - 1], found[i]):
            found[i - 1] = replace(found[i - 1], unit=found[i].unit)
    for fact in found:
        # "one" is rarely a count unless it has a unit: "the new one"
        if fact.unit or fact.text.lower() != "one":
            yield in_base_units(fact)
    for match in IMPLIED.finditer(text):
        yield in_base_units(Fact("number", "1", unit_of(match), match[0], match.start(), False))


def is_range(text: str, first: Fact, second: Fact) -> bool:
    """Whether two numbers are the ends of a range or alternatives, so that one unit serves both."""
    return RANGE.fullmatch(text, first.place + len(first.text), second.place) is not None


def amount(text: str, match: re.Match[str]) -> Fact:
    """The number of a match with the unit right behind it or the currency right before it, not yet in base units."""
    value = number(match[0])
    before = CURRENCY_BEFORE.search(text, max(0, match.start() - 4), match.start())
    if before:
        unit = ("EUR", "GBP", "USD")[(before.lastindex or 1) - 1]
        return Fact("number", value, unit, text[before.start() : match.end()], before.start())
    after = AFTER.match(text, match.end())
    if after:
        return Fact("number", value, unit_of(after), text[match.start() : after.end()], match.start())
    return Fact("number", value, "", match[0], match.start())


def number(text: str) -> str:
    """A number without thousands separators, with a decimal point and without needless zeros."""
    if text.lower() in SPELLED:
        return str(SPELLED[text.lower()])
    plain = text.replace(",", "") if THOUSANDS.fullmatch(text) else text.replace(",", ".")
    if plain.count(".") > 1 or len(plain) > LONGEST_NUMBER:
        return plain
    return format(Decimal(plain).normalize(), "f")


def unit_of(match: re.Match[str]) -> str:
    """The unit that matched."""
    return next(name for i, name in enumerate(UNITS) if match[f"u{i}"])


def in_base_units(fact: Fact) -> Fact:
    """The same amount in the base unit of its kind, so that 2 weeks equal 14 days."""
    fact = replace(fact, as_written=fact.value)
    if fact.unit not in BASE or fact.value.count(".") > 1 or len(fact.value) > LONGEST_NUMBER:
        return fact
    value = format((Decimal(fact.value) * Decimal(UNITS[fact.unit][0])).normalize(), "f")
    return replace(fact, value=value, unit=BASE[fact.unit])


def weekdays(text: str) -> Iterator[Fact]:
    """Days of the week; "Monday to Friday" implies the days between."""
    last: tuple[int, int] | None = None
    for match in WEEKDAY.finditer(text):
        if match["group"]:
            for day in WEEKDAYS[:5] if match["group"].lower().startswith("weekd") else WEEKDAYS[5:]:
                yield Fact("weekday", day, "", match[0], match.start(), False)
            if match["group"].lower() == "weekdays":
                yield Fact("weekday", "monday to friday", "", match[0], match.start(), False)
            continue
        index = next(i for i, day in enumerate(WEEKDAYS) if day[:3] == match[0][:3].lower())
        yield Fact("weekday", WEEKDAYS[index], "", match[0], match.start())
        if last and TO.fullmatch(text, last[1], match.start()):
            yield Fact("weekday", f"{WEEKDAYS[last[0]]} to {WEEKDAYS[index]}", "", match[0], match.start())
            for between in range(last[0] + 1, index):
                yield Fact("weekday", WEEKDAYS[between], "", match[0], match.start(), False)
        last = index, match.end()


def names(text: str, rest: str) -> Iterator[Fact]:
    """Capitalised words of `rest`, what is left of `text`. A word that begins a sentence may or may not be a name."""
    for match in CAPITAL.finditer(rest):
        word = CONTRACTED.sub("", match[0])
        if word not in NOT_NAMES and word.lower() not in STOP:
            is_bound = not begins_sentence(text, match.start())
            yield Fact("name", stem(word), "", match[0], match.start(), is_bound)


def begins_sentence(text: str, place: int) -> bool:
    """Whether only quotation marks and spaces stand between a place and the end of the sentence before."""
    while place and text[place - 1] in QUOTES:
        place -= 1
    return place == 0 or text[place - 1] in OPENS
