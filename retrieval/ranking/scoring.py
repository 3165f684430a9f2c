"""Vectors of questions and statements, and the scores of statements. No model runs here.

Late interaction (Khattab and Zaharia 2020, "ColBERT"): each token has a short vector in addition to the vector of the
whole, so that each word of a question can match the word that answers it. All vectors have length 1.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from retrieval.search.embedding import Vectors

_HEADER = struct.Struct("<4I")
_SCALE = 127.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionVectors:
    """Vectors of a question. whole: `[hidden]`. tokens: `[tokens, short]`. weights: `[tokens]`, importance of each
    token, in sum 1. bar: score that an answering statement must reach.
    """

    whole: Vectors
    tokens: Vectors
    weights: Vectors
    bar: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementVectors:
    """Vectors of a passage's statements, read in context. whole: float16 `[statements, hidden]`. tokens: int8 `[tokens,
    short]`, 127 stands for 1. ends: int32 `[statements]`, end token of each statement. A statement without tokens was
    not read and has zeros.
    """

    whole: npt.NDArray[np.float16]
    tokens: npt.NDArray[np.int8]
    ends: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ends)

    def packed(self) -> bytes:
        sizes = (*self.whole.shape, *self.tokens.shape)
        return _HEADER.pack(*sizes) + self.whole.tobytes() + self.tokens.tobytes() + self.ends.tobytes()

    @classmethod
    def unpacked(cls, stored: bytes) -> "StatementVectors":
        """Read the bytes of `packed`. Raises ValueError for other bytes."""
        if len(stored) < _HEADER.size:
            raise ValueError("the vectors of a passage's statements are cut off")
        number, hidden, tokens, short = _HEADER.unpack_from(stored)
        first, second = 2 * number * hidden, tokens * short
        if len(stored) != _HEADER.size + first + second + 4 * number:
            raise ValueError("the vectors of a passage's statements do not have the length that they declare")
        at = _HEADER.size
        return cls(
            whole=np.frombuffer(stored, "<f2", number * hidden, at).reshape(number, hidden),
            tokens=np.frombuffer(stored, np.int8, tokens * short, at + first).reshape(tokens, short),
            ends=np.frombuffer(stored, "<i4", number, at + first + second),
        )


def short_form(tokens: Vectors) -> npt.NDArray[np.int8]:
    """Return vectors of length 1 with one byte per number."""
    short: npt.NDArray[np.int8] = np.clip(np.rint(tokens * _SCALE), -127, 127).astype(np.int8)
    return short


def long_form(tokens: npt.NDArray[np.int8]) -> Vectors:
    return tokens.astype(np.float32) / np.float32(_SCALE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The two learned weights: of the cosine between whole question and whole statement, and of the best matches of the
    question's tokens, weighted by importance.
    """

    cosine: float
    matches: float

    def logits(self, question: QuestionVectors, passages: Sequence[StatementVectors]) -> Vectors:
        """Return a logit for each statement of all passages, `[statements]`; above 0 for a likely answer."""
        found = [passage for passage in passages if len(passage)]
        if not found:
            return np.zeros(0, np.float32)
        cosines = np.concatenate([passage.whole.astype(np.float32) @ question.whole for passage in found])
        matches = np.concatenate([_matches(question, passage) for passage in found]) @ question.weights
        logits: Vectors = (self.cosine * cosines + self.matches * matches - question.bar).astype(np.float32)
        return logits


def _matches(question: QuestionVectors, passage: StatementVectors) -> Vectors:
    """Return the best cosine of each question token in each statement, `[statements, question tokens]`."""
    best: Vectors = np.full((len(passage), len(question.tokens)), -1.0, np.float32)
    starts = np.concatenate([[0], passage.ends[:-1]]).astype(np.int64)
    read = passage.ends > starts
    if read.any():
        similarity = long_form(passage.tokens) @ question.tokens.T
        best[read] = np.maximum.reduceat(similarity, starts[read], axis=0)
    return best
