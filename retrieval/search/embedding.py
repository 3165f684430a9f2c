"""Texts as vectors: the interface of embedders, and one without a model, for tests.

Every vector has length 1, so an inner product is a cosine. Callers pass whole passages; an embedder truncates texts
that are too long for it.
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
        """Names the vectors: an index made by another embedder does not fit."""

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One row of length 1 per text, shape `[texts, dimension]`."""

    def embed_query(self, text: str) -> Vectors:
        """The vector of a question, shape `[dimension]`. Some models embed questions and documents differently."""

    def knowledge(self, text: str) -> float:
        """How well the embedder knows the language of a text, from 0 to 1."""

    def knows_word(self, word: str) -> bool:
        """Whether a word in lower case is one token of the embedder."""


class HashEmbedder:
    """Bag of hashed words: deterministic, no model. For tests; knows no synonyms, no word order."""

    def __init__(self, dimension: int = 256) -> None:
        self.name = f"hash-{dimension}"
        self.dimension = dimension

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return np.array([self.embed_query(text) for text in texts], np.float32).reshape(-1, self.dimension)

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
