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
    """Of the passages found for a question, together. Shares of the question's terms are weighted by rarity."""

    trust: float  # the query's
    best: float  # highest cosine of a passage
    first: float  # cosine of the first passage
    above: float  # by how many standard deviations `best` is above the question's mean cosine with the index
    spread: float  # that deviation
    rest: float  # mean score of the passages
    sentence: float  # highest cosine of a statement
    told: float  # highest sum of a statement's cosine and the share of terms in it and its headings
    apt: float  # the same plus a fifth of `expected_answer.agreement`
    covered: float  # highest share of terms in a passage


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFeatures:
    """Of one statement of a passage found. Shares of the question's terms are weighted by rarity."""

    cosine: float  # with the question together with its earlier turn
    alone: float  # with the question only
    headed: float  # of the statement with its heading
    covered: float  # share of terms in the statement and its headings
    own: float  # in the statement
    joined: float  # in it and the one before
    before: float  # in the one before and the headings
    passage: float  # score of its passage
    behind: float  # how much less than the first passage's
    rank: float  # of its passage, from 0
    length: float  # logarithm of its characters
    expected: float  # `expected_answer.agreement`


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysedPassage:
    """A passage found, with its statements. Vectors are `[statements, dimension]`."""

    hit: PassageHit
    headings: str
    text: str
    statements: Sequence[str]
    vectors: Vectors  # of the statements alone
    headed: Vectors  # of the statements behind the passage's last heading


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
    parts = np.split(vectors, np.cumsum([len(ones) for ones in (*found, *headed)]))
    return [
        AnalysedPassage(hit=hit, headings="\n".join(path), text=text, statements=ones, vectors=alone, headed=below)
        for hit, (path, text), ones, alone, below in zip(
            hits, texts, found, parts[: len(hits)], parts[len(hits) : -1], strict=True
        )
    ]


def passage_features(
    retriever: Retriever, query: Query, question: Query, passages: Sequence[AnalysedPassage]
) -> PassageFeatures:
    """The features for a question. query: with its earlier turn, if it has one; question: without. passages: at least
    one, the best first.
    """
    mean, deviation = retriever.index.similarity_spread(query.vector)
    share_in = _share_in(retriever, question.text)
    best = max(passage.hit.cosine for passage in passages)
    covered = max(share_in(terms_of(f"{passage.headings}\n{passage.text}")) for passage in passages)
    cosines, told, apt = [0.0], [0.0], [0.0]
    for passage in passages:
        headings = terms_of(passage.headings)
        for sentence, cosine in zip(passage.statements, (passage.vectors @ query.vector).tolist(), strict=True):
            cosines.append(query.trust * cosine)
            told.append(query.trust * cosine + share_in(terms_of(sentence) | headings))
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
    share_in = _share_in(retriever, question.text)
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
                    covered=share_in(terms | headings),
                    own=share_in(terms),
                    joined=share_in(terms | (terms_before or frozenset())),
                    before=0.0 if terms_before is None else share_in(terms_before | headings),
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


def _share_in(retriever: Retriever, question: str) -> Callable[[frozenset[str]], float]:
    """Gives the share of a question's terms among some terms, weighted by rarity, 0 to 1. Its common words do not
    count, unless it has no others.
    """
    keywords = retriever.keywords
    asked = {stem(word): keywords.rarity(word) for word in asked_words(question)}
    rarity = {term: value for term, value in asked.items() if term not in COMMON} or asked
    total = sum(rarity.values())
    return lambda terms: sum(r for term, r in rarity.items() if term in terms) / total if total else 0.0


def terms_of(text: str) -> frozenset[str]:
    """The stems of a text."""
    return frozenset(map(stem, words(text)))
