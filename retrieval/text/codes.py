"""Codes and model names in a text: error codes, products, forms.

"E03", "e 3" and "E3" are the same code, as are "KM-450", "km 450" and "KM450". "SV-3 Pro" is another model than "SV-3".

A code has a family (its letters), a number and sometimes a variant. Codes are recognised by their form, so the codes of
any company are found. Prices, amounts, dates, paper sizes and numbered steps are not codes. Out of scope: names without
a number.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from retrieval.text.terms import stem, words

_VARIANTS = r"(?:(?i: ?(?:pro|max|plus|mini|ultra|lite|xl|xxl|xs|ti|neo|air)\b(?! (?:an?|the|my|your|one|two|\d+)\b)))*"
_CODE = re.compile(
    r"(?<![A-Za-z0-9€$£¥@_.])(?P<letters>[A-Za-z]{1,12})(?P<gap>[- ]?|[ ]?#)"
    r"0*(?P<number>\d{1,5}(?:\.\d{1,2})?)"
    r"(?P<rest>[A-Za-z]{0,2}(?:-(?:\d{1,4}|[A-Z]{1,4}))*)"
    rf"(?![A-Za-z0-9%€$£°]|[.,:/]\d)(?P<variant>{_VARIANTS})"
)
_DIGIT = re.compile(r"\d")
_NO_FAMILIES = """
    a ab about above abschnitt after age aged ages all almost already also am an and any april around art article as
    at august be been before below between bis both but by ca can cents chapter chf chfs class click cny column cost
    costs cup cups day days dec december dem den der des dezember die dienstag diese do does donnerstag each ein eine
    either eur euro euros every exactly feb februar february fee fig figure first for free freitag friday from ft g
    gbp get gmt h half has have her his hour hours how i if im in inr is it item items its jan januar january jpy jul
    juli july jun june juni just kapitel kg last least lesson level line lines make many march max maximum may mehr
    min minimum minus minute minutes mit mittwoch mon monday montag month months more most my nach need next nine no
    nor not nov november nr number nur oct october oder of oktober on one only option or order orders our out over
    page pages para part pay per phase phone pick please plus pm point points press pro punkt q question rmb room row
    rule s samstag sat saturday schritt section seite sep sept september set since size so some sonntag step steps
    sunday tab tabelle table take tel than that the their them then there these they this those thursday till to top
    total tuesday two type um und under unit unter until up us usd use used using via vol von vor wait was we
    wednesday week weeks well were what when which while who why with within without year years you your zip zu
"""
_NO_FAMILY = frozenset(_NO_FAMILIES.split())
"""Words and units before numbers of other kinds: prices, months, days, steps. English and German."""
_ALIKE = dict.fromkeys(("err", "errors", "code", "codes", "fault", "errorcode", "fehler", "fehlercode"), "error")
# Longer families that are also recognised in small letters.
_FORMS = frozenset(("error", "form", "model", "version", "formular", "modell", "schedule"))
_PAPER = re.compile(r"[ab][0-6]", re.IGNORECASE)
_PAPER_NEAR = re.compile(
    r"(?i:\b(?:paper|sheets?|pages?|size|format|print\w*|labels?|envelopes?|din|blatt|papier|druck\w*)\b)|[纸打印]"
)
_COUNTS = re.compile(
    r" (?:%|(?:working |business )?(?i:days?|hours?|minutes?|weeks?|months?|years?|times|items|euros?|eur)\b)"
)
_RANGE = re.compile(r"\s?(?:to|bis|through|–|-|至|到)\s?")
_MODEL = re.compile(r"[A-Z]{2,}-?\d")  # models look like "KM-450", not like "E3"


@dataclass(frozen=True, slots=True)
class _Code:
    family: str
    number: str
    variant: str
    start: int
    end: int
    is_model: bool

    @property
    def name(self) -> str:
        return f"{self.family}{self.number}{self.variant}"


def codes(text: str) -> frozenset[str]:
    return frozenset(code.name for code in _found(text))


@lru_cache(maxsize=4096)  # many questions find the same passages and statements
def terms_of(text: str) -> frozenset[str]:
    return frozenset(map(stem, dict.fromkeys(words(text)))) | codes(text)


class AskedCodes:
    """The codes of a question, compared with statements. headings: headings of a statement, from the document's title
    down. They name the model if the statement does not.
    """

    def __init__(self, question: str, earlier: str = "", found: Iterable[str] = ()) -> None:
        """earlier: the previous question; its codes count unless the question names one of the same kind. found: the
        headings of all found passages. A code in a heading is a page's subject, so only naming it does not count.
        """
        own = tuple(_found(question, is_question=True))
        kept = (code for code in _found(earlier, is_question=True) if not any(_are_alike(code, one) for one in own))
        self._asked = (*own, *kept)
        self._titled = frozenset[str]().union(*map(codes, found))

    def are_others(self, statement: str, headings: Sequence[str]) -> bool:
        """Return whether the statement is about another code or model of the same family. Returns False if the question
        names no code, or if headings or statement name the code of the question.
        """
        if not self._asked:
            return False
        told = list(_found(statement))
        above = [code for heading in headings for code in _found(heading)]
        families = {code.family for code in self._asked}
        return any(_contradicts(family, self._asked, told, above) for family in families) or _is_on_anothers_page(
            self._asked, told, above
        )

    def are_named(self, statement: str, headings: Sequence[str]) -> bool:
        """Return whether a statement names a code of the question that its headings do not name. An example is the row
        of an error code on the page of its model. "Error 7" may be written R7 or E07. The statement or its headings
        must name all other codes of the question.
        """
        if not self._asked:
            return False
        above = frozenset[str]().union(*map(codes, headings))
        told = list(_found(statement))
        names = above | {code.name for code in told}
        asked = [code for code in self._asked if code.name not in above | self._titled]
        found = [
            code
            for code in asked
            for other in told
            if code.name == other.name
            or (code.family == "error" and not other.is_model and code.number == other.number)
        ]
        return bool(found) and all(code.name in names for code in self._asked if code not in found)


def _are_alike(one: _Code, other: _Code) -> bool:
    return one.family == other.family or (one.is_model and other.is_model)


def _contradicts(family: str, asked: Iterable[_Code], told: Sequence[_Code], above: Sequence[_Code]) -> bool:
    wanted = {code.name for code in asked if code.family == family}
    titled = {code.name for code in above if code.family == family}
    named = titled or {code.name for code in told if code.family == family}
    return bool(named) and not named & wanted  # under the heading of another model, also if the right model is named


def _is_on_anothers_page(asked: Sequence[_Code], told: Sequence[_Code], above: Sequence[_Code]) -> bool:
    models = {code.family for code in asked if code.is_model or len(code.family) > 1}
    others = {code.family for code in above if code.is_model}
    if not models or not others or models & {code.family for code in (*told, *above)}:
        return False
    return bool({code.name for code in asked} & {code.name for code in told})


def _found(text: str, *, is_question: bool = False) -> Iterator[_Code]:
    """Yield the codes of a text in order, and the codes inside a range. Customers write names in small letters, so in a
    question any word before a number may be a name.
    """
    text = unicodedata.normalize("NFKC", text)
    if _DIGIT.search(text) is None:  # the pattern of codes takes much longer to find none
        return
    before: _Code | None = None
    for match in _CODE.finditer(text):
        code = _code_of(match, is_question)
        if code is None or _is_paper(match):
            continue
        if before and before.family == code.family and _RANGE.fullmatch(text, before.end, code.start):
            yield from _between(before, code)
        yield code
        before = code


def _code_of(match: re.Match[str], is_question: bool) -> _Code | None:
    letters, number = match["letters"], match["number"]
    family = _ALIKE.get(letters.lower(), letters.lower())
    is_name = len(letters) <= 3 or not letters.islower() or is_question or family in _FORMS
    is_spaced = match["gap"] not in ("", "-")
    if family in _NO_FAMILY or (is_spaced and (not is_name or _COUNTS.match(match.string, match.end()))):
        return None
    variant = re.sub(r"[^a-z0-9]", "", (match["rest"] + match["variant"]).lower())
    return _Code(family, number, variant, match.start(), match.end(), _MODEL.match(match[0]) is not None)


def _is_paper(match: re.Match[str]) -> bool:
    near = match.string[max(0, match.start() - 12) : match.end() + 12]
    return _PAPER.fullmatch(match[0]) is not None and _PAPER_NEAR.search(near) is not None


def _between(first: _Code, last: _Code) -> Iterator[_Code]:
    if first.number.isdigit() and last.number.isdigit():
        for number in range(int(first.number) + 1, min(int(last.number), int(first.number) + 100)):
            yield _Code(first.family, str(number), "", first.start, last.end, first.is_model)
