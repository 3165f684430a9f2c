"""Texts as vectors: the interface of embedders.

Every vector has length 1, so an inner product is a cosine. Callers pass whole passages; an embedder truncates texts
that are too long for it.
"""

from collections.abc import Sequence
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

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """One row of length 1 per question, shape `[texts, dimension]`. Some models embed questions and documents
        differently.
        """

    def count_tokens(self, texts: Sequence[str]) -> int:
        """How many tokens it reads of all these texts; what is cut off is not counted."""

    def knowledge(self, text: str) -> float:
        """How well the embedder knows the language of a text, from 0 to 1; not how well its script."""

    def knows_word(self, word: str) -> bool:
        """Whether a word in lower case is one token of the embedder."""
