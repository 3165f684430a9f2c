"""The evidence for one answer: the statements of its passages.

Statements are those that the desk quotes (`retrieval.statements`): a
list item has the line above it that denies, a table row is a sentence.
"""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from app.grounding.fact import Fact
from app.grounding.reading import MARKUP, Clause, Reading, read
from app.grounding.words import all_words, content_words
from retrieval.statements.cut import statements_of
from retrieval.text.language import language_of
from retrieval.text.sentences import sentences

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
