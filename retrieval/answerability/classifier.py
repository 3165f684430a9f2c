"""What the features of an answer are worth: does anything that was found answer the question, and which statement does?

Logistic models, fitted for one embedder by `warmdesk calibrate-search`. A single cosine cannot tell: a question about
something else in the same shop is as near to a passage as one that the passage answers in other words.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from retrieval.answerability.features import PassageFeatures, StatementFeatures
from retrieval.answerability.logistic import Logistic

LEAST_TRUST = 0.7
"""What cosines must count for to be judged by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerabilityClassifier:
    """embedder: whose cosines the models know. threshold: probability below which nothing answers the question.
    fitted_on: what the models were fitted on, for people. relevance: for languages the embedder knows; written: for
    others, of words alone. sentence: whether a statement answers the question.
    """

    embedder: str
    fitted_on: str
    threshold: float
    relevance: Logistic
    written: Logistic
    sentence: Logistic

    def is_answered(self, features: PassageFeatures) -> float:
        """The probability that the passages answer the question."""
        model = self.relevance if features.trust >= LEAST_TRUST else self.written
        return model.probability(asdict(features))

    def answers(self, features: StatementFeatures) -> float:
        """Log-odds that a sentence answers the question."""
        return self.sentence.logit(asdict(features))


def load_classifier(file: Path) -> AnswerabilityClassifier:
    """The models in a file."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    for name in ("relevance", "written", "sentence"):
        kept[name] = Logistic(**kept[name])
    return AnswerabilityClassifier(**kept)


def save_classifier(classifier: AnswerabilityClassifier, file: Path) -> None:
    """Write the models, whole or not at all."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(classifier), indent=2) + "\n", encoding="utf-8")
    temporary.replace(file)


def rule_of_thumb(embedder: str) -> AnswerabilityClassifier:
    """For an embedder nobody fitted a model for: the best cosine decides, 0.3 being even."""
    return AnswerabilityClassifier(
        embedder=embedder,
        fitted_on="nothing",
        threshold=0.5,
        relevance=Logistic(weights={"best": 1.0}, means={"best": 0.3}, deviations={"best": 0.05}, bias=0.0),
        written=Logistic(weights={"covered": 1.0}, means={"covered": 0.4}, deviations={"covered": 0.1}, bias=0.0),
        sentence=Logistic(
            weights={"cosine": 1.0, "covered": 1.0, "expected": 0.3},
            means={"cosine": 0.5, "covered": 0.5, "expected": 0.0},
            deviations={"cosine": 0.15, "covered": 0.25, "expected": 1.0},
            bias=0.0,
        ),
    )
