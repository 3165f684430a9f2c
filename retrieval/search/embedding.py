"""Texts as vectors: the seam, and the test double that ships beside it.

Every vector has length 1, so that an inner product is a cosine. Truncation of long texts is the embedder's
own affair; callers pass whole passages.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Vectors: TypeAlias = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors. Safe to call from several threads."""

    @property
    def name(self) -> str:
        """Which vectors these are; an index built under another name does not fit."""

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One row of length 1 a text, shape [len(texts), dimension]. An empty sequence gives no rows."""

    def embed_query(self, text: str) -> Vectors:
        """The vector of a question, shape [dimension]. Some models embed questions unlike documents."""

    def knowledge(self, text: str) -> float:
        """How well the language of a text is known, from 0 to 1: what the vector of it can be worth."""

    def knows_word(self, word: str) -> bool:
        """Whether a word in lower case is known as a whole."""


class HashEmbedder:
    """Bag of hashed words: deterministic, no model. For tests; knows no synonyms, no word order."""

    def __init__(self, dimension: int = 256) -> None:
        self.name = f"hash-{dimension}"
        self.dimension = dimension

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return np.stack([self.embed_query(text) for text in texts]) if texts else self._nothing()

    def embed_query(self, text: str) -> Vectors:
        vector = np.zeros(self.dimension, dtype=np.float32)
        for word in re.findall(r"\w+", text.casefold()) or [""]:
            digest = int.from_bytes(blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")
            vector[digest % self.dimension] += 1.0
        unit: Vectors = vector / np.linalg.norm(vector)
        return unit

    def knowledge(self, text: str) -> float:
        return 1.0

    def knows_word(self, word: str) -> bool:
        return False

    def _nothing(self) -> Vectors:
        return np.zeros((0, self.dimension), dtype=np.float32)
