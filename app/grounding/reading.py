"""A text as clauses, words and facts that can be compared.

A clause has words and facts, and may be negated. The same rules, over a few closed lists and without grammar, apply to
answers and to the statements of documents. Out of scope: irony, negation by an ordinary verb ("we refuse to").
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from app.grounding.facts import Fact, all_words, content_words, facts, stem, without

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
"""Words to compare, although search treats some of them as too common."""
PREFIX = re.compile(r"(?:un|in|im|ir|il|dis|non)(?=\w{4})")
_AMOUNT = r"(?= [$€£]?\w*\s?\d)"
BOUNDS = {
    "atleast": r"at least|not? (?:less|fewer|earlier) than|a minimum of",
    "atmost": r"at most|not? (?:more|later|longer) than|up to|a maximum of",
    "overthan": rf"(?:(?:more|longer|later|higher|greater) than|over|above|exceed(?:s|ing)?){_AMOUNT}",
    "underthan": rf"(?:(?:less|fewer|shorter|earlier|lower) than|under|below){_AMOUNT}",
}
"""Phrases for limits of an amount, each list after its normal form."""


def with_bounds(text: str) -> str:
    for word, forms in BOUNDS.items():
        text = re.sub(rf"\b(?:{forms})\b", word, text, flags=re.IGNORECASE)
    return text


def are_opposite(one: str, other: str) -> bool:
    """Return whether two stems are opposite: by the list, or because one is the other with "un" or a similar prefix."""
    return frozenset((one, other)) in OPPOSITES or other == PREFIX.sub("", one, 1) or one == PREFIX.sub("", other, 1)


MARKUP = re.compile(r"\*\*|__|`|^#{1,6}\s|\[\d{1,2}\]|^\s*(?:[-*•]|\d{1,3}[.)])\s+", re.MULTILINE)
"""Markdown, references to sources and list markers, which have no meaning."""
DENIAL = re.compile(
    r"\b(?:not|no|never|cannot|none|nor|neither|nobody|nothing|nowhere|without|unless|except|closed|denied"
    r"|exclud(?:ed?s?|ing)|forbid(?:s|den)?|prohibit(?:s|ed)?|refused?s?|reject(?:s|ed)?)\b"
    r"|n['’]t\b|(?:[不没未無无勿禁]|ません|ない)",
    re.IGNORECASE,
)
HARMLESS = re.compile(
    r"\b(?:not only|no matter|no doubt|no problem|no worries|or not|(?:do not|don['’]t) (?:worry|hesitate)|why not)\b",
    re.IGNORECASE,
)
"""Expressions that look like a negation, but are not."""
HEAD = re.compile(
    r"(?P<lists>(?:what|which|who|where|items|products|goods|things|you|we|never|not?|do(?:n['’]| no)t)\b"
    r"(?!.*\b(?:have|need) to\b))?"
    r"[^.;:]{1,90}?(?:(?P<row> –)|:)\s",
    re.IGNORECASE,
)
"""The text before a list, or in the first cell of a table row, belongs to all items after it. "You cannot return:"
negates all of them, "The light does not come on:" does not.
"""
BORDER = re.compile(
    r"[;!?()。！？；，、]|\.(?=\s|$)"
    r"|\b(?=(?:but|because|if|unless|although|though|while|when|until|which|where|whereas|except|including|without"
    r"|instead)\b)"
    r"|(?:,|\b(?:and|or|so))\s(?=(?:(?:and|so)\s)?(?:i|you|we|they|it|this|that|there|your|our|the|please|do|does|can|is"
    r"|are|has|have)\b)",
    re.IGNORECASE,
)
"""The end of a clause: punctuation, a conjunction, or a comma or "and" before a new clause."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of a text. words: its topic words, with its facts as words. signals: words that have an opposite, even
    common ones. begins: its first word, in lower case.
    """

    words: frozenset[str]
    signals: frozenset[str]
    denies: bool
    begins: str


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A text with its clauses. words, signals: the union over its clauses."""

    text: str
    facts: tuple[Fact, ...]
    clauses: tuple[Clause, ...]
    words: frozenset[str]
    signals: frozenset[str]


# the same passages come with every turn of a conversation
@lru_cache(maxsize=4096)
def read(text: str, language: str) -> Reading:
    body = with_bounds(MARKUP.sub("", text))
    found = tuple(facts(body, language))
    stated = [fact for fact in found if fact.kind != "name"]  # names are words already
    blank = HARMLESS.sub(lambda match: " " * len(match[0]), without(body, stated))
    head = HEAD.match(blank)
    spread = content_words(head[0]) if head and (head["lists"] or head["row"]) else frozenset()
    is_denied = bool(head and head["lists"] and DENIAL.search(head[0]))
    borders = sorted(
        {0, *(match.end() for match in BORDER.finditer(blank)), *([head.end()] if head else ()), len(body)}
    )
    clauses = tuple(
        Clause(
            words=content_words(blank[start:end]).union(
                spread, (fact.key for fact in stated if start <= fact.place < end)
            ),
            signals=SIGNALS.intersection(all_words(blank[start:end])),
            denies=bool(DENIAL.search(blank[start:end])) or is_denied,
            begins=blank[start:end].strip(" ,").partition(" ")[0].lower(),
        )
        for start, end in pairwise(borders)
        if body[start:end].strip(" .,:;")
    )
    words = frozenset(word for clause in clauses for word in clause.words)
    signals = frozenset(word for clause in clauses for word in clause.signals)
    return Reading(text, found, clauses, words, signals)


def plain(text: str) -> str:
    """Return a text without list marker, Markdown and final punctuation, with single spaces."""
    return " ".join(MARKUP.sub("", text).split()).rstrip(".!")
