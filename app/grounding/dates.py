"""Dates, weekdays and times of day of a text, whichever way they are written.

A date of three numbers begins with the day or the year, unless its month would be none: English does not say whether
it is British or American. Not covered: names of months in other languages, dates relative to today, holidays by name,
days that lie between two dates.
"""

import re
from collections.abc import Iterator

from app.grounding.fact import Fact, without

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# "march" and "may" in small letters are other words
MONTH = (
    r"(?:(?i:january|february|april|june|july|august|september|october|november|december)|March|May"
    r"|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)(?!\w)"
)
DAY = r"\d{1,2}(?:st|nd|rd|th)?"
AND = r"(?:and|or|to|until|through|-|–)\s?(?:the\s)?"
NO_DAY = r"(?![\w:])(?![.,]\d)(?!\s?(?i:(?:days?|working|business|weeks?|months?|hours?|minutes?|[ap]\.?m|eur)\b|[%€]))"
DATES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<days>\d{1,2})\b",
        r"\b(?P<days>\d{1,2})[./](?P<month>\d{1,2})[./](?P<year>\d{4})\b",
        r"(?:(?P<year>\d{4})年)?(?P<month>\d{1,2})月(?P<days>\d{1,2})[日号]",
        rf"\b(?P<days>{DAY}(?:\s?(?:,|{AND})\s?{DAY}){{0,4}})(?:\sof)?\s(?P<month>{MONTH})(?:\s(?P<year>\d{{4}}))?",
        rf"\b(?P<month>{MONTH})\s(?:the\s)?(?P<days>{DAY}(?![\w:])(?![.,]\d)(?:\s?{AND}{DAY}{NO_DAY})?)(?:,?\s(?P<year>\d{{4}}))?",
    )
)
WEEKDAY = re.compile(rf"\b(?P<day>(?i:{'|'.join(WEEKDAYS)})s?|Mon|Tues?|Wed|Thu(?:rs)?|Fri|Sat|Sun|(?i:weekends?))\b")
RANGE = re.compile(r"\s?(?:to|until|through|-|–)\s?", re.IGNORECASE)
CLOCK = re.compile(
    r"\b(?P<hour>\d{1,2})(?:[:.](?P<minute>\d{2}))?\s?(?P<half>[ap])(?:m\b|\.m\b\.?)"
    r"|\b(?P<hour24>\d{1,2}):(?P<minute24>\d{2})(?!\d)|\b(?P<word>noon|midnight)\b",
    re.IGNORECASE,
)


def dates(text: str) -> Iterator[Fact]:
    """Days of the year in the usual ways to write them; the year of a date is implied."""
    for pattern in DATES:
        found = [fact for match in pattern.finditer(text) for fact in dates_of(match)]
        yield from found
        text = without(text, found)


def dates_of(match: re.Match[str]) -> Iterator[Fact]:
    """The dates of one match: "24 and 31 December" are two."""
    name, days = match["month"], re.findall(r"\d+", match["days"])
    month = int(name) if name.isdigit() else 1 + MONTHS.index(name[:3].lower())
    if month > len(MONTHS) >= int(days[0]) and match.start("days") < match.start("month"):  # as in the United States
        month, days = int(days[0]), [name]
    if month <= len(MONTHS):
        yield from (Fact("date", f"{month}-{int(day)}", "", match[0], match.start()) for day in days)
        if match["year"]:
            yield Fact("number", match["year"], "", match[0], match.start(), False)


def times(text: str) -> Iterator[Fact]:
    """Times of day in minutes since midnight."""
    for match in CLOCK.finditer(text):
        hour, minute = int(match["hour"] or match["hour24"] or 12), int(match["minute"] or match["minute24"] or 0)
        if match["half"] or match["word"]:
            hour = hour % 12 + 12 * ((match["half"] or match["word"]).lower() in ("p", "noon"))
        yield Fact("time", str(60 * hour + minute), "", match[0], match.start())


def weekdays(text: str) -> Iterator[Fact]:
    """Days of the week; "Monday to Friday" implies the days between."""
    last, end = 0, 0
    for match in WEEKDAY.finditer(text):
        first, day = last, next((i for i, name in enumerate(WEEKDAYS) if name[:3] == match[0][:3].lower()), 5)
        yield Fact("weekday", WEEKDAYS[day], "", match[0], match.start())
        if end and RANGE.fullmatch(text, end, match.start()):
            yield from (Fact("weekday", name, "", match[0], match.start(), False) for name in WEEKDAYS[first + 1 : day])
        last, end = day, match.end()
