"""Losses of adapter training. Logits are `[A, vocabulary]`, the rows that predict the answers of an example."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cache.training.examples import TrainingExample


def divergence(wanted: Tensor, got: Tensor) -> Tensor:
    """Kullback-Leibler divergence of logits from wanted ones, in nats per row."""
    return F.kl_div(got.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean")


def answer_loss(example: TrainingExample, logits: Tensor, refusal_weight: float) -> Tensor:
    """Cross-entropy of the answers in nats per token, plus the weighted refusal loss."""
    labels = torch.tensor([token for query in example.queries for token in query.answer], device=logits.device)
    return F.cross_entropy(logits, labels) + refusal_weight * refusal_loss(example, logits)


def refusal_loss(example: TrainingExample, logits: Tensor) -> Tensor:
    """Binary cross-entropy, in nats per query, of beginning a refusal where one is wanted, and anything else where an
    answer is. Zero for an example without refusals.

    The first token of an answer decides this. Among all the tokens of an answer it would hardly count.
    """
    begins = next((query.answer[0] for query in example.queries if query.refused), None)
    if begins is None:
        return logits.new_zeros(())
    lengths = [0, *(len(query.answer) for query in example.queries[:-1])]
    first = logits[torch.tensor(lengths, device=logits.device).cumsum(0)]
    others = first.index_fill(1, torch.tensor([begins], device=logits.device), -torch.inf)
    wanted = torch.tensor([float(query.refused) for query in example.queries], device=logits.device)
    return F.binary_cross_entropy_with_logits(first[:, begins] - others.logsumexp(-1), wanted)
