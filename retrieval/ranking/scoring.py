"""How well statements answer a question, from their vectors. Plain arithmetic: no model runs here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.ranking.vectors import QuestionVectors, StatementVectors, long_form
from retrieval.search.embedding import Vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementScores:
    """Of the statements of several passages, in order. logits: `[statements]`, above 0 for a likely answer. cosines:
    `[statements]`, of the whole question with the whole statement. matches: `[statements, question tokens]`, the best
    cosine of each token of the question with a token of the statement.
    """

    logits: Vectors
    cosines: Vectors
    matches: Vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The two learned weights: of the cosine, and of the matched tokens."""

    cosine: float
    matches: float

    def scores(self, question: QuestionVectors, passages: Sequence[StatementVectors]) -> StatementScores:
        """The scores of all statements of all passages."""
        found = [passage for passage in passages if len(passage)]
        if not found:
            none = np.zeros(0, np.float32)
            return StatementScores(logits=none, cosines=none, matches=np.zeros((0, len(question.tokens)), np.float32))
        cosines = np.concatenate([passage.whole.astype(np.float32) @ question.whole for passage in found])
        matches = np.concatenate([_matches(question, passage) for passage in found])
        logits = self.cosine * cosines + self.matches * (matches @ question.weights) - question.bar
        return StatementScores(logits=logits.astype(np.float32), cosines=cosines, matches=matches)


def _matches(question: QuestionVectors, passage: StatementVectors) -> Vectors:
    """The best cosine of each token of the question in each statement, `[statements, question tokens]`."""
    best: Vectors = np.full((len(passage), len(question.tokens)), -1.0, np.float32)
    starts = np.concatenate([[0], passage.ends[:-1]]).astype(np.int64)
    read = passage.ends > starts
    if read.any():
        similarity = long_form(passage.tokens) @ question.tokens.T
        best[read] = np.maximum.reduceat(similarity, starts[read], axis=0)
    return best
