"""Words of opposite meaning, in closed lists, and bounds of amounts, written as words."""

import re

from app.grounding.facts import stem

_PAIRS = """
    above below, active inactive, add remove, after before, approve reject, atleast atmost, automatic manual,
    begin end finish, buy sell, cheap expensive, continue stop, correct incorrect wrong, decrease increase,
    different same, disable enable, early late, easy difficult hard, empty full, external internal, fail succeed,
    fast slow, find lose, first last, high low, higher lower, in out, inside outside, large small, larger smaller,
    less more, lock unlock, long short, longer shorter, lower raise, mandatory optional voluntary, maximum minimum,
    most least, new old, newer older, off on, offline online, optional require, overthan underthan, permanent temporary,
    personal share, private public, raise reduce, receive send, right left, safe dangerous, start stop end, strong weak,
    up down, upload download, valid expire, visible hide
"""
OPPOSITES = frozenset(
    frozenset((stem(first), stem(other)))
    for first, *others in (group.split() for group in _PAIRS.split(","))
    for other in others
)
SIGNALS = frozenset(word for pair in OPPOSITES for word in pair)
"""Words that are compared although search treats some of them as too common."""
PREFIX = re.compile(r"(?:un|in|im|ir|il|dis|non)(?=\w{4})")
_AMOUNT = r"(?= [$€£]?\w*\s?\d)"
BOUNDS = {
    "atleast": r"at least|not? (?:less|fewer|earlier) than|a minimum of",
    "atmost": r"at most|not? (?:more|later|longer) than|up to|a maximum of",
    "overthan": rf"(?:(?:more|longer|later|higher|greater) than|over|above|exceed(?:s|ing)?){_AMOUNT}",
    "underthan": rf"(?:(?:less|fewer|shorter|earlier|lower) than|under|below){_AMOUNT}",
}
"""Bounds of an amount after the word that each of them counts as."""


def with_bounds(text: str) -> str:
    """Replace the bounds of a text by words."""
    for word, forms in BOUNDS.items():
        text = re.sub(rf"\b(?:{forms})\b", word, text, flags=re.IGNORECASE)
    return text


def are_opposite(one: str, other: str) -> bool:
    """Whether two stems are opposite: by the list, or because one is the other with "un" or a similar prefix."""
    return frozenset((one, other)) in OPPOSITES or other == PREFIX.sub("", one, 1) or one == PREFIX.sub("", other, 1)
