"""Numbers of a text with their units, in base units: 2 weeks are 14 days, EUR 3.50 is 3,50 €, three is 3.

Rules for English, with some units of Chinese and Japanese; decimal marks by language. Not covered: fractions in words,
conversion of currencies, thousands apart by spaces, units that are not in the table (the word behind the number then
counts as a word).
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from app.grounding.fact import Fact
from app.grounding.words import CJK

METRES = "met(?:re|er)s?"
UNITS = {
    "EUR": {1: "eur|euros?|€|欧元"},
    "GBP": {1: "gbp|pounds?|£"},
    "USD": {1: r"usd|dollars?|\$|美元"},
    "¥": {1: "¥|￥|jpy|yen|円|日元|cny|rmb|yuan|元|人民币"},  # the sign stands for yen and yuan
    "INR": {1: "inr|rupees?|₹"},
    "CHF": {1: "chf|swiss francs?"},
    "cents": {1: "cents?"},
    "%": {1: "%|percent|per cent|％"},
    "seconds": {1: "seconds?|secs?|秒", 60: "minutes?|mins?|分钟|分間|分", 3_600: "hours?|hrs?|h|小时|時間"},
    "working days": {1: "(?:working|business)[ -]days?|个?工作日|営業日"},
    "days": {1: "days?|天|日", 7: "weeks?|周|週間"},
    "months": {1: "months?|个月|か月|ヶ月", 12: "years?|年"},
    "g": {1: "g|grams?|grammes?", 1_000: "kg|kilos?|kilograms?"},
    "ml": {1: "ml|millilit(?:re|er)s?", 1_000: "l|lit(?:re|er)s?"},
    "inches": {1: "inch(?:es)?", 12: "feet|foot|ft"},
    "mm": {1: f"mm|milli{METRES}", 10: f"cm|centi{METRES}", 1_000: f"m|{METRES}", 10**6: f"km|kilo{METRES}"},
    "°F": {1: r"°\s?f|degrees fahrenheit|fahrenheit"},
    "degrees": {1: r"°\s?c|degrees(?: celsius)?"},
    "hardness": {1: "°dh"},
    "W": {1: "w|watts?", 1_000: "kw|kilowatts?"},
    "Wh": {1: "wh|watt[ -]hours?", 1_000: "kwh|kilowatt[ -]hours?"},
    "V": {1: "v|volts?"},
    "bar": {1: "bars?"},
    "psi": {1: "psi"},
    "MHz": {1: "mhz|megahertz", 1_000: "ghz|gigahertz"},
    "dB": {1: "db|decibels?"},
    "MB": {1: "mb|megabytes?", 1_000: "gb|gigabytes?", 10**6: "tb|terabytes?"},
    "rpm": {1: "rpm"},
    "tog": {1: "togs?"},
}
"""How each unit is written, and its multiples: 60 seconds are a minute."""
FORMS = {
    unit if factor == 1 else f"{factor} {unit}": forms
    for unit, multiples in UNITS.items()
    for factor, forms in multiples.items()
}
SIGNS = {"EUR": "EUR|€", "GBP": "GBP|£", "USD": r"USD|\$", "¥": "¥|￥|JPY|CNY|RMB", "INR": "INR|₹", "CHF": "CHF"}
"""How a currency is written before its amount."""
# no letter may follow, so that "5 m" is not found in "5 maps"
ANY_UNIT = "|".join(f"(?P<u{i}>(?:{forms})(?![^\\W\\d_{CJK}]))" for i, forms in enumerate(FORMS.values()))
QUALIFIER = r"(?:(?:full|more|extra|further|additional|calendar|consecutive|whole)\s)?"
AFTER = re.compile(rf"[\s-]?{QUALIFIER}(?:{ANY_UNIT})", re.IGNORECASE)
CURRENCY_BEFORE = re.compile(rf"(?:{'|'.join(f'({signs})' for signs in SIGNS.values())})\s?$", re.IGNORECASE)
RANGE = re.compile(rf"\s?(?:to|or|and|by|-|–|x|×|until)\s?(?:{'|'.join(SIGNS.values())}|[-−])?\s?", re.IGNORECASE)
MINUS = re.compile(r"(?:(?<![\w°])[-−]|\bminus\s)$", re.IGNORECASE)
ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SPELLED = {
    **{word: n for n, word in enumerate(ONES)},
    **{word: 10 * n for n, word in enumerate(TENS, start=2)},
    **{f"{tens}-{one}": 10 * n + ones for n, tens in enumerate(TENS, start=2) for ones, one in enumerate(ONES[:10])},
    "hundred": 100,
    "thousand": 1000,
}
MULTIPLES = {"million": 10**6, "billion": 10**9}
NUMBER = re.compile(
    rf"(?:(?<![^\W{CJK}])(?<![.\d])|(?<=EUR)|(?<=GBP)|(?<=USD))"
    rf"(?:\d+(?:[.,]\d+)*(?: (?:{'|'.join(MULTIPLES)})\b)?"
    rf"|(?:{'|'.join(sorted(SPELLED, key=len, reverse=True))})(?!\w))",
    re.IGNORECASE,
)
IMPLIED = re.compile(rf"\ban?\s{QUALIFIER}(?:{ANY_UNIT})", re.IGNORECASE)
DECIMAL_POINT = frozenset({"ar", "en", "fa", "he", "hi", "ja", "ko", "th", "zh"})
"""Languages that write 1,000.50 for what others write as 1.000,50 (Unicode CLDR)."""
POINT_LAST = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
COMMA_LAST = re.compile(r"\d{1,3}(?:\.\d{3})+(?:,\d+)?")
CLOCK = re.compile(r"([01]?\d|2[0-4])\.([0-5]\d)")
LONGEST_NUMBER = 20
"""Digits of a number that can be calculated with; longer ones are compared as written."""


def amounts(text: str, language: str = "en") -> Iterator[Fact]:
    """Numbers with their units in base units; "2 to 4 days" are 2 days and 4 days, and "9.30" may be a time of day."""
    found = [amount(text, match, language) for match in NUMBER.finditer(text)]
    for i in range(1, len(found)):
        if not found[i].unit and found[i - 1].unit in SIGNS and is_range(text, found[i - 1], found[i]):
            found[i] = replace(found[i], unit=found[i - 1].unit)
    for i in reversed(range(1, len(found))):
        if not found[i - 1].unit and is_range(text, found[i - 1], found[i]):
            found[i - 1] = replace(found[i - 1], unit=found[i].unit)
    for fact in found:
        # "one" is rarely a count unless it has a unit: "the new one"
        if fact.unit or fact.text.lower() != "one":
            yield in_base_units(signed(fact, text))
        if not fact.unit and (clock := CLOCK.fullmatch(fact.text)):
            yield Fact("time", str(60 * int(clock[1]) + int(clock[2])), "", fact.text, fact.place, False)
    for match in IMPLIED.finditer(text):
        yield in_base_units(Fact("number", "1", unit_of(match), match[0], match.start(), False))


def is_range(text: str, first: Fact, second: Fact) -> bool:
    """Whether two numbers are the ends of a range or alternatives, so that one unit serves both."""
    return RANGE.fullmatch(text, first.place + len(first.text), second.place) is not None


def amount(text: str, match: re.Match[str], language: str) -> Fact:
    """The number of a match with the unit right behind it or the currency right before it, not yet in base units."""
    start, end, unit = match.start(), match.end(), ""
    if before := CURRENCY_BEFORE.search(text, max(0, start - 4), start):
        start, unit = before.start(), tuple(SIGNS)[(before.lastindex or 1) - 1]
    elif after := AFTER.match(text, end):
        end, unit = after.end(), unit_of(after)
    # no price has three decimals: 1.000 euros are a thousand in any language
    value = number(
        match[0], has_point=language in DECIMAL_POINT and not (unit in SIGNS and COMMA_LAST.fullmatch(match[0]))
    )
    return Fact("number", value, unit, text[start:end], start)


def signed(fact: Fact, text: str) -> Fact:
    """A temperature below zero with its sign."""
    minus = MINUS.search(text, max(0, fact.place - len("minus ")), fact.place)
    if fact.unit not in ("degrees", "°F") or not minus:
        return fact
    whole = text[minus.start() : fact.place] + fact.text
    return replace(fact, value=f"-{fact.value}", text=whole, place=minus.start())


def number(text: str, *, has_point: bool) -> str:
    """A number without thousands separators, with a decimal point and without needless zeros. has_point: whether the
    decimal mark of the language is a point; if the number cannot be read so, a point or comma is a decimal mark.
    """
    if text.lower() in SPELLED:
        return str(SPELLED[text.lower()])
    text, _, multiple = text.partition(" ")
    if has_point and POINT_LAST.fullmatch(text):
        text = text.replace(",", "")
    elif not has_point and COMMA_LAST.fullmatch(text):
        text = text.replace(".", "")
    digits = text.replace(",", ".")
    if digits.count(".") > 1 or len(digits) > LONGEST_NUMBER:
        return digits
    return plain(Decimal(digits) * MULTIPLES.get(multiple.lower(), 1))


def unit_of(match: re.Match[str]) -> str:
    """The unit that matched, with the factor of a multiple: "60 seconds"."""
    return next(name for i, name in enumerate(FORMS) if match[f"u{i}"])


def in_base_units(fact: Fact) -> Fact:
    """The same amount in the base unit of its kind, so that 2 weeks equal 14 days."""
    value, (factor, _, unit) = fact.value, fact.unit.partition(" ")
    if not factor.isdecimal() or value.count(".") > 1 or len(value) > LONGEST_NUMBER:
        return replace(fact, as_written=value)
    return replace(fact, value=plain(Decimal(value) * int(factor)), unit=unit, as_written=value)


def plain(number: Decimal) -> str:
    """A number without needless zeros and without an exponent."""
    return format(number.normalize(), "f")
