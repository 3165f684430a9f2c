"""Cuts a text into parts of limited length at the best places it has.

Between paragraphs, else lines (list items, table rows), else sentences, else words, else characters (Chinese
without punctuation, a megabyte without a space). Only white space at the cuts is lost.
"""

import re
from bisect import bisect_right
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

_UNEVENNESS = 1.15  # parts may be longer than an equal share by this factor, so that cuts are at good places


def cut(text: str, count_tokens: CountTokens, max_tokens: int) -> list[str]:
    """Parts of at most `max_tokens` tokens as `count_tokens` counts, about equally long; none is empty."""
    total = count_tokens(text)
    if total <= max_tokens:
        return [text] if text.strip() else []
    equal_share = total / -(-total // max_tokens)
    aim = min(max_tokens, int(equal_share * _UNEVENNESS))
    parts = _parts(text, lambda part: count_tokens(part.strip()), aim, max_tokens, _CUTS)
    return [part for part in parts if part]


def _parts(text: str, count: CountTokens, aim: int, limit: int, cuts: Sequence[re.Pattern[str]]) -> Iterator[str]:
    """Parts of whole pieces, which end at the first of `cuts`; a piece over the limit is cut at the finer ones."""
    pieces = _pieces(text, cuts[0])
    start = 0
    while start < len(pieces):
        number = _how_many(pieces, start, count, aim)
        if number or count(pieces[start]) <= limit:
            number = number or 1
            yield "".join(pieces[start : start + number]).strip()
            start += number
        else:
            assert len(cuts) > 1, "count_tokens counts one character as more than the limit"
            *parts, rest = _parts(pieces[start], count, aim, limit, cuts[1:])
            yield from parts
            separator = pieces[start][len(pieces[start].rstrip()) :]
            pieces[start] = rest + separator  # the rest may share a part with the next pieces


def _pieces(text: str, place: re.Pattern[str]) -> list[str]:
    ends = [found.end() for found in place.finditer(text) if 0 < found.end() < len(text)]
    if place in (_PARAGRAPHS, _LINES):  # "You need:" stays with what follows
        ends = [end for end in ends if not _LEADS_IN.fullmatch(text, max(0, end - 10), end)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def _how_many(pieces: Sequence[str], start: int, count: CountTokens, aim: int) -> int:
    """How many pieces from `start` fit the aim: doubling, then bisection, because counting long texts is slow."""

    def length(number: int) -> int:
        return count("".join(pieces[start : start + number]))

    too_many = 1
    while too_many <= len(pieces) - start and length(too_many) <= aim:
        too_many *= 2
    fitting = too_many // 2
    return fitting + bisect_right(range(fitting + 1, too_many), aim, key=length)
