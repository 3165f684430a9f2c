"""Which passages are cited with an answer, and in which order.

Readers shall see what the answer rests on and not all that was found. A quotation cites the passages of its statements,
in their order. Behind them stands the best passage of each of the nearest other documents: where the statements are the
wrong ones, the right page is often there. An answer in the model's own words also cites every passage that holds a
large part of its words. Not covered: checking the answer's statements against the passages.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from app.domain.answers import BETWEEN, Citation, Mark
from app.domain.documents import StoredPassage
from app.knowledge.finder import RankedStatement
from retrieval.text.sentences import as_said, parted

NEAREST = 3
"""Documents of which the best passage is cited for its rank alone."""
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
    holding = {id_ for id_, shared in support.items() if shared and shared >= SHARED_WORDS * most}
    best = {passage.id for passage, _ in nearest(found)}
    marks = _marks_by_words(answer, [passage for passage, _ in found if passage.id in holding])
    cited = [(passage, citation(passage, score)) for passage, score in found if passage.id in best | holding]
    return [
        (passage, replace(one, see_also=passage.id not in holding, marks=marks.get(passage.id, ())))
        for passage, one in cited
    ]


def cite_quotation(answer: str, said: Sequence[RankedStatement], found: Found) -> list[tuple[StoredPassage, Citation]]:
    """Citations of statements in their order, then of the nearest pages, marked as such. said: the statements that were
    to be shown.

    (login.gov: the right page or the facts are shown for 95 % of the questions; with the three nearest pages of all
    instead of the three besides those of the statements, for 91 %.)
    """
    by_id = {passage.id: (passage, score) for passage, score in found}
    by_text = {text: one for one in said if one.passage in by_id for text in (one.text, as_said(one.text))}
    shown = [(number, by_text[text]) for number, text in enumerate(answer.split(BETWEEN)) if text in by_text]
    ids = [one.passage for _, one in shown]
    documents = {by_id[id_][0].document for id_ in ids}
    near = [passage.id for passage, _ in nearest([one for one in found if one[0].document not in documents])]
    marks = {id_: tuple(Mark(at, one.start, one.end) for at, one in shown if one.passage == id_) for id_ in ids}
    quoted = [(by_id[id_][0], replace(citation(*by_id[id_]), marks=marks[id_])) for id_ in dict.fromkeys(ids)]
    return quoted + [(by_id[id_][0], citation(*by_id[id_], see_also=True)) for id_ in near]


def cite_faq(answer: str, found: Found) -> list[tuple[StoredPassage, Citation]]:
    """Citations of a pair of the FAQ, whose answer is said as it stands there."""
    return [(passage, replace(citation(passage, score), marks=_marks_of(answer, passage))) for passage, score in found]


def nearest(found: Found) -> list[tuple[StoredPassage, float]]:
    """The best passage of each of the nearest documents."""
    first = {passage.document: (passage, score) for passage, score in reversed(found)}
    documents = list(dict.fromkeys(passage.document for passage, _ in found))[:NEAREST]
    return [first[document] for document in documents]


def citation(passage: StoredPassage, score: float, *, see_also: bool = False) -> Citation:
    """A passage as it is shown below an answer."""
    return Citation(
        document=passage.document,
        title=passage.title,
        passage=passage.label,
        quote=passage.text,
        score=round(score, 4),
        see_also=see_also,
        url=passage.url,
    )


def _marks_of(answer: str, passage: StoredPassage) -> tuple[Mark, ...]:
    places = [
        (number, start, len(said))
        for number, paragraph in enumerate(answer.split(BETWEEN))
        if (said := paragraph.strip()) and (start := passage.text.find(said)) >= 0
    ]
    return tuple(Mark(number, start, start + length) for number, start, length in places)


def _marks_by_words(answer: str, passages: Sequence[StoredPassage]) -> dict[int, tuple[Mark, ...]]:
    """For each paragraph in the model's own words, the sentence that shares most of its long words, by passage."""
    sentences = [(passage, sentence) for passage in passages for _, sentence in parted(passage.text)]
    marks: dict[int, tuple[Mark, ...]] = {}
    for number, paragraph in enumerate(answer.split(BETWEEN)):
        words = long_words(paragraph)
        shared, passage, sentence = max(
            ((len(words & long_words(sentence)), passage, sentence) for passage, sentence in sentences),
            key=lambda one: one[0],
            default=(0, None, ""),
        )
        if passage is not None and shared and (start := passage.text.find(sentence)) >= 0:
            marks[passage.id] = (*marks.get(passage.id, ()), Mark(number, start, start + len(sentence)))
    return marks


def long_words(text: str) -> frozenset[str]:
    """Words of four letters or more, and everything with a digit in it; case does not count."""
    return frozenset(w for w in WORD.findall(text.lower()) if len(w) > 3 or any(c.isdigit() for c in w))
