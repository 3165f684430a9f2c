"""What the desk's documents say about a question: passages, the chance that they answer it, and their statements.

Search and database are read in the same state, also while documents are added and removed.
"""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

from app.domain.documents import StoredPassage
from app.knowledge.search import Search
from app.storage.library import Library
from retrieval.answerability.classifier import AnswerabilityClassifier
from retrieval.answerability.features import analyse, passage_features, statement_features
from retrieval.documents.document import with_headings
from retrieval.search.reranker import RERANKED, Reranker, rerank
from retrieval.text.terms import COMMON, asked_words, stem


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPassage:
    """A passage with the score it was ranked by and its cosine with the question."""

    passage: StoredPassage
    score: float
    cosine: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedStatement:
    """A statement of a passage found. logit: log-odds that it answers the question."""

    text: str
    logit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResults:
    """passages: best first. statements: likeliest first. relevance: probability that the passages answer."""

    passages: tuple[FoundPassage, ...]
    statements: tuple[RankedStatement, ...]
    relevance: float


NOTHING = SearchResults(passages=(), statements=(), relevance=0.0)


class Finder:
    """Searches, and estimates whether what is found answers the question. Safe to use from any thread."""

    def __init__(
        self, library: Library, search: Search, classifier: AnswerabilityClassifier, reranker: Reranker | None = None
    ) -> None:
        self._library, self._search, self.classifier, self._reranker = library, search, classifier, reranker

    def find(
        self, question: str, *, earlier: str | None = None, count: int, collections: Collection[str] = ()
    ) -> SearchResults:
        """What the documents say. earlier: the question before it in its conversation. count: how many passages, at
        most. collections: only documents of these, if any are given.
        """
        candidates = count if self._reranker is None else max(count, RERANKED)
        while True:
            retriever = self._search.retriever_for(collections)
            queries = [retriever.query(text) for text in wordings(question, earlier)]
            found = retriever.search(queries, candidates)
            stored = {passage.id: passage for passage in self._library.passages([hit.id for hit in found])}
            if len(stored) == len(found):
                break
            self._search.wait()  # a passage was replaced meanwhile: the next snapshot has the new one
            if retriever is self._search.retriever_for(collections):
                break
        found = [hit for hit in found if hit.id in stored]
        if self._reranker is not None:
            texts = {id_: with_headings(passage.heading_path, passage.text) for id_, passage in stored.items()}
            found = rerank(self._reranker, queries[-1].text, found, lambda hit: texts[hit.id])[:count]
        if not found:
            return NOTHING
        found_texts = [(stored[hit.id].heading_path, stored[hit.id].text) for hit in found]
        passages = analyse(found, found_texts, self._search.embed_sentences)
        asked, with_context = queries[0], queries[-1]
        features = statement_features(retriever, with_context, asked, passages)
        logits: dict[str, float] = {}
        for passage, rows in zip(passages, features, strict=True):
            for text, row in zip(passage.statements, rows, strict=True):
                logits[text] = max(self.classifier.answers(row), logits.get(text, -math.inf))
        likeliest_first = sorted(logits.items(), key=lambda item: -item[1])
        return SearchResults(
            passages=tuple(FoundPassage(passage=stored[hit.id], score=hit.score, cosine=hit.cosine) for hit in found),
            statements=tuple(RankedStatement(text=text, logit=logit) for text, logit in likeliest_first),
            relevance=self.classifier.is_answered(passage_features(retriever, with_context, asked, passages)),
        )


REFERS_BACK = re.compile(
    r"^(?:and|but|or|so|then|what about|how about|what if|why|why not|really|also|only)\b"
    r"|\b(?:it|its|they|them|their|that|those|these|this|he|she|one|ones|there|same|else|instead|other|then)\b",
    re.IGNORECASE,
)
"""Words by which a question refers to the one before it."""
ENOUGH_TERMS = 5
"""A question with so many terms of its own and no word that refers back is understood alone."""


def wordings(question: str, earlier: str | None) -> list[str]:
    """The texts to search for: the question, and if it may refer to an earlier one, also both together, as the last."""
    if earlier is None:
        return [question]
    terms = {stem(word) for word in asked_words(question)} - COMMON
    if len(terms) >= ENOUGH_TERMS and not REFERS_BACK.search(question):
        return [question]
    return [question, f"{earlier} {question}"]
