"""Dates, months, weekdays and times of day of a text, whichever way they are written.

A date of three numbers begins with the day or the year, unless its month would be none: English does not say whether
it is British or American. Not covered: names of months in other languages, dates relative to today, holidays by name,
days that lie between two dates.
"""

import re
from collections.abc import Iterator

from app.grounding.fact import Fact, without

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
LAST_MONTH = len(MONTHS)
SURE_MONTH = "january|february|april|june|july|august|september|october|november|december"
"""Months whose names, in lower case, are no other words."""
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTH = rf"(?:(?i:{SURE_MONTH})|March|May|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)(?!\w)"
DAY = r"\d{1,2}(?:st|nd|rd|th)?"
AND = r"(?:and|or|to|until|through|-|–)\s?(?:the\s)?"
DAY_MONTH = re.compile(
    rf"\b(?P<days>{DAY}(?:\s?(?:,|{AND})\s?{DAY}){{0,4}})(?:\sof)?\s(?P<month>{MONTH})(?:\s(?P<year>\d{{4}}))?"
)
NO_DAY = r"(?!\s?(?i:(?:days?|working|business|weeks?|months?|hours?|minutes?|[ap]\.?m|eur)\b|[%€]))"
MONTH_DAY = re.compile(
    rf"\b(?P<month>{MONTH})\s(?:the\s)?(?P<days>{DAY}(?![\w:])(?![.,]\d)(?:\s?{AND}{DAY}(?![\w:])(?![.,]\d){NO_DAY})?)"
    r"(?:,?\s(?P<year>\d{4}))?"
)
MONTH_ALONE = re.compile(
    rf"\b(?P<month>(?i:{SURE_MONTH})"
    r"|(?:(?<=[Ii]n )|(?<=of )|(?<=until )|(?<=since )|(?<=from )|(?<=every ))(?:March|May))(?!\w)"
)
YEAR_FIRST = re.compile(r"\b(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<days>\d{1,2})\b")
NUMERIC = re.compile(r"\b(?P<days>\d{1,2})[./](?P<month>\d{1,2})[./](?P<year>\d{4})\b")
CJK_DATE = re.compile(r"(?:(?P<year>\d{4})年)?(?P<month>\d{1,2})月(?P<days>\d{1,2})[日号]")
WEEKDAY = re.compile(
    rf"\b(?P<day>(?i:{'|'.join(WEEKDAYS)}))(?i:s)?\b"
    r"|\b(?P<short>Mon|Tues?|Wed|Thu(?:rs)?|Fri|Sat|Sun)\b|\b(?P<group>(?i:weekdays?|weekends?))\b"
)
RANGE = re.compile(r"\s?(?:to|until|through|-|–)\s?", re.IGNORECASE)
CLOCK = re.compile(
    r"\b(?P<hour>\d{1,2})(?:[:.](?P<minute>\d{2}))?\s?(?P<half>[ap])(?:m\b|\.m\b\.?)"
    r"|\b(?P<hour24>\d{1,2}):(?P<minute24>\d{2})(?!\d)|\b(?P<word>noon|midnight)\b",
    re.IGNORECASE,
)


def dates(text: str) -> Iterator[Fact]:
    """Days of the year in the usual ways to write them, and months that stand alone; the year of a date is implied."""
    for pattern in (YEAR_FIRST, NUMERIC, CJK_DATE, DAY_MONTH, MONTH_DAY):
        found = [fact for match in pattern.finditer(text) for fact in dates_of(match)]
        yield from found
        text = without(text, found)
    for match in MONTH_ALONE.finditer(text):
        yield Fact("month", month_number(match["month"]), "", match[0], match.start())


def dates_of(match: re.Match[str]) -> Iterator[Fact]:
    """The dates of one match: "24 and 31 December" are two."""
    month, days = month_number(match["month"]), re.findall(r"\d+", match["days"])
    if match.re is NUMERIC and int(month) > LAST_MONTH:  # as in the United States: 12/25/2026
        month, days = str(int(days[0])), [month]
    if int(month) > LAST_MONTH:
        return
    for day in days:
        yield Fact("date", f"{month}-{int(day)}", "", match[0], match.start())
    yield Fact("month", month, "", match[0], match.start(), False)
    if match["year"]:
        yield Fact("number", match["year"], "", match[0], match.start(), False)


def month_number(name: str) -> str:
    """1 to 12 for a month's name, its first three letters or its number."""
    return str(int(name) if name.isdigit() else 1 + MONTHS.index(name[:3].lower()))


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


def weekdays(text: str) -> Iterator[Fact]:
    """Days of the week; "Monday to Friday" implies the days between."""
    last: tuple[int, int] | None = None
    for match in WEEKDAY.finditer(text):
        if match["group"]:
            group = match["group"].lower()
            is_weekend = group.startswith("weeke")
            days = WEEKDAYS[5:] if is_weekend else (*WEEKDAYS[:5], *["monday to friday"] * (group == "weekdays"))
            yield from (Fact("weekday", day, "", match[0], match.start(), is_weekend) for day in days)
            continue
        index = next(i for i, day in enumerate(WEEKDAYS) if day[:3] == match[0][:3].lower())
        yield Fact("weekday", WEEKDAYS[index], "", match[0], match.start())
        if last and RANGE.fullmatch(text, last[1], match.start()):
            yield Fact("weekday", f"{WEEKDAYS[last[0]]} to {WEEKDAYS[index]}", "", match[0], match.start())
            for between in range(last[0] + 1, index):
                yield Fact("weekday", WEEKDAYS[between], "", match[0], match.start(), False)
        last = index, match.end()
