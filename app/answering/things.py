"""Find the models, plans or places that a question may mean, if the page of each answers it in the same way.

Two pages answer alike if the headings of their sections are similar, without the words of the page titles, and their
statements are about equally likely. If several such titles share equally many words with the question, and no other
likely title shares more, the customer is asked which one is meant. Out of scope: rows of one table (`other_subjects` of
`retrieval.answerability`).
"""

import re
from collections.abc import Sequence, Set

from app.domain.documents import StoredPassage
from app.knowledge.finder import RankedStatement, SearchResults
from retrieval.statements.cut import lines_of
from retrieval.text.codes import codes, terms_of
from retrieval.text.terms import COMMON

AS_LIKELY = 4.0  # maximum log-odds between the best statement and that of another thing
ALIKE = 0.5  # minimum share of common terms in similar headings
MOST = 5  # things to choose from
LONGEST = 80  # characters of a name
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


def fitting_things(results: SearchResults, question: str, earlier: str | None) -> list[StoredPassage]:
    """Return one passage of each thing that the question may mean, most likely first. earlier: the previous question,
    which may name the thing.
    """
    asked = [terms_of(text) for text in (question, earlier or "")]
    if not results.statements or asked[0] & terms_of(results.statements[0].subject) - COMMON:
        return []  # the question names a table row, which is one thing
    told = _told_of_things(results)
    passages = {one.passage.id: one.passage for one in results.found}
    near = [one for one in results.statements if one.logit >= results.statements[0].logit - 2 * AS_LIKELY]
    titles = [title_of(passages[one.passage]) for one in near]
    named = {title: [len(words & terms_of(title)) for words in asked] for title in titles}
    most = max(named.values(), default=[])  # perhaps of a page that answers differently
    return [passage for title, passage in told.items() if named[title] == most]


def _told_of_things(results: SearchResults) -> dict[str, StoredPassage]:
    """Return the passage with the most likely statement, and passages that say the same of other things, by title."""
    passages = {one.passage.id: one.passage for one in results.found}
    found: dict[str, StoredPassage] = {}
    said: list[Set[str]] = []
    first: Set[str] = frozenset()
    for one in results.statements:
        passage = passages[one.passage]
        title = title_of(passage)
        if one.logit < results.statements[0].logit - AS_LIKELY or title in found:
            continue
        words = terms_of(one.text) - terms_of(title)
        below = _terms_below(one, passage)
        if not found or (words not in said and _are_alike(below, first) and _differ(title, next(iter(found)))):
            first = below if not found else first
            found[title] = passage
            said.append(words)
    return found


def title_of(passage: StoredPassage) -> str:
    return passage.heading_path[0] if passage.heading_path else passage.title


def _differ(title: str, other: str) -> bool:
    """Return whether each title has a word or a code that the other lacks, unlike "Login" and "Issues with login".
    Years do not count: "Prices 2024" and "Prices 2026" are about one thing.
    """
    one, two = (codes(text) or terms_of(text) for text in (_YEAR.sub("", title), _YEAR.sub("", other)))
    return not (one <= two or two <= one)


def _are_alike(one: Set[str], other: Set[str]) -> bool:
    return len(one & other) >= ALIKE * len(one | other) > 0


def _terms_below(one: RankedStatement, passage: StoredPassage) -> Set[str]:
    """Return the terms of the nearest heading below the title, or of the statement itself if there is none. Terms of
    the title are removed, unless no others are left.
    """
    above = [line.text for line in lines_of(passage.text) if line.kind == "heading" and line.end <= one.start]
    terms = terms_of(([*passage.heading_path[1:], *above] or [one.text])[-1])
    return terms - terms_of(title_of(passage)) - COMMON or terms


def names_of(things: Sequence[StoredPassage]) -> list[str]:
    """Return short names: the titles without the last words that all of them share."""
    titles = [title_of(one).split() for one in things[:MOST]]
    same = 0
    while same < min(map(len, titles)) - 1 and len({words[-1 - same] for words in titles}) == 1:
        same += 1
    return [" ".join(words[: len(words) - same]).rstrip(":,-–")[:LONGEST] for words in titles]
