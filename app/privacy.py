"""Replace e-mail addresses, phone numbers and card numbers in customers' text before it is stored.

Dates, prices, model numbers and order numbers stay, because answers depend on them. An ambiguous number counts as a
phone number if it is written like one (with +, a leading 0, brackets or groups) or follows a word such as "call", and
as an order number after "order". Toll-free numbers of companies (such as 1-800) stay.

Out of scope: names, postal addresses, bank accounts; the text of documents and answers.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from phonenumbers import Leniency, PhoneNumberMatch, PhoneNumberMatcher, PhoneNumberType, number_type
from stdnum import luhn

EMAIL, PHONE, CARD = "[e-mail]", "[phone]", "[card]"
REGIONS = ("CN", "DE", "AT", "CH", "FR", "BE", "ES", "IT", "NL", "GB", "IE", "US")
"""Countries whose national format of phone numbers is recognised. With +, all countries are recognised."""
_PRIVATE = {
    *(PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE, PhoneNumberType.FIXED_LINE_OR_MOBILE),
    *(PhoneNumberType.VOIP, PhoneNumberType.PERSONAL_NUMBER, PhoneNumberType.PAGER, PhoneNumberType.UNKNOWN),
}
Place: TypeAlias = tuple[int, int]  # start and end in a text
_LEAST_DIGITS = 7
_LOOKED_AT = 300
"""Maximum characters of digit runs that are searched for phone numbers: each costs a third of a millisecond."""
_NEAR = 50  # a word such as "call" counts within this many characters before a number

_LETTER = "A-Za-z0-9À-ɏ"  # not \w: Chinese has no spaces before an address
_DOMAIN = re.compile(rf"@(?:[{_LETTER}-]+\.)+[A-Za-zÀ-ɏ]{{2,}}")
_BEFORE_AT = re.compile(rf"[{_LETTER}_][{_LETTER}.!#$%&'*+/=?^_`{{|}}~-]*")
"""The part before the @, read backwards."""
_LONGEST_BEFORE_AT = 64

_DIGITS = re.compile(r"\d(?:\W{0,4}\d)*")
_CARD_START = re.compile(r"(?<!\d)(?=(\d(?:[ \u00a0\u202f.-]?\d){12,18}))")
_CARD = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]|2[2-7])\d{14}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|[689]\d)\d{11}"  # Diners Club
    r"|35(?:2[89]|[3-8]\d)\d{12}"  # JCB
    r"|6(?:011|4[4-9]\d|5\d\d)\d{12}"  # Discover
    r"|62\d{14,17}"  # UnionPay
    r"|(?:5[06-9]|6[0-9])\d{11,17}"  # Maestro
)

_COUNT = (
    r"(?:[\s:：#.°\"'-]|\b(?:number|no|nr|nummer|num|numéro|numero|número|id|code|is|was|of|lautet|ist|est|es|de|la|le)\b"
    r"|n°|nº|号码?|编号|是|为){0,20}"
)
_ORDER_WORDS = (
    r"order|invoice|customer|tracking|parcel|ticket|case|serial|article|item|model|ref(?:erence)?|voucher|account"
    r"|bestell\w*|auftrag\w*|rechnung\w*|kundennummer|kunden-?nr|sendung\w*|artikel\w*|serien\w*|vorgang\w*"
    r"|commande|facture|suivi|article|client|référence|pedido|factura|seguimiento|artículo|cliente|referencia"
)
_OTHER_NUMBERS = re.compile(
    rf"(?:\b(?:{_ORDER_WORDS})\b|#|订单|单号|运单|快递单|发票|会员号|型号|货号){_COUNT}\d[\d ./-]{{0,30}}\d"
    r"|(?<![\d./-])\d{4}[-./年]\s?\d{1,2}[-./月]\s?\d{1,2}(?![\d/-])"  # dates
    r"|(?<![\d./-])\d{1,2}[-./]\s?\d{1,2}[-./]\s?\d{4}(?![\d/-])"
    r"|\d{1,2}:\d{2}(?::\d{2})?"
    r"|[€$£¥￥]\s?\d[\d.,' ]{0,20}|\d[\d.,' ]{0,20}\s?(?:[€$£¥￥元]|(?:EUR|USD|GBP|CHF|CNY|RMB|euros?|dollars?)\b)"
    r"|(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])"  # an IP address
    r"|\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"  # a bank account
    r"|\b[A-Za-z]{1,6}\d*-\d[\w-]*"  # KM-450, LM-2026-0045123
    # toll-free numbers as they are written; without groups, 1800... is a mobile phone in China
    r"|(?<!\d)(?:1[-. ])?\(?8(?:00|33|44|55|66|77|88)\)?[-. ]\d{3}[-. ]\d{4}(?!\d)|(?<!\d)0800[ /-]?\d[\d /-]*",
    re.IGNORECASE,
)
_PHONE_WORD = re.compile(
    r"(?:\b(?:tel|phone|call|mobile|cell|whatsapp|text|ring|reach|handy|fon|mobil|telefon|ruf|rückruf|erreich|téléphone"
    r"|portable|appel|joindre|móvil|teléfono|llám|llam)\w*|电话|手机|致电|联系|打给|微信)\D{0,25}$",
    re.IGNORECASE,
)
_LOOKS_LIKE_PHONE = re.compile(r"[+＋(（0０]|1[3-9]\d{9}$|\d+[ ./\u00a0-]")


def redact(text: str) -> str:
    """Return the text with `EMAIL`, `PHONE` and `CARD` instead of e-mail addresses, phone numbers and card numbers. The
    time is proportional to the length of the text, which the caller limits.
    """
    for word, places in ((EMAIL, _emails), (CARD, _cards), (PHONE, _phones)):
        text = _replaced(text, sorted(places(text)), word)
    return text


def _replaced(text: str, places: Sequence[Place], word: str) -> str:
    starts, ends = [start for start, _ in places], [end for _, end in places]
    return word.join(text[end:start] for end, start in zip([0, *ends], [*starts, len(text)], strict=True))


def _emails(text: str) -> Iterator[Place]:
    """Yield the places of e-mail addresses. The search starts at each @, so a long run of letters is not slow."""
    last = 0
    for domain in _DOMAIN.finditer(text):
        before = text[max(last, domain.start() - _LONGEST_BEFORE_AT) : domain.start()]
        if name := _BEFORE_AT.match(before[::-1]):
            last = domain.end()
            yield domain.start() - name.end(), last


def _cards(text: str) -> Iterator[Place]:
    """Yield the places of card numbers that do not overlap. An expiry date may follow, so every length is tried."""
    last = 0
    for start in _CARD_START.finditer(text):
        if start.start() < last:
            continue
        places = [start.start() + i for i, char in enumerate(start[1]) if char.isdecimal()]
        digits = "".join(str(int(text[place])) for place in places)
        for length in range(len(digits), 12, -1):
            last = places[length - 1] + 1
            is_whole = not text[last : last + 1].isdecimal()
            if is_whole and _CARD.fullmatch(digits[:length]) and luhn.is_valid(digits[:length]):
                yield start.start(), last
                break
        else:
            last = 0


def _phones(text: str) -> set[Place]:
    """Return places of phone numbers that do not overlap. In a text with very many digits, every long number counts."""
    if sum(char.isdecimal() for char in text) < _LEAST_DIGITS:
        return set()
    plain = _OTHER_NUMBERS.sub(_blank, text)
    long = [run for run in _DIGITS.finditer(plain) if _is_long(run)]
    if sum(len(run[0]) for run in long) > _LOOKED_AT:
        return {run.span() for run in long}
    numbers = _DIGITS.sub(lambda run: run[0] if _is_long(run) else _blank(run), plain)
    international = PhoneNumberMatcher(numbers, None, Leniency.POSSIBLE)
    national = (PhoneNumberMatcher(numbers, region, Leniency.VALID) for region in REGIONS)
    found = {(one.start, one.end) for one in chain(international, *national) if _is_private(one, plain)}
    return {one for one in found if not any(_within(one, other) for other in found)}


def _is_long(run: re.Match[str]) -> bool:
    return sum(char.isdecimal() for char in run[0]) >= _LEAST_DIGITS


def _blank(found: re.Match[str]) -> str:
    """Return letters of the same length, so that offsets stay valid."""
    return "x" * len(found[0])


def _is_private(found: PhoneNumberMatch, text: str) -> bool:
    if number_type(found.number) not in _PRIVATE:
        return False
    return bool(
        _LOOKS_LIKE_PHONE.match(found.raw_string) or _PHONE_WORD.search(text[max(0, found.start - _NEAR) : found.start])
    )


def _within(one: Place, other: Place) -> bool:
    return one != other and other[0] <= one[0] < other[1] and (other[0] < one[0] or one[1] < other[1])
