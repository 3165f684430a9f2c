"""Read the words and facts of a text in a form that can be compared: amounts, dates and times, addresses, model
numbers, names.

Words, stems and common words are those of search (`retrieval.text.terms`); a table joins irregular forms and everyday
synonyms. Numbers have base units: 2 weeks are 14 days, EUR 3.50 is 3,50 €, three is 3. Units are English, and some
Chinese and Japanese ones. Decimal marks depend on the language. A date of three numbers begins with the day or the
year, or with the month if no other order is possible. A part of a text is one fact only.

Out of scope: meaning, word order, misspelling; fractions in words, currency conversion, spaces between thousands,
unknown units (the word after the number then counts as a word); month names in other languages, relative dates,
holidays, days between two dates; names in lower case, names among German nouns, sums.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Literal

from retrieval.text import terms

CJK = f"{terms.CHINESE_JAPANESE}\uff66-\uff9f"
"""Chinese and Japanese characters, half-width ones included, as a range of a regular expression."""
UNSAID = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))\b|[请請不没未無无勿禁]", re.IGNORECASE)
"""Parts to ignore: short forms such as "n't" and "'s", and Chinese characters for "please" or a negation."""
SAME_WORDS = """
begin began begun start / break broke broken / buy bought purchase / choose chose chosen choice pick select /
cost price fee charge / deliver delivery / email e-mail / euro eur / find found / free gratis freely /
give gave given / go goes gone went / hold held / item product article goods / keep kept / lose lost loss /
machine appliance device / old older / parcel package / pay paid payment payable / person people /
phone telephone call ring / photo picture photograph / receive receipt / refund reimburse / repair fix / run ran /
send sent ship dispatch mail post / shop store / take took taken last / use usage / write wrote written
"""
"""Irregular forms and synonyms. The first word of each group is its normal form. The stemmer handles regular forms."""
COUNTS_AS = {
    terms.stem(form): terms.stem(group.split()[0]) for group in SAME_WORDS.split("/") for form in group.split()[1:]
}
DENYING = "able available ca cannot closed except exclude go neither never none possible unless without wo yes"
"""Words that negate or allow. They do not name a topic."""
FUNCTION_WORDS = terms.COMMON.union(map(terms.stem, DENYING.split())) - {terms.stem("after"), terms.stem("before")}


def stem(word: str) -> str:
    """Return the common normal form of a word, its other forms and its synonyms, in lower case."""
    stemmed = terms.stem(terms.folded(word))
    return COUNTS_AS.get(stemmed, stemmed)


def all_words(text: str) -> list[str]:
    """Return all words in order, stemmed. Numbers and pairs of Chinese characters are also words."""
    return [stem(word) for word in terms.asked_words(UNSAID.sub("", text))]


def content_words(text: str) -> frozenset[str]:
    """Return the topic words of a text: no function words, no bare numbers, no single letters."""
    words = (word for word in terms.asked_words(UNSAID.sub("", text)) if not is_function_word(word))
    return frozenset(stem(word) for word in words if len(word) > 1 and not word.isdigit())


def is_function_word(word: str) -> bool:
    return terms.stem(terms.folded(word)) in FUNCTION_WORDS


FactKind = Literal["number", "time", "date", "weekday", "code", "address", "name"]

DURATIONS = frozenset({"seconds", "days", "working days", "months"})


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a text. value, unit: normalised. text: as written. place: offset in the text. is_bound: whether the
    text states it; "an hour" only implies 1 hour. as_written: the number of an amount before its conversion.
    """

    kind: FactKind
    value: str
    unit: str
    text: str
    place: int
    is_bound: bool = True
    as_written: str = ""

    @property
    def measures(self) -> str:
        """The kind and unit. Facts of the same measure can be mistaken for each other."""
        return f"{self.kind} {'duration' if self.unit in DURATIONS else self.unit}"

    @property
    def key(self) -> str:
        """The fact as a word, equal for equal facts."""
        return f"#{self.kind} {self.value} {self.unit}".rstrip()


def without(text: str, found: Iterable[Fact]) -> str:
    """Return the text with the facts replaced by spaces, so that offsets stay valid."""
    letters = list(text)
    for fact in found:
        letters[fact.place : fact.place + len(fact.text)] = " " * len(fact.text)
    return "".join(letters)


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
"""The ways to write each unit, and its size in the base unit. The sign ¥ means yen and yuan."""
SIGNS = {"EUR": "EUR|€", "GBP": "GBP|£", "USD": r"USD|\$", "¥": "¥|￥|JPY|CNY|RMB", "INR": "INR|₹", "CHF": "CHF"}
"""The ways to write a currency before an amount."""
ANY_UNIT = "|".join(f"(?P<u{i}>{forms})" for i, (*_, forms) in enumerate(UNITS))
# no letter may follow, so that "5 m" is not found in "5 maps"; checked in one place, to compile in less time
ANY_UNIT = rf"(?:{ANY_UNIT})(?![^\W\d_{CJK}])"
QUALIFIER = r"(?:(?:full|more|extra|further|additional|calendar|consecutive|whole)\s)?"
AFTER = re.compile(rf"[\s-]?{QUALIFIER}{ANY_UNIT}", re.IGNORECASE)
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
IMPLIED = re.compile(rf"\ban?\s{QUALIFIER}{ANY_UNIT}", re.IGNORECASE)
DECIMAL_POINT = frozenset({"ar", "en", "fa", "he", "hi", "ja", "ko", "th", "zh"})
"""Languages that write 1,000.50; others write 1.000,50 (Unicode CLDR)."""
POINT_LAST = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
COMMA_LAST = re.compile(r"\d{1,3}(?:\.\d{3})+(?:,\d+)?")
CLOCK = re.compile(r"([01]?\d|2[0-4])\.([0-5]\d)")
LONGEST_NUMBER = 20  # maximum digits of a number for arithmetic; longer ones are compared as written


def amounts(text: str, language: str = "en") -> Iterator[Fact]:
    """Return numbers in base units. "2 to 4 days" gives 2 days and 4 days; "9.30" gives a number and a time."""
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
    return RANGE.fullmatch(text, first.place + len(first.text), second.place) is not None


def amount(text: str, match: re.Match[str], language: str) -> Fact:
    """Return a match's number with the unit after it or the currency before it, not yet in base units."""
    start, end, unit = match.start(), match.end(), ""
    if before := CURRENCY_BEFORE.search(text, max(0, start - 4), start):
        start, unit = before.start(), tuple(SIGNS)[(before.lastindex or 1) - 1]
    elif after := AFTER.match(text, end):
        end, unit = after.end(), unit_of(after)
    # no price has three decimals: 1.000 euros are a thousand in any language
    has_point = language in DECIMAL_POINT and not (unit.removeprefix("1 ") in SIGNS and COMMA_LAST.fullmatch(match[0]))
    return Fact("number", number(match[0], has_point), unit, text[start:end], start)


def signed(fact: Fact, text: str) -> Fact:
    minus = MINUS.search(text, max(0, fact.place - len("minus ")), fact.place)
    if fact.unit not in ("1 degrees", "1 °F") or not minus:
        return fact
    whole = text[minus.start() : fact.place] + fact.text
    return replace(fact, value=f"-{fact.value}", text=whole, place=minus.start())


def number(text: str, has_point: bool) -> str:
    """Return a number without thousands separators and needless zeros, with a decimal point. has_point: the language's
    decimal mark is a point. If a point or comma cannot separate thousands, it is a decimal mark.
    """
    if text.lower() in SPELLED:
        return str(SPELLED[text.lower()])
    text, _, multiple = text.partition(" ")
    if (POINT_LAST if has_point else COMMA_LAST).fullmatch(text):
        text = text.replace("," if has_point else ".", "")
    return times(text.replace(",", "."), MULTIPLES.get(multiple.lower(), 1))


def unit_of(match: re.Match[str]) -> str:
    """Return the factor and base unit of a match: "60 seconds" for minutes."""
    return next(f"{factor} {base}" for i, (factor, base, _) in enumerate(UNITS) if match[f"u{i}"])


def in_base_units(fact: Fact) -> Fact:
    factor, _, unit = fact.unit.partition(" ") if fact.unit[:1].isdecimal() else ("1", "", fact.unit)
    return replace(fact, value=times(fact.value, int(factor)), unit=unit, as_written=fact.value)


def times(number: str, factor: int) -> str:
    """Return a product without needless zeros or exponent; the text itself if it is not a number."""
    if number.count(".") > 1 or len(number) > LONGEST_NUMBER:
        return number
    return format((Decimal(number) * factor).normalize(), "f")


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# "march" and "may" in lower case are other words
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
DATE_RANGE = re.compile(r"\s?(?:to|until|through|-|–)\s?", re.IGNORECASE)
TIME_OF_DAY = re.compile(
    r"\b(?P<hour>\d{1,2})(?:[:.](?P<minute>\d{2}))?\s?(?P<half>[ap])(?:m\b|\.m\b\.?)"
    r"|\b(?P<hour24>\d{1,2}):(?P<minute24>\d{2})(?!\d)|\b(?P<word>noon|midnight)\b",
    re.IGNORECASE,
)


def dates(text: str) -> Iterator[Fact]:
    for pattern in DATES:
        found = [fact for match in pattern.finditer(text) for fact in dates_of(match)]
        yield from found
        text = without(text, found)


def dates_of(match: re.Match[str]) -> Iterator[Fact]:
    name, days = match["month"], re.findall(r"\d+", match["days"])
    month = int(name) if name.isdigit() else 1 + MONTHS.index(name[:3].lower())
    if month > len(MONTHS) >= int(days[0]) and match.start("days") < match.start("month"):  # as in the United States
        month, days = int(days[0]), [name]
    if month <= len(MONTHS):
        yield from (Fact("date", f"{month}-{int(day)}", "", match[0], match.start()) for day in days)
        if match["year"]:
            yield Fact("number", match["year"], "", match[0], match.start(), False)


def times_of_day(text: str) -> Iterator[Fact]:
    for match in TIME_OF_DAY.finditer(text):
        hour, minute = int(match["hour"] or match["hour24"] or 12), int(match["minute"] or match["minute24"] or 0)
        if match["half"] or match["word"]:
            hour = hour % 12 + 12 * ((match["half"] or match["word"]).lower() in ("p", "noon"))
        yield Fact("time", str(60 * hour + minute), "", match[0], match.start())


def weekdays(text: str) -> Iterator[Fact]:
    """Return days of the week. "Monday to Friday" implies the days between."""
    last, end = 0, 0
    for match in WEEKDAY.finditer(text):
        first, day = last, next((i for i, name in enumerate(WEEKDAYS) if name[:3] == match[0][:3].lower()), 5)
        yield Fact("weekday", WEEKDAYS[day], "", match[0], match.start())
        if end and DATE_RANGE.fullmatch(text, end, match.start()):
            yield from (Fact("weekday", name, "", match[0], match.start(), False) for name in WEEKDAYS[first + 1 : day])
        last, end = day, match.end()


ADDRESS = re.compile(
    r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"
    r"|(?:https?://)?\b[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){0,6}\.[a-z]{2,18}\b(?:/[\w./%-]*[\w/])?"
)
CODE = re.compile(r"\b(?!(?:EUR|GBP|USD)\d)(?=[A-Za-z-]{0,40}\d)[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*\b")
PHONE = re.compile(r"\+\d(?: ?\d){5,18}|(?<![\w.,:/+-])0\d{2,4}(?:[ /-]\d{2,8}){1,4}(?![\w:/]|[.,]\d)")
NAME = re.compile(r"(?<=[\w,>&%] )[\"'“‘]?(?!(?:I|EUR|GBP|USD|OK)\b)(?P<name>[A-ZÀ-ÖØ-Þ]\w*)")
"""A capitalised word that does not begin a sentence."""
ODD_CASE = str.maketrans("İıſ", "Iis")
"""Letters that case-insensitive patterns match as "i" and "s", although their lower case is another letter."""
CAPITAL_NOUNS = frozenset({"de"})  # languages that write every noun with a capital letter


def facts(text: str, language: str = "en") -> list[Fact]:
    found: list[Fact] = []
    rest = text.translate(ODD_CASE)
    spoken = [partial(read, language=language) for read in (amounts, names)]
    for read in (addresses, phones, dates, times_of_day, codes, spoken[0], weekdays, spoken[1]):
        new = list(read(rest))
        found += new
        rest = without(rest, new)
    return found


def addresses(text: str) -> Iterator[Fact]:
    for match in ADDRESS.finditer(text):
        value = re.sub(r"^(?:https?://)?(?:www\.)?", "", match[0].lower()).rstrip("/")
        yield Fact("address", value, "", match[0], match.start())
        yield Fact("address", value.partition("@")[2] or value.partition("/")[0], "", match[0], match.start(), False)


def phones(text: str) -> Iterator[Fact]:
    for match in PHONE.finditer(text):
        yield Fact("number", re.sub("[ /-]", "", match[0]), "phone", match[0], match.start())


def codes(text: str) -> Iterator[Fact]:
    """Return model, error and order numbers: letters with digits. Hyphens and case are ignored."""
    for match in CODE.finditer(text):
        yield Fact("code", match[0].replace("-", "").upper(), "", match[0], match.start())


def names(text: str, language: str) -> Iterator[Fact]:
    for match in NAME.finditer(text) if language not in CAPITAL_NOUNS else ():
        if not is_function_word(match["name"]):
            yield Fact("name", stem(match["name"]), "", match["name"], match.start("name"))
