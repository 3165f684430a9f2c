"""The settings of a training: objective, length, learning rate and the weights of the losses."""

import math
from dataclasses import dataclass
from typing import Literal

Objective = Literal["answers", "distil"]
"""answers: the likelihood of the answers. distil: modular attention learns to predict what full attention predicts, and
full attention is kept close to the model without the adapter; the answers are only texts along which both are compared.
The adapter changes both, because most of their difference comes from one passage changing how another is read, which no
adapter can know when passages are encoded one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How an adapter is trained.

    steps, minutes: training ends at whichever is reached first; None sets no limit.
    batch_size: examples of a step, each in a thread of its own with its share of the cores. On a CPU that is faster
        than one after another with all cores.
    rank: of the LoRA matrices. warmup: steps of linear warm-up.
    modular_share: for `answers`, the share of examples with modular attention; the others have full attention.
    paired_weight: for `answers`, of the divergence of modular from full attention.
    anchor_weight: for `distil`, of the divergence of full attention from the model without the adapter.
    refusal_weight: for `answers`, of the refusal loss.
    evaluate_every: steps. patience: evaluations without a better held-out loss before training ends.
    """

    steps: int | None = None
    minutes: float | None = None
    batch_size: int = 2
    objective: Objective = "answers"
    rank: int = 16
    learning_rate: float = 3e-4
    warmup: int = 40
    modular_share: float = 0.5
    paired_weight: float = 4.0
    anchor_weight: float = 0.35
    refusal_weight: float = 2.0
    evaluate_every: int = 50
    patience: int = 4
    seed: int = 0

    def done(self, step: int, seconds: float) -> float:
        """Share of the training that is over, at most 1."""
        of_steps = step / self.steps if self.steps is not None else 0.0
        of_minutes = seconds / (60 * self.minutes) if self.minutes is not None else 0.0
        return min(1.0, max(of_steps, of_minutes))

    def learning_rate_at(self, step: int, done: float) -> float:
        """Linear warm-up, then a cosine down to a twentieth."""
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * (0.05 + 0.95 * cosine)

    def is_modular(self, number: int) -> bool:
        """Whether an example is trained on with modular attention. The share is spread evenly (golden ratio sequence),
        and is the same after a resume.
        """
        return self.objective == "distil" or (number * 0.6180339887) % 1 < self.modular_share
