"""What speaks for an answer in the passages that were found: features of the whole, and of each sentence.

Only measures; what the features are worth is fitted (`classifier`). Cosines count as much as the embedder knows of the
question's language.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.answerability.expected_answer import agreement
from retrieval.search.embedding import Vectors
from retrieval.search.retriever import Found, Query, Retriever
from retrieval.text.sentences import statements
from retrieval.text.terms import COMMON, asked_words, stem, words


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageFeatures:
    """What speaks for an answer among the passages found.

    trust: what cosines count for. best: highest cosine of a passage. first: cosine of the first passage. above: how far
    `best` is above what the question has with any text of the index, in standard deviations; spread: that
    deviation. rest: mean score of the passages. sentence: highest cosine of a sentence of them. told: highest sum
    of a sentence's cosine and the share of the question's words in it and the headings above it; apt: the same with
    a fifth of whether it has what the question asks for (`expected.agreement`). covered: share of the question's words,
    by rarity, in the passage that has most.
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
    """What speaks for a statement of a passage. cosine, alone: with the question and its earlier turn, and with the
    question alone; headed: of the statement with its heading. covered: share of the question's words, by rarity, in the
    statement and the headings above it; own: in the statement alone; joined: in it and the one before it; before: in
    the one before it and the headings. passage: score of its passage; behind: how much less than the first passage's.
    rank: of its passage, from 0. length: logarithm of its characters. expected: whether it has what the question asks
    for (`expected.agreement`).
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
class Read:
    """A passage that was found, read: its statements with their vectors `[statements, dimension]`, and with those that
    they have behind the passage's last heading.
    """

    found: Found
    headings: str
    text: str
    statements: Sequence[str]
    vectors: Vectors
    headed: Vectors


def read(
    found: Sequence[Found], texts: Sequence[tuple[Sequence[str], str]], embed: Callable[[Sequence[str]], Vectors]
) -> list[Read]:
    """Read passages, given with their heading paths and texts. embed: texts to vectors of length 1."""
    said = [tuple(dict.fromkeys(statements(text))) for _, text in texts]
    headed = [
        [f"{path[-1]}: {statement}" for statement in ones] if path else ones
        for ones, (path, _) in zip(said, texts, strict=True)
    ]
    vectors = embed([text for ones in (*said, *headed) for text in ones])  # at once: batches cost less than texts
    ends = np.cumsum([len(ones) for ones in (*said, *headed)])
    parts = np.split(vectors, ends[:-1]) if len(ends) else []
    return [
        Read(
            found=hit,
            headings="\n".join(path),
            text=text,
            statements=ones,
            vectors=parts[number],
            headed=parts[len(found) + number],
        )
        for number, (hit, (path, text), ones) in enumerate(zip(found, texts, said, strict=True))
    ]


def passage_features(retriever: Retriever, query: Query, question: Query, passages: Sequence[Read]) -> PassageFeatures:
    """The features for a question. query: the wording with its earlier turn, if it has one; question: without.
    passages: at least one, the best first.
    """
    mean, deviation = retriever.index.similarity_spread(query.vector)
    asked = _Asked(retriever, question.text)
    best = max(passage.found.cosine for passage in passages)
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
        first=query.trust * passages[0].found.cosine,
        above=query.trust * (best - mean) / max(deviation, 1e-6),
        spread=query.trust * deviation,
        rest=sum(passage.found.score for passage in passages) / len(passages),
        sentence=max(cosines),
        told=max(told),
        apt=max(apt),
        covered=covered,
    )


def statement_features(
    retriever: Retriever, query: Query, question: Query, passages: Sequence[Read]
) -> list[list[StatementFeatures]]:
    """The features of every statement of every passage; arguments as of `passage_features`."""
    asked = _Asked(retriever, question.text)
    found: list[list[StatementFeatures]] = []
    for rank, passage in enumerate(passages):
        headings = terms_of(passage.headings)
        terms_before: frozenset[str] | None = None
        of_passage: list[StatementFeatures] = []
        for sentence, vector, headed in zip(passage.statements, passage.vectors, passage.headed, strict=True):
            terms = terms_of(sentence)
            features = StatementFeatures(
                cosine=query.trust * float(vector @ query.vector),
                alone=question.trust * float(vector @ question.vector),
                headed=query.trust * float(headed @ query.vector),
                covered=asked.share_in(terms | headings),
                own=asked.share_in(terms),
                joined=asked.share_in(terms | (terms_before or frozenset())),
                before=0.0 if terms_before is None else asked.share_in(terms_before | headings),
                passage=passage.found.score,
                behind=passages[0].found.score - passage.found.score,
                rank=rank,
                length=math.log(len(sentence)),
                expected=agreement(question.text, sentence),
            )
            of_passage.append(features)
            terms_before = terms
        found.append(of_passage)
    return found


class _Asked:
    """The terms of a question that say what it is about, each with its rarity; all of its terms if none does."""

    def __init__(self, retriever: Retriever, question: str) -> None:
        terms = list(dict.fromkeys(stem(word) for word in asked_words(question)))
        terms = [term for term in terms if term not in COMMON] or terms
        self._rarity = {term: retriever.keywords.rarity(term) for term in terms}
        self._total = sum(self._rarity.values())

    def share_in(self, terms: frozenset[str]) -> float:
        """How much of the question is among some terms, 0 to 1."""
        return sum(r for term, r in self._rarity.items() if term in terms) / self._total if self._total else 0.0


def terms_of(text: str) -> frozenset[str]:
    """The stems of a text."""
    return frozenset(map(stem, words(text)))
