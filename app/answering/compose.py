"""Composes an answer of the likeliest statements: the best one first, with what belongs to it, and then stop.

A fact often stands in the sentence beside the one that is nearest to the question. So a sentence is shown with its
neighbours in its paragraph, as long as these are likely, too, and the whole stays short; and a row of a table with
those beside it that are about as likely, because a general question is answered by several. More follows only from
elsewhere and only if it is about as likely as the first. Where the desk is not sure, even the first is often beside the
point, and less follows. Not covered: which statements are likely (`finder`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.knowledge.finder import RankedStatement
from retrieval.statements.statement import num_words
from retrieval.text.terms import stem, words

TOGETHER = 55
"""Most words of a statement with its neighbours."""
NEARLY = 6.0
"""A neighbouring sentence is shown if its log-odds are lower by less than this."""
NEARLY_ROWS = 0.4
"""The same for a row beside a row."""
MARGIN, UNSURE_MARGIN = 0.8, 0.2
"""Another statement is shown if its log-odds are lower than the best one's by less than this."""
STATEMENTS, UNSURE_STATEMENTS = 3, 2
"""The most statements of an answer."""
WORDS = 100
"""Most words of all statements but the first."""
ALIKE = 0.8
"""Share of its words that a statement has in common with one that says the same."""


def composed(
    ranked: Sequence[RankedStatement], texts: Mapping[int, str], *, sure: bool = True
) -> list[RankedStatement]:
    """The statements to show, best first. ranked: all that were found, likeliest first. texts: of passages, by number;
    statements of others are not shown. sure: whether the desk is.
    """
    margin, most = (MARGIN, STATEMENTS) if sure else (UNSURE_MARGIN, UNSURE_STATEMENTS)
    shown: list[RankedStatement] = []
    told: set[int] = set()
    for statement in ranked:
        if len(shown) == most or (shown and statement.logit < shown[0].logit - margin):
            break
        if id(statement) in told or statement.passage not in texts:
            continue
        group = _with_neighbours(statement, ranked, texts[statement.passage], told)
        told.update(map(id, group))
        whole = _joined(group)
        length = sum(num_words(one.text) for one in shown) + num_words(whole.text)
        if not shown or (length <= WORDS and not any(_says_the_same(whole.text, one.text) for one in shown)):
            shown.append(whole)
    return shown


def _with_neighbours(
    statement: RankedStatement, ranked: Sequence[RankedStatement], text: str, told: set[int]
) -> list[RankedStatement]:
    """The statement and those around it that belong to it, in the passage's order."""
    if statement.kind not in ("sentence", "row"):  # the others are whole, and items carry the line above them
        return [statement]
    lowest = statement.logit - (NEARLY if statement.kind == "sentence" else NEARLY_ROWS)
    near = [one for one in ranked if one.passage == statement.passage and id(one) not in told]
    near.sort(key=lambda one: (one.start, -one.end))
    first = last = near.index(statement)
    room = TOGETHER - num_words(statement.text)
    while True:
        beside = [place for place in (first - 1, last + 1) if 0 <= place < len(near)]
        fitting = [
            place
            for place in beside
            if near[place].kind == statement.kind
            and near[place].logit >= lowest
            and num_words(near[place].text) <= room
            and _is_beside(near[place], near[first : last + 1], text)
        ]
        if not fitting:
            return near[first : last + 1]
        place = max(fitting, key=lambda place: near[place].logit)
        room -= num_words(near[place].text)
        first, last = min(first, place), max(last, place)


def _is_beside(one: RankedStatement, group: Sequence[RankedStatement], text: str) -> bool:
    """Whether a statement stands in the same paragraph or table as a group, and says nothing that is in it already."""
    start, end = group[0].start, max(other.end for other in group)
    between = text[end : one.start] if one.start >= end else text[one.end : start]
    overlaps = one.start < end and one.end > start
    return not overlaps and "\n\n" not in between


def _joined(group: Sequence[RankedStatement]) -> RankedStatement:
    best = max(group, key=lambda one: one.logit)
    if len(group) == 1:
        return best
    parts = dict.fromkeys(one.text for one in group)
    are_lines = best.kind == "row" or any("\n" in part for part in parts)
    breaks = "\n" if are_lines else "" if best.text.endswith(("。", "！", "？")) else " "
    return replace(best, text=breaks.join(parts), start=group[0].start, end=max(one.end for one in group))


def _says_the_same(one: str, other: str) -> bool:
    first, second = ({stem(word) for word in words(text)} for text in (one, other))
    return len(first & second) >= ALIKE * min(len(first), len(second))
