"""Passages taken apart into the sentences, list items and table rows that can support a sentence of an answer.

Each unit knows the words around it: the headings above it, the line that introduces its list, its neighbours.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

from app.grounding.clauses import ROW, Clause, clauses
from app.grounding.fact import Fact
from app.grounding.statements import facts
from app.grounding.words import all_words
from retrieval.text.sentences import sentences

MARKER = re.compile(r"^\s*(?:[-*•]\s+|(\d{1,3})[.)]\s+)")
LONGEST_HEADING = 90
LISTS = re.compile(r"(?:what|which|who|where|when|items|products|goods|things|no|not)\b", re.IGNORECASE)
"""How a heading begins if its list completes it: "What is not covered", but not "The email has not arrived"."""
SUBORDINATOR = re.compile(r"\b(?:if|when|that|unless|until|because|while)\s*:?$", re.IGNORECASE)
ENOUGH_TO_REWORD = 4
"""A sentence that rewords a unit shares so many words with it, or half of the unit's words."""
NEAR, AROUND = 0.75, 0.45
"""How much a word counts that stands in another clause of the unit, and around the unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceUnit:
    """A sentence, list item or table row of a passage. around: words of headings, introduction and neighbours.
    lead: the line above an item that denies what it says.
    """

    text: str
    facts: tuple[Fact, ...]
    clauses: tuple[Clause, ...]
    words: frozenset[str]
    names: frozenset[str]
    around: frozenset[str]
    is_heading: bool = False
    is_item: bool = False
    lead: str = ""

    def states(self, name: str) -> bool:
        """Whether a name or fact stands in the unit itself."""
        return name in self.names or name in self.words

    def mentions(self, name: str) -> bool:
        """Whether a name or fact stands in the unit or above or next to it."""
        return self.states(name) or name in self.around

    def cover(self, words: Collection[str], weights: dict[str, float], clause: Clause | None = None) -> float:
        """Weight of the words that this unit holds; those of the clause count most, those around the unit least."""
        near = NEAR if clause else 1.0
        total = 0.0
        for word in words:
            if clause and word in clause.words:
                total += weights[word]
            elif word in self.words:
                total += near * weights[word]
            elif word in self.around:
                total += AROUND * weights[word]
        return total

    def held(self, words: Collection[str], weights: dict[str, float]) -> float:
        """Share of words that stand in the unit or around it."""
        total = sum(weights[word] for word in words)
        held = sum(weights[word] for word in words if word in self.words or word in self.around)
        return held / total if total else 0.0

    def rewords(self, words: frozenset[str], weights: dict[str, float]) -> float:
        """Share of words that stand in the unit itself; 0 if they are few and most of the unit says something else."""
        same = words & self.words
        if not same or (len(same) < ENOUGH_TO_REWORD and 2 * len(same) < len(self.words)):
            return 0.0
        return sum(weights[word] for word in same) / sum(weights[word] for word in words)

    def only_in(self, clause: Clause) -> frozenset[str]:
        """Words of one clause that stand in no other clause of the unit."""
        return clause.words.difference(*(other.words for other in self.clauses if other is not clause))


def plain(text: str) -> str:
    """A sentence without its list marker and final punctuation; spaces are single."""
    return " ".join(MARKER.sub("", text, count=1).split()).rstrip(".!")


# the same passages come with every turn of a conversation
@lru_cache(maxsize=256)
def units(passage: str, language: str) -> tuple[EvidenceUnit, ...]:
    """The units of a passage in their order, its heading path first."""
    found: list[EvidenceUnit] = []
    path = heading = lead = None  # lead: the unfinished sentence that introduces a list
    for block in re.split(r"\n[ \t]*\n", passage.strip()):
        lines = block.splitlines()
        while len(lines) > 1 and is_heading(lines[0]):
            heading, lead = unit_of(lines.pop(0), language, is_heading=True), None
            path = path or heading
            found.append(heading)
        for text, is_item in pieces(lines, language):
            unit = introduced(unit_of(text, language, is_item=is_item), path, heading, lead)
            if not is_item:
                lead = None if ROW.match(text) or text.rstrip()[-1] in ".!?。" else unit
            found.append(unit)
    return tuple(with_neighbours(found, i) for i in range(len(found)))


def is_heading(line: str) -> bool:
    """Whether the first line of a block looks like a heading of the lines below it."""
    stops = line.rstrip().endswith((".", "!", ":", ";", ",", "。"))
    return len(line) <= LONGEST_HEADING and not stops and not MARKER.match(line) and not ROW.match(line)


def pieces(lines: Sequence[str], language: str) -> Iterator[tuple[str, bool]]:
    """Sentences of prose and of list items, and whole table rows; with each whether it belongs to a list item."""
    for is_prose, some in groupby(lines, lambda line: not MARKER.match(line) and not ROW.match(line)):
        if is_prose:
            yield from ((text, False) for text in sentences("\n".join(some), language))
            continue
        for line in some:
            if marker := MARKER.match(line):
                for i, text in enumerate(sentences(line[marker.end() :], language)):
                    yield text if i else f"{marker[0].strip()} {text}", True  # the marker stays with the first
            else:
                yield line.strip(), False


def unit_of(text: str, language: str, *, is_heading: bool = False, is_item: bool = False) -> EvidenceUnit:
    """A unit without the words around it."""
    marker = MARKER.match(text)
    body = text[marker.end() :] if marker else text
    found = facts(body, language)
    step = [Fact("number", marker[1], "", marker[1], 0, False)] if marker and marker[1] else []
    parts = tuple(clauses(body, found))
    return EvidenceUnit(
        text=text,
        facts=(*found, *step),
        clauses=parts,
        words=frozenset(word for part in parts for word in part.words),
        names=frozenset(all_words(body)),
        around=frozenset(),
        is_heading=is_heading,
        is_item=is_item,
    )


def introduced(
    unit: EvidenceUnit, path: EvidenceUnit | None, heading: EvidenceUnit | None, lead: EvidenceUnit | None
) -> EvidenceUnit:
    """The unit with the words of its headings. If its list's introduction or heading denies, the unit does too."""
    above = [other for other in (path, heading, lead if unit.is_item else None) if other]
    unit = replace(unit, around=frozenset().union(*(other.words | other.names for other in above)))
    if not unit.is_item or not unit.clauses:
        return unit
    if lead and lead.clauses and lead.clauses[-1].denies:
        return under(unit, lead)
    if heading and LISTS.match(heading.text) and any(part.denies for part in heading.clauses):
        return under(unit, heading)
    return unit


def under(unit: EvidenceUnit, above: EvidenceUnit) -> EvidenceUnit:
    """The unit with its clauses as the introduction or heading of its list, which denies, makes them read."""
    is_sure = not (unit.clauses[0].has_verb if above.is_heading else SUBORDINATOR.search(above.text))
    denies = True if is_sure else None
    anchors = frozenset(word for part in above.clauses for word in part.anchors)
    parts = (
        replace(part, denies=denies, inherits=above.words, anchors=anchors) if part.denies is False else part
        for part in unit.clauses
    )
    return replace(unit, clauses=tuple(parts), lead=above.text)


def with_neighbours(found: Sequence[EvidenceUnit], i: int) -> EvidenceUnit:
    """A unit with the words of the two before it and the one behind it. Table rows stand on their own."""
    unit = found[i]
    if ROW.match(unit.text):
        return unit
    near = [other for other in (*found[max(0, i - 2) : i], *found[i + 1 : i + 2]) if not ROW.match(other.text)]
    return replace(unit, around=unit.around.union(*(other.words | other.names for other in near)))
