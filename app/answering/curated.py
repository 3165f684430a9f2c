"""Answer questions from the FAQ, before search and without the model.

A pair answers only a question with the same significant words as one of its wordings, and only if their similarity
reaches the threshold (`app.knowledge.finder`). Other questions go to search, which includes the FAQ's document.
Wordings are looked up by their significant words, so a large FAQ is not slower. Out of scope: writing pairs
(`app.support.faq`).
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.documents import StoredPassage
from app.domain.quality import FAQ, FaqPair, NearestPair
from app.domain.settings import Settings
from app.domain.words import one_line
from app.knowledge.finder import EmbeddedQuestion, Telling, embedded, likeness, telling
from app.knowledge.search import Search
from app.storage.faq import FaqStore, FaqVectors
from app.storage.library import Library

log = logging.getLogger(__name__)

THRESHOLD = 0.85
"""The default of the setting `faq_threshold`. `app.knowledge.finder` names the data used to choose it."""


@dataclass(frozen=True, slots=True)
class CuratedAnswer:
    """A pair that answers a question. passages: the pair's passages in the FAQ's document, at least one."""

    pair: FaqPair
    nearest: NearestPair
    passages: tuple[StoredPassage, ...]


Wordings = Mapping[Telling, list[tuple[FaqPair, EmbeddedQuestion]]]


class CuratedAnswers:
    """Answers questions from the FAQ. Safe to use from any thread. Call `reload` after a change of pairs."""

    def __init__(self, settings: Settings, store: FaqStore, library: Library, search: Search) -> None:
        self._settings, self._store, self._library, self._search = settings, store, library, search
        self._passages: Mapping[int, tuple[StoredPassage, ...]] = {}
        self._wordings: Wordings = {}
        self.reload()

    @property
    def threshold(self) -> float:
        return THRESHOLD if self._settings.faq_threshold is None else self._settings.faq_threshold

    def reload(self) -> None:
        pairs, vectors, embedder = self._store.pairs(), self._store.vectors(), self._search.embedder
        if outdated := [pair for pair in pairs if vectors[pair.id].embedder != embedder.name]:
            log.warning("%d FAQs are embedded again with the embedder %s", len(outdated), embedder.name)
            new = {pair.id: self.vectors_of(pair.questions) for pair in outdated}
            self._store.set_vectors(new)
            vectors |= new
        wordings: defaultdict[Telling, list[tuple[FaqPair, EmbeddedQuestion]]] = defaultdict(list)
        for pair in pairs:
            for text, vector in zip(pair.questions, vectors[pair.id].rows, strict=True):
                key = telling(text)  # equal significant words mean one language: the question's trust is enough
                wordings[key].append((pair, EmbeddedQuestion(text, vector, 1.0, key)))
        stored = self._library.passages_of(self._settings.faq_document) if pairs else []
        self._passages = passages_by_pair(pairs, stored)
        self._wordings = dict(wordings)

    def vectors_of(self, questions: Collection[str]) -> FaqVectors:
        embedder = self._search.embedder
        return FaqVectors(embedder=embedder.name, rows=embedder.embed_queries(list(questions)))

    def answer(self, question: str, collections: Collection[str] = ()) -> CuratedAnswer | None:
        """Return the pair that answers a question, if any. collections: search only these; none: all."""
        if not self._settings.faq_answers or (collections and FAQ not in collections):
            return None
        found = self.nearest(question)
        if found is None or found[1].likeness < self.threshold:
            return None
        pair, nearest = found
        passages = self._passages.get(pair.id, ())
        return CuratedAnswer(pair, nearest, passages) if passages else None  # not in the document yet

    def nearest(self, question: str) -> tuple[FaqPair, NearestPair] | None:
        """Return the most similar wording with the question's significant words, even if it does not answer."""
        alike = self._wordings.get(telling(question))
        if not alike:
            return None
        [asked] = embedded(self._search.embedder, [question])
        scored = [(likeness(asked, wording), pair, wording.text) for pair, wording in alike]
        score, pair, text = max(scored, key=lambda one: one[0])
        return pair, NearestPair(wording=text, likeness=score, threshold=self.threshold)


def passages_by_pair(
    pairs: Sequence[FaqPair], passages: Iterable[StoredPassage]
) -> dict[int, tuple[StoredPassage, ...]]:
    """Return the passages of each pair by its number, in the document's order. A long question is shortened in the
    heading of its section and repeated above the answer.
    """
    found: defaultdict[int, tuple[StoredPassage, ...]] = defaultdict(tuple)
    left, current = list(pairs), None
    for passage in passages:
        heading = one_line(passage.heading_path[-1]) if passage.heading_path else ""
        text = one_line(passage.text)
        place = next(
            (place for place, pair in enumerate(left) if heading == pair.question or text.startswith(pair.question)),
            None,
        )
        if place is not None:
            current, left = left[place], left[place + 1 :]
        if current is not None:
            found[current.id] += (passage,)
    return dict(found)
