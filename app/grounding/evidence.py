"""The evidence for one answer: the units of its passages, with an index that finds them by words and facts.

So a long answer is checked in about linear time. Not covered: how passages are taken apart (`evidence_units`).
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Sequence

from app.grounding.clauses import ROW
from app.grounding.evidence_units import plain, units
from app.grounding.fact import Fact, FactKind
from app.grounding.words import content_words
from retrieval.text.language import language_of

LOWER_CASE = re.compile(r"\b[a-zß-öø-ÿ]\w+")
UNKNOWN = range(3)
"""A word that is in no unit weighs as if it were in three: a paraphrase may have a few words of its own."""


class Evidence:
    """The units of some passages with an index of their words. Never changes once built.

    language: of the passages together, by which their facts and those of answers are read.
    passage_of: for each unit the index of its passage. known: every word. texts: the unit of a text without its marker.
    names: capitalised words; proper: those that never stand in lower case.
    """

    def __init__(self, passages: Sequence[str]) -> None:
        self.language = language_of("\n".join(passages))
        placed = [(unit, at) for at, passage in enumerate(passages) for unit in units(passage, self.language)]
        self.units = [unit for unit, _ in placed]
        self.passage_of = [number for _, number in placed]
        self.known = {word for unit in self.units for word in unit.names | unit.words}
        self.texts = {plain(unit.text): i for i, unit in reversed(list(enumerate(self.units)))}
        self.with_word: dict[str, list[int]] = defaultdict(list)
        self.of_kind: dict[FactKind, list[tuple[int, Fact]]] = defaultdict(list)
        for i, unit in enumerate(self.units):
            for word in unit.words:
                self.with_word[word].append(i)
            for fact in unit.facts:
                self.of_kind[fact.kind].append((i, fact))
        lower_case = {word for unit in self.units for word in LOWER_CASE.findall(unit.text)}
        bound = [fact for _, fact in self.of_kind["name"] if fact.is_bound]
        self.names = {fact.value for fact in bound}
        self.proper = {fact.text for fact in bound if fact.text.lower() not in lower_case}

    def weights(self, words: Collection[str]) -> dict[str, float]:
        """How much each word says: the rarer the more."""
        all_units = len(self.units)
        return {word: math.log(2 + all_units / (1 + len(self.with_word.get(word, UNKNOWN)))) for word in words}

    def best(self, words: Collection[str], number: int = 8) -> list[int]:
        """Units that hold most of the words, best first."""
        weights = self.weights(words)
        scores: dict[int, float] = defaultdict(float)
        for word in words:
            for i in self.with_word.get(word, ()):
                scores[i] += weights[word]
        likely = sorted(scores, key=lambda i: -scores[i])[: 3 * number]
        return sorted(likely, key=lambda i: -self.units[i].cover(words, weights))[:number]

    def stating(self, fact: Fact) -> list[tuple[int, Fact]]:
        """Units that state a fact, with what they state it by."""
        found = self.of_kind.get(fact.kind, ())
        return [(i, other) for i, other in found if other.key == fact.key or self._is_amount(fact, other, i)]

    def rivals(self, fact: Fact) -> list[tuple[int, Fact]]:
        """Units that state another fact of the same kind, with that fact."""
        found = self.of_kind.get(fact.kind, ())
        return [
            (i, other)
            for i, other in found
            if other.is_bound and other.measures == fact.measures and other.key != fact.key
        ]

    def beside(self, i: int, fact: Fact) -> frozenset[str]:
        """The words beside a fact of a unit; in a table row those of its cell, its header and the row's first cell."""
        unit = self.units[i]
        cells = (part.words for part in unit.clauses if fact.key in part.words) if ROW.match(unit.text) else ()
        return fact.beside.union(*cells)

    def _is_amount(self, fact: Fact, other: Fact, i: int) -> bool:
        """Whether equal numbers may be the same though one has no unit: a table's header may name it."""
        if not fact.as_written or fact.as_written != other.as_written:
            return False
        return not fact.unit or (not other.unit and not content_words(fact.text).isdisjoint(self.units[i].words))
