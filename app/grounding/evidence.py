"""A text taken apart: its clauses, each with the words it is about, its facts, and whether it denies.

The same for sentences of answers and statements of passages, so that they can be compared. Rules over a few closed
lists, no grammar. Not covered: irony, denial by an ordinary verb ("we refuse to").

The evidence for one answer: the statements of its passages.

Statements are those that the desk quotes (`retrieval.statements`): a
list item has the line above it that denies, a table row is a sentence.
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from app.grounding.facts import Fact, all_words, content_words, facts, without
from app.grounding.opposites import SIGNALS, with_bounds
from retrieval.statements.cut import statements_of
from retrieval.text.sentences import sentences
from retrieval.text.terms import language_of

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


UNKNOWN = 3
"""A word that is in no statement weighs as if it were in three: a paraphrase may have a few words of its own."""
ELSEWHERE, AROUND = 0.6, 0.45
"""How much a word counts that stands in another clause of the statement, and above or next to the statement."""
NEAR = 8
"""So many statements are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class StatedUnit:
    """A statement of a passage, or a line that is none, such as a heading. around: words of the headings and of the
    statements next to it.
    """

    said: Reading
    around: frozenset[str]
    is_statement: bool

    def weight(self, words: Collection[str], weights: dict[str, float], clause: Clause | None = None) -> float:
        """Weight of the words that the statement holds; those of a clause count most, those around it least."""
        there, near = self.said.words, clause.words if clause else self.said.words
        return sum(
            weights[word] * (1.0 if word in near else ELSEWHERE if word in there else AROUND)
            for word in words
            if word in there or word in self.around
        )

    def share(self, words: Collection[str], weights: dict[str, float]) -> float:
        """Share of words, by weight, that stand in the statement or around it."""
        held = sum(weights[word] for word in words if word in self.said.words or word in self.around)
        return held / (sum(weights[word] for word in words) or 1.0)


class Evidence:
    """The statements of some passages. Never changes once built.

    language: of the passages together, by which their facts and those of answers are read. text: all of them. known:
    every word. said: their sentences and statements as `plain` writes them.
    """

    def __init__(self, passages: Sequence[str]) -> None:
        """passages: each below a line with its heading path."""
        self.text = "\n".join(passages)
        self.language = language_of(self.text)
        self.units = [unit for passage in passages for unit in units(passage, self.language)]
        self.known = set(all_words(self.text))
        said = (*sentences(self.text, self.language), *(unit.said.text for unit in self.units))
        self.said = {plain(text) for text in said}
        self._count = Counter(word for unit in self.units for word in unit.said.words)
        self._facts = [(unit, fact) for unit in self.units for fact in unit.said.facts]

    def weights(self, words: Collection[str]) -> dict[str, float]:
        """How much each word says: the rarer the more."""
        return {word: math.log(2 + len(self.units) / (1 + (self._count[word] or UNKNOWN))) for word in words}

    def nearest(self, words: Collection[str]) -> list[StatedUnit]:
        """Statements that hold most of the words, best first."""
        weights = self.weights(words)
        some = [unit for unit in self.units if not unit.said.words.isdisjoint(words)]
        return heapq.nlargest(NEAR, some, key=lambda unit: unit.weight(words, weights))

    def holding(self, name: str) -> list[StatedUnit]:
        """Statements that hold a name, or have it around them."""
        return [unit for unit in self.units if name in unit.said.words or name in unit.around]

    def stating(self, fact: Fact) -> list[tuple[StatedUnit, Fact]]:
        """Statements of a fact, with what they state it by."""
        return [(unit, other) for unit, other in self._facts if other.key == fact.key or is_amount(fact, other, unit)]

    def rivals(self, fact: Fact) -> list[tuple[StatedUnit, Fact]]:
        """Statements of another fact that measures the same, said in so many words."""
        alike = [(unit, other) for unit, other in self._facts if other.is_bound and other.measures == fact.measures]
        return [(unit, other) for unit, other in alike if other.key != fact.key]


def is_amount(fact: Fact, other: Fact, unit: StatedUnit) -> bool:
    """Whether equal numbers may be the same though one has no unit: the header of a table may name it."""
    is_same = fact.as_written == other.as_written != ""
    return is_same and (not fact.unit or (not other.unit and not content_words(fact.text).isdisjoint(unit.said.words)))


def plain(text: str) -> str:
    """A text without list marker, Markdown and final punctuation; spaces are single."""
    return " ".join(MARKUP.sub("", text).split()).rstrip(".!")


@lru_cache(maxsize=256)
def units(passage: str, language: str) -> tuple[StatedUnit, ...]:
    """The statements of a passage in their order, then the lines that belong to none."""
    heading, _, rest = passage.partition("\n")
    cut = statements_of(rest, heading.split(" > "))
    said, title = [read(statement.text, language) for statement in cut], read(heading, language)
    above = title.words.union(all_words(heading))
    found = []
    for i, statement in enumerate(cut):
        near = (*said[max(0, i - 2) : i], *said[i + 1 : i + 2]) if statement.kind != "row" else ()
        found.append(StatedUnit(said[i], above.union(*(other.words for other in near)), is_statement=True))
        rest = rest[: statement.start] + " " * (statement.end - statement.start) + rest[statement.end :]
    others = [title, *(read(line, language) for line in sentences(rest, language))]
    return (*found, *(StatedUnit(one, above, is_statement=False) for one in others))
