"""Which passages are cited with an answer, and in which order.

Readers shall see what the answer rests on and not all that was found. So these are cited: the best passage of each of
the best documents, every passage that holds a large part of the answer's words, and for every statement that is quoted
a passage that holds it. Not covered: checking the answer's statements against the passages.
"""

import re
from collections.abc import Sequence

from app.domain.answers import BETWEEN, Citation
from app.domain.documents import StoredPassage
from retrieval.text.sentences import as_said, statements

BEST_DOCUMENTS = 3
"""Documents of which the best passage is cited for its rank alone. (Sample questions: the right article is among the
best two for 86 %, the best three for 90 %.)"""
SHARED_WORDS = 0.6
"""Share of the answer's words that a further citation must hold, relative to the passage that holds most of them."""

WORD = re.compile(r"\w+")


def cite(answer: str, found: Sequence[tuple[StoredPassage, float]]) -> list[tuple[StoredPassage, Citation]]:
    """Citations of an answer, best first. found: passages with their search scores, best score first."""
    if not found:
        return []
    words = long_words(answer)
    support = {p.id: len(words & long_words(p.text + " " + " ".join(p.heading_path))) for p, _ in found}
    most = max(support.values())
    documents = list(dict.fromkeys(passage.document for passage, _ in found))[:BEST_DOCUMENTS]
    best = {document: next(p.id for p, _ in found if p.document == document) for document in documents}
    cited = {p.id for p, _ in found if p.id in best.values() or (most and support[p.id] >= SHARED_WORDS * most)}
    said = {p.id: frozenset(map(as_said, statements(p.text))) for p, _ in found}
    for paragraph in answer.split(BETWEEN):
        holding = [id_ for id_, ones in said.items() if paragraph in ones]
        if holding and cited.isdisjoint(holding):
            cited.add(holding[0])
    return [(passage, citation(passage, score)) for passage, score in found if passage.id in cited]


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
