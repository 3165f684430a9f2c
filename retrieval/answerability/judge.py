"""Judges what was found for a question: which statements answer it, and whether any does."""

from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.answerability.classifier import AnswerabilityClassifier
from retrieval.answerability.features import (
    Candidate,
    FoundPassageText,
    QuestionFeatures,
    QuestionMeasures,
    candidates_of,
)
from retrieval.ranking.encoder import StatementRanker
from retrieval.search.retriever import Query, Retriever


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStatements:
    """ranked: candidates with their log-odds, likeliest first. measures: None if there is no candidate."""

    ranked: tuple[tuple[float, Candidate], ...]
    measures: QuestionMeasures | None

    @property
    def features(self) -> QuestionFeatures:
        """The features of the question. There must be a candidate."""
        assert self.measures is not None
        return self.measures.features(self.ranked)


def judge(
    retriever: Retriever,
    ranker: StatementRanker,
    classifier: AnswerabilityClassifier,
    queries: Sequence[Query],
    passages: Sequence[FoundPassageText],
) -> JudgedStatements:
    """Rank the statements of passages. queries: the question, and as the last with its earlier turn, if it has one.
    passages: best first.
    """
    query = queries[-1]
    logits = ranker.mixture.logits(ranker.question(query.text), [passage.vectors for passage in passages])
    candidates = candidates_of(retriever, query, queries[0], passages, logits)
    ranked = sorted(((classifier.answers(one.features), one) for one in candidates), key=lambda pair: -pair[0])
    measures = QuestionMeasures(retriever, query, passages) if candidates else None
    return JudgedStatements(ranked=tuple(ranked), measures=measures)
