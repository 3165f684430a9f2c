"""Which passages are cited with an answer, and in which order.

Readers shall see what the answer rests on and not all that was found. A quotation cites the passages of its statements,
in their order. An answer that may only help, and one in the model's own words, also cites the best passage of each of
the best documents; the latter every passage, too, that holds a large part of the answer's words. Not covered: checking
the answer's statements against the passages.
"""

import re
from collections.abc import Mapping, Sequence

from app.domain.answers import BETWEEN, Citation
from app.domain.documents import StoredPassage

BEST_DOCUMENTS = 3
"""Documents of which the best passage is cited for its rank alone. (Sample questions: the right article is among the
best two for 86 %, the best three for 90 %.)"""
SHARED_WORDS = 0.6
"""Share of the answer's words that a further citation must hold, relative to the passage that holds most of them."""

WORD = re.compile(r"\w+")

Found = Sequence[tuple[StoredPassage, float]]


def cite(answer: str, found: Found) -> list[tuple[StoredPassage, Citation]]:
    """Citations of an answer in the model's own words. found: passages with their search scores, best first."""
    if not found:
        return []
    words = long_words(answer)
    support = {p.id: len(words & long_words(p.text + " " + " ".join(p.heading_path))) for p, _ in found}
    most = max(support.values())
    best = {passage.id for passage, _ in nearest(found)}
    cited = {p.id for p, _ in found if p.id in best or (most and support[p.id] >= SHARED_WORDS * most)}
    return [(passage, citation(passage, score)) for passage, score in found if passage.id in cited]


def cite_quotation(
    answer: str, said: Mapping[str, int], found: Found, *, is_sure: bool
) -> list[tuple[StoredPassage, Citation]]:
    """Citations of statements. said: the number of the passage of each statement. is_sure: cite nothing else."""
    by_id = {passage.id: (passage, score) for passage, score in found}
    ids = [said[paragraph] for paragraph in answer.split(BETWEEN) if paragraph in said]
    if not is_sure:
        documents = {by_id[id_][0].document for id_ in ids if id_ in by_id}
        ids += [passage.id for passage, _ in nearest(found) if passage.document not in documents]
    return [(by_id[id_][0], citation(*by_id[id_])) for id_ in dict.fromkeys(ids) if id_ in by_id]


def nearest(found: Found) -> list[tuple[StoredPassage, float]]:
    """The best passage of each of the best documents."""
    first = {passage.document: (passage, score) for passage, score in reversed(found)}
    documents = list(dict.fromkeys(passage.document for passage, _ in found))[:BEST_DOCUMENTS]
    return [first[document] for document in documents]


def citation(passage: StoredPassage, score: float) -> Citation:
    """A passage as it is shown below an answer."""
    return Citation(
        document=passage.document,
        title=passage.title,
        passage=passage.label,
        quote=passage.text,
        score=round(score, 4),
    )


def long_words(text: str) -> frozenset[str]:
    """Words of four letters or more, and everything with a digit in it; case does not count."""
    return frozenset(w for w in WORD.findall(text.lower()) if len(w) > 3 or any(c.isdigit() for c in w))
