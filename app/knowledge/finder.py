"""Find the passages and statements for a question, and the probability that they answer it. Also compare two questions.

The statements of a passage are encoded once, at ingestion, and their vectors are stored. If a passage was stored by
another version of the program and has no vectors, it is encoded when it is first found. Search index and database are
read in the same state, also while documents change.

An embedder rates the similarity of two questions, but misses important differences: "Is the store open on Sunday?" and
"... on Saturday?" have a cosine of .93, "Are returns free?" and "... not free?" one of .97. So questions count as the
same only if they share all significant words (stems that are not common words). (1,690 questions about the sample shop,
compared with each other: eight pairs have the same significant words. All eight ask the same, and their cosines are .89
or more. With the cosine alone, some pairs of .88 to .89 are wrong.) If the embedder does not know the language, the
cosine has less weight, as in search.
"""

import json
import logging
import re
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np

from app.domain.documents import StoredPassage, Vectors
from app.knowledge.search import Search
from app.storage.library import Library
from retrieval.answerability import AnswerabilityClassifier, FoundPassageText, JudgedStatements, judge
from retrieval.documents import with_headings
from retrieval.errors import RetrievalError, first_line
from retrieval.ranking.encoder import PassageToRead, StatementEncoder, StatementVectors
from retrieval.search.embedding import Embedder, one_question
from retrieval.search.retriever import CrossEncoderReranker, PassageHit, Query, Retriever, rerank
from retrieval.statements.cut import VERSION, statements_of
from retrieval.statements.grouping import Kind, Statement
from retrieval.text.terms import COMMON, asked_words, folded, stem, telling_words

_DENYING = re.compile(r"\b(?:not|no|never|without|cannot|\w+n['’]t)\b")
_SAY_LITTLE = frozenset(
    stem(word)
    for word in (
        *("possible", "item", "thing", "something", "anything", "tell", "know", "want", "like"),
        *("help", "question", "still"),
    )
)
Telling = tuple[frozenset[str], bool]  # the significant words of a question, and whether it has a negation


@dataclass(frozen=True, slots=True)
class EmbeddedQuestion:
    """A question with its vector. trust: the weight of its cosines, 0 to 1."""

    text: str
    vector: Vectors
    trust: float
    telling: Telling


def telling(question: str) -> Telling:
    """Return the significant words of a question (all words if there are none), and whether it has a negation."""
    stems = frozenset(map(stem, telling_words(question))) - COMMON - _SAY_LITTLE
    return stems or frozenset(asked_words(question)), bool(_DENYING.search(folded(question)))


def embedded(embedder: Embedder, texts: Sequence[str]) -> list[EmbeddedQuestion]:
    vectors = embedder.embed_queries(texts)
    return [
        EmbeddedQuestion(text, vector, embedder.knowledge(text) ** 2, telling(text))
        for text, vector in zip(texts, vectors, strict=True)
    ]


def likeness(one: EmbeddedQuestion, other: EmbeddedQuestion) -> float:
    """Return the similarity of two questions, 0 to 1. Shared significant words replace an untrusted cosine."""
    trust = min(one.trust, other.trust)
    (words, _), (others, _) = one.telling, other.telling
    shared = 2 * len(words & others) / (len(words) + len(others)) if words or others else 0.0
    return min(1.0, max(0.0, trust * float(one.vector @ other.vector) + (1 - trust) * shared))


log = logging.getLogger(__name__)
_FORMAT = 2  # of `PassageStatements.packed`
_SIZE = 4  # bytes of the length of the first part


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageStatements:
    """The statements of a passage and their vectors, in the same order."""

    statements: tuple[Statement, ...]
    vectors: StatementVectors

    def packed(self) -> bytes:
        cut = json.dumps([astuple(one) for one in self.statements], ensure_ascii=False).encode("utf-8", "surrogatepass")
        return len(cut).to_bytes(_SIZE, "little") + cut + self.vectors.packed()

    @classmethod
    def unpacked(cls, stored: bytes) -> "PassageStatements":
        behind = _SIZE + int.from_bytes(stored[:_SIZE], "little")
        cut = json.loads(stored[_SIZE:behind].decode("utf-8", "surrogatepass"))
        return cls(statements=tuple(Statement(*one) for one in cut), vectors=StatementVectors.unpacked(stored[behind:]))


class StatementStore:
    """Encodes the statements of passages and stores their vectors. Safe to use from any thread.

    name: identifies the stored data. It changes if statements are cut or encoded differently.
    """

    def __init__(self, library: Library, encoder: StatementEncoder) -> None:
        self._library, self.encoder = library, encoder
        self._unreadable = set[int]()
        self.name = f"{encoder.name} {VERSION}.{_FORMAT}"

    def of(self, passages: Sequence[StoredPassage]) -> list[PassageStatements]:
        """Return the statements of each passage, in order. A passage that cannot be encoded has no statements."""
        stored = self._library.statement_vectors(self.name, [passage.id for passage in passages])
        found = {id_: PassageStatements.unpacked(kept) for id_, kept in stored.items()}
        if missing := [passage for passage in passages if passage.id not in found.keys() | self._unreadable]:
            new = self._readable(missing)
            self._library.keep_statement_vectors(self.name, {id_: one.packed() for id_, one in new.items()})
            found |= new
        if unread := [passage.id for passage in passages if passage.id not in found]:
            found |= dict.fromkeys(unread, self._nothing)
        return [found[passage.id] for passage in passages]

    def _readable(self, passages: Sequence[StoredPassage]) -> dict[int, PassageStatements]:
        """Return the statements of passages, by passage number. Failed passages are retried at the next start."""
        try:
            return dict(zip((passage.id for passage in passages), self._read(passages), strict=True))
        except Exception as error:  # from any library below
            if len(passages) > 1:
                return {id_: one for passage in passages for id_, one in self._readable([passage]).items()}
            [bad] = passages
            log.warning("%s: the statements of %r cannot be read: %s", bad.document, bad.label, first_line(error))
            self._unreadable.add(bad.id)
            return {}

    @cached_property
    def _nothing(self) -> PassageStatements:
        [vectors] = self.encoder.read([PassageToRead(headings=(), text="", spans=[])])
        return PassageStatements(statements=(), vectors=vectors)

    def _read(self, passages: Sequence[StoredPassage]) -> list[PassageStatements]:
        cut = [statements_of(passage.text, passage.heading_path) for passage in passages]
        read = self.encoder.read(
            [
                PassageToRead(
                    headings=passage.heading_path or (passage.title,),
                    text=passage.text,
                    spans=[(one.start, one.end) for one in statements],
                )
                for passage, statements in zip(passages, cut, strict=True)
            ]
        )
        if not all(np.isfinite(vectors.whole).all() for vectors in read):
            raise RetrievalError(f"the ranker {self.encoder.name} returned a vector with undefined numbers")
        return [
            PassageStatements(statements=statements, vectors=vectors)
            for statements, vectors in zip(cut, read, strict=True)
        ]


BEST = 8  # the passages of the BEST most likely statements come first
CANDIDATES = 10
"""Number of passages whose statements are ranked. It may be more than the prompt has: ranking runs no model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPassage:
    """A passage, and the cosine of its vector and the question's vector."""

    passage: StoredPassage
    cosine: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedStatement:
    """A found statement. logit: log-odds that it answers. passage: number of its passage. start, end: characters in the
    passage. subject: the first cell of a row, else "". told: match with each question token, times the token's weight.
    """

    text: str
    logit: float
    passage: int
    start: int
    end: int
    kind: Kind = "sentence"
    subject: str = ""
    told: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResults:
    """Results of a search. passages: best first, at most the requested number. found: these and further passages, for
    the nearest pages. statements: most likely first. relevance: probability that the most likely statement answers.
    unknown: names in the question that are in no document.
    """

    passages: tuple[FoundPassage, ...]
    found: tuple[FoundPassage, ...]
    statements: tuple[RankedStatement, ...]
    relevance: float
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedQuestion:
    """The search results of a question before the decision. hits: best first. passages: by number. unknown: names in
    the question that are in no document.
    """

    hits: tuple[PassageHit, ...]
    passages: dict[int, StoredPassage]
    statements: JudgedStatements
    unknown: tuple[str, ...] = ()


NOTHING = SearchResults(passages=(), found=(), statements=(), relevance=0.0)


class Finder:
    """Searches, and estimates how likely the results answer the question. Safe to use from any thread."""

    def __init__(
        self,
        library: Library,
        search: Search,
        statements: StatementStore,
        classifier: AnswerabilityClassifier,
        reranker: CrossEncoderReranker | None = None,
    ) -> None:
        self._library, self._search, self._statements = library, search, statements
        self.classifier, self._reranker = classifier, reranker

    one_question = staticmethod(one_question)
    """Inside this block, the same text is embedded only once."""

    def find(
        self, question: str, *, earlier: str | None = None, count: int, collections: Collection[str] = ()
    ) -> SearchResults:
        """Return the search results. earlier: the previous question. It is used only if this question refers to it or
        is unclear alone, because otherwise it would mislead the search. count: maximum passages. collections: if given,
        only their documents are searched.
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
                subject=one.statement.subject,
                told=tuple(judged.statements.told[one.number].round(4).tolist()),
            )
            for logit, one in judged.statements.ranked
        ]
        best_first = dict.fromkeys([*(one.passage for one in ranked[:BEST]), *(hit.id for hit in judged.hits)])
        cosine = {hit.id: hit.cosine for hit in judged.hits}
        found = tuple(FoundPassage(passage=judged.passages[id_], cosine=cosine[id_]) for id_ in best_first)
        return SearchResults(
            passages=found[:count],
            found=found,
            statements=tuple(ranked),
            relevance=self.classifier.is_answered(judged.statements.features) if ranked else 0.0,
            unknown=judged.unknown,
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
        return JudgedQuestion(hits=tuple(hits), passages=stored, statements=statements, unknown=queries[0].unknown)

    def _found(
        self, question: str, earlier: str | None, count: int, collections: Collection[str]
    ) -> tuple[Retriever, list[Query], list[PassageHit], dict[int, StoredPassage]]:
        while True:
            retriever = self._search.snapshot.retriever(collections)
            queries = retriever.queries(wordings(question, earlier))
            found = retriever.search(queries, count)
            stored = {passage.id: passage for passage in self._library.passages([hit.id for hit in found])}
            if len(stored) == len(found):
                break
            self._search.follow()  # a passage was replaced during the search: the next snapshot has the new one
            if retriever is self._search.snapshot.retriever(collections):
                break
        found = [hit for hit in found if hit.id in stored]
        if self._reranker is not None:
            texts = {id_: with_headings(passage.heading_path, passage.text) for id_, passage in stored.items()}
            found = rerank(self._reranker, queries[-1].text, found, lambda hit: texts[hit.id])
        return retriever, queries, found, stored


REFERS_BACK = re.compile(
    r"^(?:and|but|or|so|then|what about|how about|what if|why|why not|really|also|only)\b"
    r"|\b(?:it|its|they|them|their|those|these|this|he|she|ones|same|else|instead|other|then)\b"
    r"|(?<!\btrue )(?<!\bsure )\bthat\b|\b(?:the|this|that|which|another) one\b"
    r"|(?<!\bis )(?<!\bare )\bthere\b(?! (?:is|are)\b)",
    re.IGNORECASE,
)
SOME_TERMS, ENOUGH_TERMS = 2, 5
"""Minimum number of terms of a question that may be clear alone, and of one that surely is; no word refers back."""


def wordings(question: str, earlier: str | None) -> list[str]:
    """Return the texts to search: the question; if it may refer to the earlier question, also both as one text."""
    if earlier is None or may_stand_alone(question, ENOUGH_TERMS):
        return [question]
    return [question, f"{earlier} {question}"]


def may_stand_alone(question: str, least: int = SOME_TERMS) -> bool:
    """Return whether a question has at least this many terms and no word that refers to the previous question."""
    terms = {stem(word) for word in asked_words(question)} - COMMON
    return len(terms) >= least and not REFERS_BACK.search(question)
