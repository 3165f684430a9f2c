"""The whole of a small table, as the answer to a general question.

"How long does delivery take?" names no row of the table "Delivery costs and times", so an exception that repeats its
words is likelier than any row. A question is general if the headings above a table have all its significant words.
Such a table of the likeliest page is one more statement, before the others, if it has the expected type of answer and
the headings do not turn the question ("What can I return?", "Items that can't be returned"). Out of scope: lists, and
tables that are split into passages, of which the rows of one passage are shown.
"""

import re
from dataclasses import replace
from itertools import groupby

from app.answering.choosing import joined
from app.domain.documents import StoredPassage
from app.knowledge.finder import RankedStatement, SearchResults, telling
from retrieval.answerability import agreement
from retrieval.statements.cut import lines_of, statements_of
from retrieval.statements.grouping import denies, num_words
from retrieval.text.codes import terms_of
from retrieval.text.terms import stem

ROWS, WORDS = 8, 170  # maximum size of a table that is shown whole
_VAGUE = ("accept", "arrive", "available", "charge", "cost", "fast", "get", "offer", "option", "price", "take", "use")
_NOT_OF_TABLES = re.compile(r"\b(?:who|why|how many)\b", re.IGNORECASE)


def with_overview(question: str, results: SearchResults) -> SearchResults:
    """Return the results with a table as the most likely statement, or as they are."""
    words, is_denied = telling(question)
    asked, agrees = words - set(map(stem, _VAGUE)), agreement(question)
    found = {one.passage.id: one for one in results.found}
    for one in results.statements if asked and not _NOT_OF_TABLES.search(question) else ():
        holding, best = found[one.passage], found[results.statements[0].passage]
        passage = holding.passage
        if one.kind != "row" or passage.document != best.passage.document:
            continue
        headings = "\n".join(passage.heading_path or (passage.title,))
        if not asked <= terms_of(headings) or (denies(headings) and not is_denied):
            continue
        whole = _table_of(one, passage)
        if whole is not None and agrees(whole.text) >= 0:
            passages = tuple(dict.fromkeys((holding, *results.passages)))[: len(results.passages)]
            whole = replace(whole, logit=results.statements[0].logit)
            return replace(results, passages=passages, statements=(whole, *results.statements))
    return results


def _table_of(one: RankedStatement, passage: StoredPassage) -> RankedStatement | None:
    """Return the table of a row as one statement, unless it is large."""
    tables = [list(lines) for kind, lines in groupby(lines_of(passage.text), lambda line: line.kind) if kind == "row"]
    start, end = next((lines[0].start, lines[-1].end) for lines in tables if one.start <= lines[-1].start)
    rows = [row for row in statements_of(passage.text, passage.heading_path) if start <= row.start < end]
    whole = joined([replace(one, text=row.text, start=row.start, end=row.end) for row in rows])
    return whole if 1 < len(rows) <= ROWS and num_words(whole.text) <= WORDS else None
