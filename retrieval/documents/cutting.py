"""A text cut into parts of limited length, at the best places it offers.

Between paragraphs, else lines (list items, table rows), else sentences, else words, and at last characters,
for Chinese without punctuation or a megabyte without a space. Only white space at the cuts is lost.
"""

import re
from collections.abc import Callable, Iterator, Sequence

CountTokens = Callable[[str], int]

# Separators stay with what stands before them.
_PARAGRAPHS = re.compile(r"\n\n+")
_LINES = re.compile(r"\n")
_SENTENCES = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？；])")
_WORDS = re.compile(r"\s+")
_CHARACTERS = re.compile("")
_CUTS = (_PARAGRAPHS, _LINES, _SENTENCES, _WORDS, _CHARACTERS)

_LEADS_IN = re.compile(r".*[:：]\s+", re.DOTALL)

_UNEVENNESS = 1.15  # parts may exceed an equal share by this factor, so that cuts fall at good places


def cut(text: str, count_tokens: CountTokens, max_tokens: int) -> list[str]:
    """Parts of at most `max_tokens` tokens as `count_tokens` counts, about equally long; none is empty."""
    total = count_tokens(text)
    if total <= max_tokens:
        return [text] if text.strip() else []
    equal_share = total / -(-total // max_tokens)
    aim = min(max_tokens, int(equal_share * _UNEVENNESS))
    return [part for part in _parts(text, _Measure(count_tokens, aim, max_tokens), _CUTS) if part]


class _Measure:
    """Whether a text fits the length aimed at, or at least the limit."""

    def __init__(self, count_tokens: CountTokens, aim: int, limit: int) -> None:
        self._count, self._aim, self._limit = count_tokens, aim, limit

    def is_within_aim(self, text: str) -> bool:
        return self._count(text.strip()) <= self._aim

    def is_within_limit(self, text: str) -> bool:
        return self._count(text.strip()) <= self._limit


def _parts(text: str, measure: _Measure, cuts: Sequence[re.Pattern[str]]) -> Iterator[str]:
    """Parts made of whole units of the first of `cuts`; a unit over the limit is cut at the finer ones."""
    units = _units(text, cuts[0])
    start = 0
    while start < len(units):
        number = _how_many(units, start, measure)
        if number or measure.is_within_limit(units[start]):
            number = number or 1
            yield "".join(units[start : start + number]).strip()
            start += number
        else:
            assert len(cuts) > 1, "count_tokens counts one character as more than the limit"
            *parts, rest = _parts(units[start], measure, cuts[1:])
            yield from parts
            units[start] = rest + _separator(units[start])  # the rest may share a part with the next units


def _units(text: str, place: re.Pattern[str]) -> list[str]:
    ends = [found.end() for found in place.finditer(text) if 0 < found.end() < len(text)]
    if place in (_PARAGRAPHS, _LINES):  # "You need:" is not parted from what follows
        ends = [end for end in ends if not _LEADS_IN.fullmatch(text, max(0, end - 10), end)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def _separator(unit: str) -> str:
    return unit[len(unit.rstrip()) :]


def _how_many(units: Sequence[str], start: int, measure: _Measure) -> int:
    """How many units from `start` fit the aim: doubling, then halving, for counting costs time."""
    fitting, left = 0, len(units) - start
    too_many = 1
    while too_many <= left and measure.is_within_aim("".join(units[start : start + too_many])):
        fitting, too_many = too_many, too_many * 2
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if measure.is_within_aim("".join(units[start : start + middle])):
            fitting = middle
        else:
            too_many = middle
    return fitting
