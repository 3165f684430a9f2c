"""How well statements answer a question, from their vectors. Plain arithmetic: no model runs here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.ranking.vectors import QuestionVectors, StatementVectors, long_form
from retrieval.search.embedding import Vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The two learned weights: of the cosine of the whole question with the whole statement, and of the best matches of
    its tokens, which the question weighs.
    """

    cosine: float
    matches: float

    def logits(self, question: QuestionVectors, passages: Sequence[StatementVectors]) -> Vectors:
        """Of all statements of all passages, in order, `[statements]`: above 0 for a likely answer."""
        found = [passage for passage in passages if len(passage)]
        if not found:
            return np.zeros(0, np.float32)
        cosines = np.concatenate([passage.whole.astype(np.float32) @ question.whole for passage in found])
        matches = np.concatenate([_matches(question, passage) for passage in found]) @ question.weights
        logits: Vectors = (self.cosine * cosines + self.matches * matches - question.bar).astype(np.float32)
        return logits


def _matches(question: QuestionVectors, passage: StatementVectors) -> Vectors:
    """The best cosine of each token of the question in each statement, `[statements, question tokens]`."""
    best: Vectors = np.full((len(passage), len(question.tokens)), -1.0, np.float32)
    starts = np.concatenate([[0], passage.ends[:-1]]).astype(np.int64)
    read = passage.ends > starts
    if read.any():
        similarity = long_form(passage.tokens) @ question.tokens.T
        best[read] = np.maximum.reduceat(similarity, starts[read], axis=0)
    return best
