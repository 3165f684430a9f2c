"""Errors planted in a claim, one at a time, and ways to word a claim anew that leave it true.

Rules over English text. Each gives None where it has nothing to change. They know nothing of the checks that they are
used to measure: opposites and additions are lists of their own.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evals.rewording import without_marker

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNITS = ("days", "weeks", "months", "hours", "minutes", "years")
A_MONTH, A_WEEKDAY = f"(?:{'|'.join(MONTHS)})", f"(?:{'|'.join(WEEKDAYS)})"
QUANTITY = re.compile(r"(?<![\w.,:+-])\d+(?:[.,]\d+)?(?![\w:]|-\w*\d|[.,]\d)")
CLOCK = re.compile(r"\b\d{1,2}:\d{2}\b")
CODE = re.compile(r"\b[A-Z]{1,3}-?\d+\w*\b")
ADDRESS = re.compile(r"\b\w+@[\w.]+\w")
NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{3,}\b")

LOSSES = (
    (r"\b[Cc]annot\b|\b[Cc]an't\b", "can"),
    (r"\b(?:do not|don't) ?", ""),
    (r"\b(is|are|was|were|has|have|does|will|must|should|may)(?: not\b|n't\b)", r"\1"),
    (r"\bwon't\b", "will"),
    (r"\bnever\b", "always"),
    (r"\bno (?!matter|more|later|longer|one)(?=\w+)", "a "),
    (r"\bwithout\b", "with"),
    (r"\bunless\b", "if"),
    (r"\bexcept\b", "including"),
)
"""Denials, and what is left when they are taken out."""
GAINS = (
    (r"\bcan\b(?! not\b)(?!')", "cannot"),
    (r"\b(is|are|will|must|may|should|has been|have been)\b(?! not)", r"\1 not"),
    (
        r"\b([Ww]e|[Yy]ou|I) (send|refund|get|keep|ask|email|accept|charge|check|have|need|receive|pay)\b",
        r"\1 do not \2",
    ),
)
"""Where a denial can be put in."""
DENIES = re.compile(
    r"\b(?:not|no|never|cannot|without|unless|except|only|nothing|nobody|none|neither|nor)\b|n't\b", re.IGNORECASE
)

OPPOSITES = """
    accept reject, accepts rejects, accepted rejected, active inactive, add remove, added removed, adding removing,
    all none, allow forbid, allows forbids, allowed forbidden, always never, automatic manual, automatically manually,
    available unavailable, begin end, begins ends, buy sell, closed open, complete incomplete, correct wrong,
    decrease increase, decreases increases, different same, easy difficult, enable disable, enabled disabled,
    external internal, first last, forget remember, full empty, higher lower, include exclude, includes excludes,
    included excluded, inside outside, large small, larger smaller, legal illegal, less more, longer shorter,
    maximum minimum, most fewest, new old, newer older, online offline, optional required, permanent temporary,
    personal shared, possible impossible, private public, receive send, received sent, reduce raise, rich poor,
    safe dangerous, slow fast, start stop, starts stops, strong weak, up down, upload download, valid invalid,
    visible hidden, free paid, mandatory voluntary, approved denied,
    eligible ineligible, successful failed, expand shrink, lock unlock
"""
PAIRS = tuple(tuple(pair.split()) for pair in OPPOSITES.split(","))
OTHER_WORD = {one: other for a, b in PAIRS for one, other in ((a, b), (b, a))}

ORDER = (("before", "after"), ("earlier than", "later than"), ("until", "only after"))
BOUNDS = (
    ("up to", "at least"),
    ("at least", "at most"),
    ("more than", "less than"),
    ("minimum", "maximum"),
    ("no later than", "no earlier than"),
    ("over", "under"),
)
AMOUNT = r"(?= (?:an? |the )?(?:[$€£]?\d|EUR \d|one|two|three|four|five|six|seven|eight|nine|ten|twelve|thirty)\b)"
"""What a bound stands before."""
ADDITIONS = (
    *(" in any condition", " at any time of the day", " free of charge", " in every country", " for your whole family"),
    *(" without giving a reason", " from any device", " by telephone", " at the post office", " with a signed letter"),
    *(
        ", and you get a confirmation by text message",
        ", and this never expires",
        ", even after your account is closed",
    ),
    *(", and our lawyers check it twice", ", which usually takes three weeks", " as long as you are a resident"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What errors are made of. headings: of the claim's own page and of another one. names: of other passages."""

    heading: str
    other_heading: str
    names: Sequence[str]


Planter = Callable[[str, Surroundings, random.Random], str | None]
"""Takes a claim, where it stands and a source of chance; gives the claim with one error, or None."""


def changed(text: str, match: re.Match[str], by: str) -> str:
    """The text with something else where a pattern matched, a capital letter kept."""
    if match[0][:1].isupper():
        by = by[:1].upper() + by[1:]
    return text[: match.start()] + by + text[match.end() :]


def wrong_number(text: str, _: Surroundings, choose: random.Random) -> str | None:
    """Another amount, or another unit for it."""
    marker = len(text) - len(without_marker(text))
    found = [m for m in QUANTITY.finditer(text, marker) if not re.match(rf" {A_MONTH}\b", text[m.end() :])]
    if not found:
        return None
    match = choose.choice(found)
    unit = re.match(rf" ({'|'.join(UNITS)})\b", text[match.end() :])
    if unit and choose.random() < 0.25:
        other = choose.choice([u for u in UNITS if u != unit[1]])
        return text[: match.end()] + " " + other + text[match.end() + len(unit[0]) :]
    value = float(match[0].replace(",", "") if re.search(r",\d{3}", match[0]) else match[0].replace(",", "."))
    new = choose.choice((value + 1, value * 2 or 3, value + 5, max(1, value - 1) if value != 1 else 3))
    return changed(text, match, f"{new:.2f}" if "." in match[0] else f"{new:.0f}")


def wrong_time(text: str, _: Surroundings, choose: random.Random) -> str | None:
    """Another time of day, weekday, month or day of the month."""
    clocks, days, months, dates = (
        list(re.finditer(pattern, text))
        for pattern in (
            CLOCK,
            rf"\b{A_WEEKDAY}(?=s?\b)",
            rf"(?<!^)\b{A_MONTH}\b(?! be\b)",
            rf"\b\d{{1,2}}(?= {A_MONTH}\b)",
        )
    )
    found = [*clocks, *days, *months, *dates]
    if not found:
        return None
    match = choose.choice(found)
    if match in clocks:
        hour, minute = match[0].split(":")
        return changed(text, match, f"{(int(hour) + choose.choice((1, 2, 3))) % 24}:{minute}")
    if match in dates:
        return changed(text, match, str((int(match[0]) + choose.choice((1, 4, 10))) % 28 + 1))
    names = WEEKDAYS if match in days else MONTHS
    return changed(text, match, choose.choice([name for name in names if name not in text]))


def wrong_name(text: str, where: Surroundings, choose: random.Random) -> str | None:
    """Another name, model number or address, if there is one nearby."""
    addresses, codes = list(ADDRESS.finditer(text)), list(CODE.finditer(text))
    found = [*addresses, *codes, *(m for m in NAME.finditer(text) if m[0].rstrip("s") not in {*MONTHS, *WEEKDAYS})]
    if not found:
        return None
    match = choose.choice(found)
    if match in addresses:
        return changed(text, match, choose.choice(("service", "orders", "info")) + "@" + match[0].partition("@")[2])
    known = [n for n in where.names if bool(CODE.fullmatch(n)) == (match in codes) and n not in text]
    return changed(text, match, choose.choice(known)) if known else None


def wrong_denial(text: str, _: Surroundings, choose: random.Random) -> str | None:
    """A denial taken out, or one put in where there is none."""
    found = [(p, by) for p, by in LOSSES if re.search(p, text)]
    found = found or ([] if DENIES.search(text) else [(p, by) for p, by in GAINS if re.search(p, text)])
    if not found:
        return None
    pattern, by = choose.choice(found)
    if by == "cannot" and text.startswith("Yes, "):
        text = "No, " + text[5:]
    return re.sub(pattern, by, text, count=1)


def opposite(text: str, _: Surroundings, choose: random.Random) -> str | None:
    """A word exchanged for its opposite."""
    found = [m for m in re.finditer(r"[A-Za-z]+", text) if m[0].lower() in OTHER_WORD]
    match = choose.choice(found) if found else None
    return changed(text, match, OTHER_WORD[match[0].lower()]) if match else None


def exchanged(pairs: Sequence[tuple[str, str]], before: str = "") -> Planter:
    """An error that exchanges two words for each other, whichever of them stands before what a pattern says."""
    other = {one: two for a, b in pairs for one, two in ((b, a), (a, b))}
    pattern = re.compile(rf"\b(?:{'|'.join(sorted(other, key=len, reverse=True))})\b{before}", re.IGNORECASE)

    def plant(text: str, _: Surroundings, choose: random.Random) -> str | None:
        found = list(pattern.finditer(text))
        match = choose.choice(found) if found else None
        return changed(text, match, other[match[0].lower()]) if match else None

    return plant


def with_addition(text: str, _: Surroundings, choose: random.Random) -> str | None:
    """Something at the end that no passage says."""
    end = len(text.rstrip(".!"))
    return f"{text[:end]}{choose.choice(ADDITIONS)}." if text.endswith(".") else None


def of_another_page(text: str, where: Surroundings, choose: random.Random) -> str | None:
    """Said of the subject of another page. Its true twin says it of its own (`of_its_page`)."""
    return of_page(text, where.other_heading)


def of_page(text: str, heading: str) -> str | None:
    """Said of the subject of a page."""
    if not heading or not re.match(r"(?:You|We|The|It|A|An|Your|This|If) ", text):
        return None
    return f"{heading}: {text}"


KINDS: dict[str, Planter] = {
    "number": wrong_number,
    "date or time": wrong_time,
    "name": wrong_name,
    "negation": wrong_denial,
    "opposite": opposite,
    "order": exchanged(ORDER),
    "bound": exchanged(BOUNDS, AMOUNT),
    "addition": with_addition,
    "other page": of_another_page,
}
