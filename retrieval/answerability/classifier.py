"""A fitted logistic regression over named features, as it is kept in a file.

Decides whether the passages found answer the question, and which statement does.

Logistic models over `features`, fitted for one embedder and one statement ranker by `warmdesk calibrate-search`. One
score alone cannot decide: a question about something else in the same shop can be as near to a passage as one that the
passage answers.

Judges what was found for a question: which statements answer it, and whether any does.
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
    """weights, means, deviations: by the name of the feature. Features without a weight are ignored."""

    weights: dict[str, float]
    means: dict[str, float]
    deviations: dict[str, float]
    bias: float

    def logit(self, features: Mapping[str, float]) -> float:
        """Log-odds, in nats."""
        return self.bias + sum(
            weight * (features[name] - self.means[name]) / self.deviations[name]
            for name, weight in self.weights.items()
        )

    def probability(self, features: Mapping[str, float]) -> float:
        """From 0 to 1."""
        return 1 / (1 + math.exp(-max(-60.0, min(60.0, self.logit(features)))))


CODE = 4.0
"""Log-odds for a statement that names the code asked about. Such questions are too rare in collections to be fitted,
and the ranker reads "E03" as any other number.
"""
MODELS = ("relevance", "statement", "written", "written_statement")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerabilityClassifier:
    """The models and what they were fitted on. Two are for questions in languages that the embedder knows, and two that
    look at words only are for the others. The thresholds hold for both: the probabilities of `written` are shifted so.
    """

    embedder: str  # whose cosines the models were fitted on
    ranker: str  # whose logits
    fitted_on: str  # the questions, for people
    threshold: float  # probability below which the question counts as not answered
    certain: float  # probability from which an answer counts as sure; between the two it may help
    relevance: LogisticModel  # whether what is shown answers
    statement: LogisticModel  # whether a statement answers
    written: LogisticModel  # whether what is shown answers, from words only
    written_statement: LogisticModel  # whether a statement answers, from words only

    def is_answered(self, features: QuestionFeatures) -> float:
        """The probability that the likeliest statements answer the question."""
        model = self.relevance if features.trust >= LEAST_TRUST else self.written
        return model.probability(_values(model, features))

    def answers(self, features: StatementFeatures) -> float:
        """Log-odds that a statement answers the question."""
        model = self.statement if features.trust >= LEAST_TRUST else self.written_statement
        return statement_logit(model, features)


def statement_logit(model: LogisticModel, features: StatementFeatures) -> float:
    """Log-odds that a statement answers, by a model of statements."""
    return model.logit(_values(model, features)) + CODE * features.code


def _values(model: LogisticModel, features: QuestionFeatures | StatementFeatures) -> dict[str, float]:
    return {name: getattr(features, name) for name in model.weights}  # `asdict` takes ten times as long


def load_classifier(file: Path) -> AnswerabilityClassifier:
    """The models in a file."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    models = {name: LogisticModel(**kept[name]) for name in MODELS}
    return AnswerabilityClassifier(**(kept | models))


def as_json(classifier: AnswerabilityClassifier) -> str:
    """What `load_classifier` reads."""
    return json.dumps(asdict(classifier), indent=2) + "\n"


def rule_of_thumb(embedder: str, ranker: str) -> AnswerabilityClassifier:
    """For an embedder without fitted models: the ranker decides, with even odds at about its own bar."""
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
