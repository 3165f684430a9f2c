"""Decides whether the passages found answer the question, and which statement does.

Three logistic models over `features`, fitted for one embedder by `warmdesk calibrate-search`. A cosine alone cannot
decide: a question about something else in the same shop can be as near to a passage as one that the passage answers.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from retrieval.answerability.features import PassageFeatures, StatementFeatures
from retrieval.answerability.logistic import LogisticModel

LEAST_TRUST = 0.7  # from this trust the model that uses cosines decides; below it, the model that uses words only


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerabilityClassifier:
    """The models and what they were fitted on."""

    embedder: str  # whose cosines the models were fitted on
    fitted_on: str  # the questions, for people
    threshold: float  # probability below which the question counts as not answered
    certain: float  # probability from which it counts as answered; between the two nobody is sure
    relevance: LogisticModel  # whether passages answer, for languages the embedder knows
    written: LogisticModel  # the same from words only, for others
    sentence: LogisticModel  # whether a statement answers

    def is_answered(self, features: PassageFeatures) -> float:
        """The probability that the passages answer the question."""
        model = self.relevance if features.trust >= LEAST_TRUST else self.written
        return model.probability(asdict(features))

    def answers(self, features: StatementFeatures) -> float:
        """Log-odds that a statement answers the question."""
        return self.sentence.logit(asdict(features))


def load_classifier(file: Path) -> AnswerabilityClassifier:
    """The models in a file."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    kept.setdefault("certain", kept["threshold"])  # written before there was such a value
    models = {name: LogisticModel(**kept[name]) for name in ("relevance", "written", "sentence")}
    return AnswerabilityClassifier(**(kept | models))


def save_classifier(classifier: AnswerabilityClassifier, file: Path) -> None:
    """Write the models, whole or not at all."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(classifier), indent=2) + "\n", encoding="utf-8")
    temporary.replace(file)


def rule_of_thumb(embedder: str) -> AnswerabilityClassifier:
    """For an embedder without fitted models: the best cosine decides, with even odds at 0.3."""
    return AnswerabilityClassifier(
        embedder=embedder,
        fitted_on="nothing",
        threshold=0.5,
        certain=0.5,
        relevance=LogisticModel(weights={"best": 1.0}, means={"best": 0.3}, deviations={"best": 0.05}, bias=0.0),
        written=LogisticModel(weights={"covered": 1.0}, means={"covered": 0.4}, deviations={"covered": 0.1}, bias=0.0),
        sentence=LogisticModel(
            weights={"cosine": 1.0, "covered": 1.0, "expected": 0.3},
            means={"cosine": 0.5, "covered": 0.5, "expected": 0.0},
            deviations={"cosine": 0.15, "covered": 0.25, "expected": 1.0},
            bias=0.0,
        ),
    )
