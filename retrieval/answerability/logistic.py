"""A fitted logistic regression over named features, as it is kept in a file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


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
