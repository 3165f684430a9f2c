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

_TABLE = r"""
    EUR: 1 eur|euros?|€|欧元
    GBP: 1 gbp|pounds?|£
    USD: 1 usd|dollars?|\$|美元
    ¥: 1 ¥|￥|jpy|yen|円|日元|cny|rmb|yuan|元|人民币
    INR: 1 inr|rupees?|₹
    CHF: 1 chf|swiss francs?
    %: 1 %|percent|per cent|％
    seconds: 1 seconds?|secs?|秒; 60 minutes?|mins?|分钟|分間|分; 3600 hours?|hrs?|h|小时|時間
    working days: 1 (?:working|business)[ -]days?|个?工作日|営業日
    days: 1 days?|天|日; 7 weeks?|周|週間
    months: 1 months?|个月|か月|ヶ月; 12 years?|年
    g: 1 g|gramm?e?s?; 1000 kg|kilos?|kilograms?
    ml: 1 ml|millilit(?:re|er)s?; 1000 l|lit(?:re|er)s?
    inches: 1 inch(?:es)?; 12 feet|foot|ft
    mm: 1 mm|millimet(?:re|er)s?; 10 cm|centimet(?:re|er)s?; 1000 m|met(?:re|er)s?; 1000000 km|kilomet(?:re|er)s?
    °F: 1 °\s?f|degrees fahrenheit|fahrenheit
    degrees: 1 °\s?c|degrees(?: celsius)?
    W: 1 w|watts?; 1000 kw|kilowatts?
    Wh: 1 wh|watt[ -]hours?; 1000 kwh|kilowatt[ -]hours?
    bar: 1 bars?
    psi: 1 psi
    MHz: 1 mhz|megahertz; 1000 ghz|gigahertz
    MB: 1 mb|megabytes?; 1000 gb|gigabytes?; 1000000 tb|terabytes?
"""
UNITS = [
    (int(factor), base.strip(), forms)
    for base, _, multiples in (line.partition(":") for line in _TABLE.strip().splitlines())
    for factor, _, forms in (multiple.strip().partition(" ") for multiple in multiples.split(";"))
]
"""How each unit is written, and of how many of its base unit it is made. The sign ¥ stands for yen and yuan."""
SIGNS = {"EUR": "EUR|€", "GBP": "GBP|£", "USD": r"USD|\$", "¥": "¥|￥|JPY|CNY|RMB", "INR": "INR|₹", "CHF": "CHF"}
"""How a currency is written before its amount."""
# no letter may follow, so that "5 m" is not found in "5 maps"
ANY_UNIT = "|".join(rf"(?P<u{i}>(?:{forms})(?![^\W\d_{CJK}]))" for i, (*_, forms) in enumerate(UNITS))
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
SPELLED = {"hundred": 100, "thousand": 1000, **{word: n for n, word in enumerate(ONES)}}
SPELLED |= {word: 10 * n for n, word in enumerate(TENS, start=2)}
SPELLED |= {f"{tens}-{ONES[one]}": 10 * n + one for n, tens in enumerate(TENS, start=2) for one in range(1, 10)}
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
    pairs = [(i - 1, i) for i in range(1, len(found)) if is_range(text, found[i - 1], found[i])]
    for one, other in (*((i, j) for i, j in pairs if found[i].unit in SIGNS), *((j, i) for i, j in reversed(pairs))):
        if not found[other].unit:
            found[other] = replace(found[other], unit=found[one].unit)
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
    has_point = language in DECIMAL_POINT and not (unit.removeprefix("1 ") in SIGNS and COMMA_LAST.fullmatch(match[0]))
    return Fact("number", number(match[0], has_point), unit, text[start:end], start)


def signed(fact: Fact, text: str) -> Fact:
    """A temperature below zero with its sign."""
    minus = MINUS.search(text, max(0, fact.place - len("minus ")), fact.place)
    if fact.unit not in ("1 degrees", "1 °F") or not minus:
        return fact
    whole = text[minus.start() : fact.place] + fact.text
    return replace(fact, value=f"-{fact.value}", text=whole, place=minus.start())


def number(text: str, has_point: bool) -> str:
    """A number without thousands separators, with a decimal point and without needless zeros. has_point: whether the
    decimal mark of the language is a point; if the number cannot be read so, a point or comma is a decimal mark.
    """
    if text.lower() in SPELLED:
        return str(SPELLED[text.lower()])
    text, _, multiple = text.partition(" ")
    if (POINT_LAST if has_point else COMMA_LAST).fullmatch(text):
        text = text.replace("," if has_point else ".", "")
    return times(text.replace(",", "."), MULTIPLES.get(multiple.lower(), 1))


def unit_of(match: re.Match[str]) -> str:
    """The unit that matched, behind its factor: "60 seconds"."""
    return next(f"{factor} {base}" for i, (factor, base, _) in enumerate(UNITS) if match[f"u{i}"])


def in_base_units(fact: Fact) -> Fact:
    """The same amount in the base unit of its kind, so that 2 weeks equal 14 days."""
    factor, _, unit = fact.unit.partition(" ") if fact.unit[:1].isdecimal() else ("1", "", fact.unit)
    return replace(fact, value=times(fact.value, int(factor)), unit=unit, as_written=fact.value)


def times(number: str, factor: int) -> str:
    """A number taken so many times, without needless zeros and without an exponent; as written if it is none."""
    if number.count(".") > 1 or len(number) > LONGEST_NUMBER:
        return number
    return format((Decimal(number) * factor).normalize(), "f")
