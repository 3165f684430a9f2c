"""Decides whether found passages answer the question, and which statement does.

Uses logistic models over `features`, fitted for one embedder and one statement ranker by `warmdesk calibrate-search`.
One score alone cannot decide: a question about another topic of the same shop can be as near to a passage as a question
that the passage answers.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from retrieval.answerability.features import (
    LEAST_TRUST,
    Candidate,
    FoundPassageText,
    QuestionFeatures,
    QuestionMeasures,
    StatementFeatures,
    candidates_of,
)
from retrieval.ranking.encoder import StatementRanker
from retrieval.search.retriever import Query, Retriever


@dataclass(frozen=True, slots=True, kw_only=True)
class LogisticModel:
    """A logistic regression. weights, means, deviations: by feature name; features without a weight are ignored."""

    weights: dict[str, float]
    means: dict[str, float]
    deviations: dict[str, float]
    bias: float

    def logit(self, features: Mapping[str, float]) -> float:
        return self.bias + sum(
            weight * (features[name] - self.means[name]) / self.deviations[name]
            for name, weight in self.weights.items()
        )

    def probability(self, features: Mapping[str, float]) -> float:
        return 1 / (1 + math.exp(-max(-60.0, min(60.0, self.logit(features)))))


CODE = 4.0
"""Log-odds for a statement that names the code of the question. Such questions are too rare in collections for fitting,
and the ranker reads "E03" like any other number.
"""
MODELS = ("relevance", "statement", "written", "written_statement")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerabilityClassifier:
    """The fitted models. Two are for questions in languages that the embedder knows, two use only words and are for
    other languages. The thresholds hold for both, because the probabilities of `written` are shifted accordingly.
    """

    embedder: str  # embedder of the fitted models
    ranker: str  # ranker of the fitted models
    fitted_on: str  # the questions, as a text for people
    threshold: float  # below this probability the question is not answered
    certain: float  # from this probability on the answer is confident; between the two it may help
    relevance: LogisticModel  # probability that the shown text answers
    statement: LogisticModel  # probability that a statement answers
    written: LogisticModel  # the first, from words only
    written_statement: LogisticModel  # the second, from words only

    def is_answered(self, features: QuestionFeatures) -> float:
        """Return the probability that the most likely statements answer the question."""
        model = self.relevance if features.trust >= LEAST_TRUST else self.written
        return model.probability(_values(model, features))

    def answers(self, features: StatementFeatures) -> float:
        """Return the log-odds that a statement answers the question."""
        model = self.statement if features.trust >= LEAST_TRUST else self.written_statement
        return statement_logit(model, features)


def statement_logit(model: LogisticModel, features: StatementFeatures) -> float:
    return model.logit(_values(model, features)) + CODE * features.code


def _values(model: LogisticModel, features: QuestionFeatures | StatementFeatures) -> dict[str, float]:
    return {name: getattr(features, name) for name in model.weights}  # `asdict` takes ten times as long


def load_classifier(file: Path) -> AnswerabilityClassifier:
    kept = json.loads(file.read_text(encoding="utf-8"))
    models = {name: LogisticModel(**kept[name]) for name in MODELS}
    return AnswerabilityClassifier(**(kept | models))


def as_json(classifier: AnswerabilityClassifier) -> str:
    return json.dumps(asdict(classifier), indent=2) + "\n"


def rule_of_thumb(embedder: str, ranker: str) -> AnswerabilityClassifier:
    """Return a classifier for an embedder without fitted models: the ranker decides, at about its own bar."""
    return AnswerabilityClassifier(
        embedder=embedder,
        ranker=ranker,
        fitted_on="nothing",
        threshold=0.35,
        certain=0.6,
        relevance=LogisticModel(weights={"likely": 1.0}, means={"likely": 0.0}, deviations={"likely": 1.0}, bias=0.0),
        written=LogisticModel(weights={"covered": 1.0}, means={"covered": 0.4}, deviations={"covered": 0.1}, bias=0.0),
        statement=LogisticModel(
            weights={"ranked": 1.0, "passage": 1.0, "covered": 0.3},
            means={"ranked": 0.0, "passage": 1.0, "covered": 0.5},
            deviations={"ranked": 1.0, "passage": 0.25, "covered": 0.25},
            bias=0.0,
        ),
        written_statement=LogisticModel(
            weights={"parts": 1.0, "beyond": 1.0, "passage": 1.0},
            means={"parts": 0.5, "beyond": 0.5, "passage": 0.5},
            deviations={"parts": 0.25, "beyond": 0.25, "passage": 0.25},
            bias=0.0,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStatements:
    """Candidates with their log-odds, the most likely first. measures: None if there is no candidate."""

    ranked: tuple[tuple[float, Candidate], ...]
    measures: QuestionMeasures | None

    @property
    def features(self) -> QuestionFeatures:
        """The features of the question. At least one candidate is required."""
        assert self.measures is not None
        return self.measures.features(self.ranked)


def judge(
    retriever: Retriever,
    ranker: StatementRanker,
    classifier: AnswerabilityClassifier,
    queries: Sequence[Query],
    passages: Sequence[FoundPassageText],
) -> JudgedStatements:
    """Rank statements. queries: the question; the last one may include the turn before it. passages: best first."""
    query = queries[-1]
    logits = ranker.mixture.logits(ranker.question(query.text), [passage.vectors for passage in passages])
    candidates = candidates_of(retriever, query, queries[0], passages, logits)
    ranked = sorted(((classifier.answers(one.features), one) for one in candidates), key=lambda pair: -pair[0])
    measures = QuestionMeasures(retriever, query, passages) if candidates else None
    return JudgedStatements(ranked=tuple(ranked), measures=measures)
