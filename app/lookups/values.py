"""Finds values of a look-up in a customer's message. A value is always a part of the message."""

import re
import unicodedata
from collections.abc import Iterator
from datetime import date

from phonenumbers import PhoneNumberFormat, PhoneNumberMatcher, format_number

from app.lookups.definitions import Value
from app.privacy import REGIONS

LONGEST, MOST_TOGETHER = 64, 6
_TOKEN = re.compile(r"[\x21-\x7e]+")
_EDGES = ".,;:!?()[]{}'\"<>#"
_EMAIL = re.compile(r"[A-Z0-9._%+-]{1,64}@(?:[A-Z0-9](?:[A-Z0-9-]{0,62})\.){1,8}[A-Z]{2,24}", re.I | re.ASCII)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATES = (
    re.compile(r"(?P<y>\d{4})[-/.年](?P<m>\d{1,2})[-/.月](?P<d>\d{1,2})"),
    re.compile(r"(?P<d>\d{1,2})\.\s?(?P<m>\d{1,2})\.\s?(?P<y>\d{4})"),
    re.compile(r"(?P<d>\d{1,2})(?:st|nd|rd|th)? (?P<n>[a-z]{3})[a-z]*,? (?P<y>\d{4})", re.I),
    re.compile(r"(?P<n>[a-z]{3})[a-z]* (?P<d>\d{1,2})(?:st|nd|rd|th)?,? (?P<y>\d{4})", re.I),
)


def fits(value: Value, message: str) -> list[str]:
    """Return the different values in a message, in the message's order and in the form that is sent."""
    text = unicodedata.normalize("NFKC", message)
    kinds = {"pattern": _patterns, "email": _emails, "phone": _phones, "date": _dates, "choice": _choices}
    return list(dict.fromkeys(kinds[value.kind](value, text)))


def written(value: Value, message: str) -> list[str]:
    """Return the words of a message that have digits and match the pattern of a value, unchanged."""
    if value.kind != "pattern":
        return []
    words = [word.strip(_EDGES) for word in _TOKEN.findall(unicodedata.normalize("NFKC", message))]
    pattern = re.compile(value.pattern, re.ASCII)
    return [word for word in words if has_digits(word) and pattern.fullmatch(_clean(value, word))]


def has_digits(text: str) -> bool:
    return any(map(str.isdigit, text))


def _patterns(value: Value, text: str) -> Iterator[str]:
    """Yield the single words that fit. If none fits and spaces may be removed, yield fitting joined words."""
    pattern = re.compile(value.pattern, re.ASCII)
    words = [word for token in _TOKEN.findall(text) for word in (token, *re.split(r"[#:=,;]", token))]
    single = [one for word in words if (one := _clean(value, word.strip(_EDGES))) and pattern.fullmatch(one)]
    yield from single
    if single or "no-spaces" not in value.clean:
        return
    for run in re.findall(r"[\x20-\x7e]+", text):
        parts, at = run.split(), 0
        while at < len(parts):
            for end in range(min(len(parts), at + MOST_TOGETHER), at, -1):
                joined = _clean(value, "".join(parts[at:end]).strip(_EDGES))
                if pattern.fullmatch(joined) and joined:
                    yield joined
                    at = end - 1
                    break
            at += 1


def _clean(value: Value, word: str) -> str:
    if len(word) > LONGEST:
        return ""
    for step in value.clean:
        if step == "no-spaces":
            word = "".join(word.split())
        elif step == "digits":
            word = "".join(filter(str.isdigit, word))
        else:
            word = word.upper() if step == "upper" else word.lower()
    return word


def _emails(value: Value, text: str) -> Iterator[str]:
    for token in _TOKEN.findall(text):
        word = token.strip(_EDGES)
        if len(word) <= 254 and _EMAIL.fullmatch(word):
            yield word.lower()


def _phones(value: Value, text: str) -> Iterator[str]:
    for region in REGIONS:
        if found := [one.number for one in PhoneNumberMatcher(text[:300], region)]:
            yield from (format_number(one, PhoneNumberFormat.E164) for one in found)
            return


def _dates(value: Value, text: str) -> Iterator[str]:
    for pattern in _DATES:
        for found in pattern.finditer(text):
            part = found.groupdict()
            name = (part.get("n") or "").lower()
            month = _MONTHS.index(name) + 1 if name in _MONTHS else int(part.get("m") or 0)
            try:
                yield date(int(part["y"]), month, int(part["d"])).isoformat()
            except ValueError:
                continue


def _choices(value: Value, text: str) -> Iterator[str]:
    folded = text.casefold()
    for name, texts in value.choices.items():
        for one in (name, *texts.values()):
            word = re.escape(one.casefold())
            if re.search(rf"(?<![^\W_]){word}(?![^\W_])" if one.isascii() else word, folded):
                yield name
                break
