"""A text taken apart: its clauses, each with the words it is about, its facts, and whether it denies.

The same for sentences of answers and statements of passages, so that they can be compared. Rules over a few closed
lists, no grammar. Not covered: irony, denial by an ordinary verb ("we refuse to").
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from app.grounding.fact import Fact, without
from app.grounding.opposites import SIGNALS, with_bounds
from app.grounding.statements import facts
from app.grounding.words import all_words, content_words

MARKUP = re.compile(r"\*\*|__|`|^#{1,6}\s|\[\d{1,2}\]|^\s*(?:[-*•]|\d{1,3}[.)])\s+", re.MULTILINE)
"""Signs of Markdown, references to sources and list markers, which say nothing."""
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
"""Looks like a denial, but is none."""
HEAD = re.compile(
    r"(?P<lists>(?:what|which|who|where|items|products|goods|things|you|we|never|not?|do(?:n['’]| no)t)\b"
    r"(?!.*\b(?:have|need) to\b))?"
    r"[^.;:]{1,90}?(?:(?P<row> –)|:)\s",
    re.IGNORECASE,
)
"""What stands before a list or in the first cell of a table row belongs to all that follows. "You cannot return:"
denies it all, "The light does not come on:" does not.
"""
BORDER = re.compile(
    r"[;!?()。！？；，、]|\.(?=\s|$)"
    r"|\b(?=(?:but|because|if|unless|although|though|while|when|until|which|where|whereas|except|including|without"
    r"|instead)\b)"
    r"|(?:,|\b(?:and|or|so))\s(?=(?:(?:and|so)\s)?(?:i|you|we|they|it|this|that|there|your|our|the|please|do|does|can|is"
    r"|are|has|have)\b)",
    re.IGNORECASE,
)
"""Where a clause ends: punctuation, a conjunction, a comma or "and" before what begins a clause."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of a text. words: what it is about, with its facts as words. signals: those that have an opposite, also
    those of every text. begins: its first word, in small letters.
    """

    words: frozenset[str]
    signals: frozenset[str]
    denies: bool
    begins: str


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A text, read. words, signals: of all its clauses."""

    text: str
    facts: tuple[Fact, ...]
    clauses: tuple[Clause, ...]
    words: frozenset[str]
    signals: frozenset[str]


# the same passages come with every turn of a conversation
@lru_cache(maxsize=4096)
def read(text: str, language: str) -> Reading:
    """Take a text in this language apart."""
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
