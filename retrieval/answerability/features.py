"""Features from which `classifier` decides whether passages answer a question, and which statement does.

Only measures. Cosines are multiplied by the query's trust: how well the embedder knows the question's language.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.answerability.expected_answer import agreement
from retrieval.search.embedding import Vectors
from retrieval.search.retriever import PassageHit, Query, Retriever
from retrieval.text.sentences import statements
from retrieval.text.terms import COMMON, asked_words, stem, words


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageFeatures:
    """Of the passages found for a question, together.

    trust: the query's. best: highest cosine of a passage. first: cosine of the first passage. above: by how many
    standard deviations `best` is above the mean cosine of the question with the index; spread: that deviation. rest:
    mean score of the passages. sentence: highest cosine of a statement. told: highest sum of a statement's cosine and
    the share of the question's terms in it and its headings. apt: the same plus a fifth of
    `expected_answer.agreement`. covered: highest share of the question's terms in a passage. Shares are weighted by
    rarity.
    """

    trust: float
    best: float
    first: float
    above: float
    spread: float
    rest: float
    sentence: float
    told: float
    apt: float
    covered: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFeatures:
    """Of one statement of a passage found.

    cosine: with the question together with its earlier turn. alone: with the question only. headed: of the statement
    with its heading. Shares of the question's terms, weighted by rarity: covered: in the statement and its headings;
    own: in the statement; joined: in it and the one before; before: in the one before and the headings. passage: score
    of its passage. behind: how much less than the first passage's. rank: of its passage, from 0. length: logarithm of
    its characters. expected: `expected_answer.agreement`.
    """

    cosine: float
    alone: float
    headed: float
    covered: float
    own: float
    joined: float
    before: float
    passage: float
    behind: float
    rank: float
    length: float
    expected: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysedPassage:
    """A passage found, with its statements. vectors, headed: `[statements, dimension]`, of the statements alone and
    behind the passage's last heading.
    """

    hit: PassageHit
    headings: str
    text: str
    statements: Sequence[str]
    vectors: Vectors
    headed: Vectors


def analyse(
    hits: Sequence[PassageHit], texts: Sequence[tuple[Sequence[str], str]], embed: Callable[[Sequence[str]], Vectors]
) -> list[AnalysedPassage]:
    """Find and embed the statements of passages. texts: their heading paths and texts. embed: gives vectors."""
    found = [tuple(dict.fromkeys(statements(text))) for _, text in texts]
    headed = [
        [f"{path[-1]}: {statement}" for statement in ones] if path else ones
        for ones, (path, _) in zip(found, texts, strict=True)
    ]
    vectors = embed([text for ones in (*found, *headed) for text in ones])  # one call: large batches are faster
    ends = np.cumsum([len(ones) for ones in (*found, *headed)])
    parts = np.split(vectors, ends[:-1]) if len(ends) else []
    return [
        AnalysedPassage(
            hit=hit,
            headings="\n".join(path),
            text=text,
            statements=ones,
            vectors=parts[number],
            headed=parts[len(hits) + number],
        )
        for number, (hit, (path, text), ones) in enumerate(zip(hits, texts, found, strict=True))
    ]


def passage_features(
    retriever: Retriever, query: Query, question: Query, passages: Sequence[AnalysedPassage]
) -> PassageFeatures:
    """The features for a question. query: with its earlier turn, if it has one; question: without. passages: at least
    one, the best first.
    """
    mean, deviation = retriever.index.similarity_spread(query.vector)
    asked = _QuestionTerms(retriever, question.text)
    best = max(passage.hit.cosine for passage in passages)
    covered = max(asked.share_in(terms_of(f"{passage.headings}\n{passage.text}")) for passage in passages)
    cosines, told, apt = [0.0], [0.0], [0.0]
    for passage in passages:
        headings = terms_of(passage.headings)
        for sentence, cosine in zip(passage.statements, (passage.vectors @ query.vector).tolist(), strict=True):
            cosines.append(query.trust * cosine)
            told.append(query.trust * cosine + asked.share_in(terms_of(sentence) | headings))
            apt.append(told[-1] + agreement(question.text, sentence) / 5)
    return PassageFeatures(
        trust=query.trust,
        best=query.trust * best,
        first=query.trust * passages[0].hit.cosine,
        above=query.trust * (best - mean) / max(deviation, 1e-6),
        spread=query.trust * deviation,
        rest=sum(passage.hit.score for passage in passages) / len(passages),
        sentence=max(cosines),
        told=max(told),
        apt=max(apt),
        covered=covered,
    )


def statement_features(
    retriever: Retriever, query: Query, question: Query, passages: Sequence[AnalysedPassage]
) -> list[list[StatementFeatures]]:
    """The features of every statement of every passage; arguments as of `passage_features`."""
    asked = _QuestionTerms(retriever, question.text)
    found: list[list[StatementFeatures]] = []
    for rank, passage in enumerate(passages):
        headings = terms_of(passage.headings)
        terms_before: frozenset[str] | None = None
        of_passage: list[StatementFeatures] = []
        for sentence, vector, headed in zip(passage.statements, passage.vectors, passage.headed, strict=True):
            terms = terms_of(sentence)
            of_passage.append(
                StatementFeatures(
                    cosine=query.trust * float(vector @ query.vector),
                    alone=question.trust * float(vector @ question.vector),
                    headed=query.trust * float(headed @ query.vector),
                    covered=asked.share_in(terms | headings),
                    own=asked.share_in(terms),
                    joined=asked.share_in(terms | (terms_before or frozenset())),
                    before=0.0 if terms_before is None else asked.share_in(terms_before | headings),
                    passage=passage.hit.score,
                    behind=passages[0].hit.score - passage.hit.score,
                    rank=rank,
                    length=math.log(len(sentence)),
                    expected=agreement(question.text, sentence),
                )
            )
            terms_before = terms
        found.append(of_passage)
    return found


class _QuestionTerms:
    """The terms of a question with their rarity; without common words, unless it has no others."""

    def __init__(self, retriever: Retriever, question: str) -> None:
        terms = list(dict.fromkeys(stem(word) for word in asked_words(question)))
        terms = [term for term in terms if term not in COMMON] or terms
        self._rarity = {term: retriever.keywords.rarity(term) for term in terms}
        self._total = sum(self._rarity.values())

    def share_in(self, terms: frozenset[str]) -> float:
        """The share of the question's terms among some terms, weighted by rarity, 0 to 1."""
        return sum(r for term, r in self._rarity.items() if term in terms) / self._total if self._total else 0.0


def terms_of(text: str) -> frozenset[str]:
    """The stems of a text."""
    return frozenset(map(stem, words(text)))
