"""What the desk's documents say about a question: passages, the chance that they answer it, and their statements.

Search and database are read in the same state, also while documents are added and removed.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from app.domain.documents import StoredPassage
from app.knowledge.search import Search
from app.knowledge.statements import StatementStore
from app.storage.library import Library
from retrieval.answerability.classifier import AnswerabilityClassifier
from retrieval.answerability.features import FoundPassageText
from retrieval.answerability.judge import JudgedStatements, judge
from retrieval.documents.document import with_headings
from retrieval.search.one_question import one_question
from retrieval.search.reranker import Reranker, rerank
from retrieval.search.retriever import PassageHit, Query, Retriever
from retrieval.statements.statement import Kind
from retrieval.text.terms import COMMON, asked_words, stem

BEST = 8
"""The passages of so many of the likeliest statements come first."""
CANDIDATES = 10
"""Passages whose statements are ranked; ranking them costs no model, so these are more than the prompt has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPassage:
    """A passage with the score it was ranked by and its cosine with the question."""

    passage: StoredPassage
    score: float
    cosine: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedStatement:
    """A statement of a passage found. logit: log-odds that it answers the question. passage: the number of its passage.
    start, end: the characters of the passage it stands for.
    """

    text: str
    logit: float
    passage: int
    start: int
    end: int
    kind: Kind = "sentence"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResults:
    """passages: best first, as many as were asked for. found: these and more, for the nearest pages. statements:
    likeliest first. relevance: probability that the likeliest answer.
    """

    passages: tuple[FoundPassage, ...]
    found: tuple[FoundPassage, ...]
    statements: tuple[RankedStatement, ...]
    relevance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedQuestion:
    """What is known about a question before it is decided. hits: best first. passages: by number."""

    hits: tuple[PassageHit, ...]
    passages: dict[int, StoredPassage]
    statements: JudgedStatements


NOTHING = SearchResults(passages=(), found=(), statements=(), relevance=0.0)


class Finder:
    """Searches, and estimates whether what is found answers the question. Safe to use from any thread."""

    def __init__(
        self,
        library: Library,
        search: Search,
        statements: StatementStore,
        classifier: AnswerabilityClassifier,
        reranker: Reranker | None = None,
    ) -> None:
        self._library, self._search, self._statements = library, search, statements
        self.classifier, self._reranker = classifier, reranker

    one_question = staticmethod(one_question)
    """Within it, what is found more than once of a question is embedded once."""

    def find(
        self, question: str, *, earlier: str | None = None, count: int, collections: Collection[str] = ()
    ) -> SearchResults:
        """What the documents say. earlier: the question before it in its conversation, used if this one refers to it or
        means nothing alone: otherwise it would lead astray. count: how many passages, at most. collections: only
        documents of these, if any are given.
        """
        if earlier is not None and may_stand_alone(question):
            alone = self._results(question, None, count, collections)
            if alone.relevance >= self.classifier.threshold:
                return alone
        return self._results(question, earlier, count, collections)

    def _results(self, question: str, earlier: str | None, count: int, collections: Collection[str]) -> SearchResults:
        judged = self.judge(question, earlier=earlier, count=max(count, CANDIDATES), collections=collections)
        ranked = [
            RankedStatement(
                text=one.statement.text,
                logit=logit,
                passage=judged.hits[one.passage].id,
                start=one.statement.start,
                end=one.statement.end,
                kind=one.statement.kind,
            )
            for logit, one in judged.statements.ranked
        ]
        best_first = dict.fromkeys([*(one.passage for one in ranked[:BEST]), *(hit.id for hit in judged.hits)])
        by_id = {hit.id: hit for hit in judged.hits}
        found = tuple(
            FoundPassage(passage=judged.passages[id_], score=by_id[id_].score, cosine=by_id[id_].cosine)
            for id_ in best_first
        )
        return SearchResults(
            passages=found[:count],
            found=found,
            statements=tuple(ranked),
            relevance=self.classifier.is_answered(judged.statements.features) if ranked else 0.0,
        )

    def judge(
        self,
        question: str,
        *,
        earlier: str | None,
        count: int,
        collections: Collection[str] = (),
        without: Collection[int] = (),
    ) -> JudgedQuestion:
        """Search and measure; arguments as of `find`. without: passages that are left out, as if they did not exist."""
        retriever, queries, hits, stored = self._found(question, earlier, count, collections)
        hits = [hit for hit in hits if hit.id not in without]
        read = self._statements.of([stored[hit.id] for hit in hits])
        passages = [
            FoundPassageText(
                hit=hit,
                headings=stored[hit.id].heading_path or (stored[hit.id].title,),
                text=stored[hit.id].text,
                statements=one.statements,
                vectors=one.vectors,
            )
            for hit, one in zip(hits, read, strict=True)
        ]
        statements = judge(retriever, self._statements.encoder, self.classifier, queries, passages)
        return JudgedQuestion(hits=tuple(hits), passages=stored, statements=statements)

    def _found(
        self, question: str, earlier: str | None, count: int, collections: Collection[str]
    ) -> tuple[Retriever, list[Query], list[PassageHit], dict[int, StoredPassage]]:
        """The snapshot, the wordings, the passages found, and what is stored of them."""
        while True:
            retriever = self._search.retriever_for(collections)
            queries = retriever.queries(wordings(question, earlier))
            found = retriever.search(queries, count)
            stored = {passage.id: passage for passage in self._library.passages([hit.id for hit in found])}
            if len(stored) == len(found):
                break
            self._search.follow()  # a passage was replaced meanwhile: the next snapshot has the new one
            if retriever is self._search.retriever_for(collections):
                break
        found = [hit for hit in found if hit.id in stored]
        if self._reranker is not None:
            texts = {id_: with_headings(passage.heading_path, passage.text) for id_, passage in stored.items()}
            found = rerank(self._reranker, queries[-1].text, found, lambda hit: texts[hit.id])
        return retriever, queries, found, stored


REFERS_BACK = re.compile(
    r"^(?:and|but|or|so|then|what about|how about|what if|why|why not|really|also|only)\b"
    r"|\b(?:it|its|they|them|their|that|those|these|this|he|she|one|ones|there|same|else|instead|other|then)\b",
    re.IGNORECASE,
)
"""Words by which a question refers to the one before it."""
SOME_TERMS, ENOUGH_TERMS = 2, 5
"""A question without a word that refers back may be understood alone if it has some terms, and is if it has enough."""


def wordings(question: str, earlier: str | None) -> list[str]:
    """The texts to search for: the question, and if it may refer to an earlier one, also both together, as the last."""
    if earlier is None:
        return [question]
    if may_stand_alone(question, ENOUGH_TERMS):
        return [question]
    return [question, f"{earlier} {question}"]


def may_stand_alone(question: str, least: int = SOME_TERMS) -> bool:
    """Whether a question has so many terms of its own, and no word that refers to the one before it."""
    terms = {stem(word) for word in asked_words(question)} - COMMON
    return len(terms) >= least and not REFERS_BACK.search(question)
