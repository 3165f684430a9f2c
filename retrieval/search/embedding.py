"""Interface of embedders, and an embedder that embeds each text of a question once.

Every vector has length 1, so an inner product is a cosine. Callers pass whole passages; an embedder truncates texts
that are too long for it.

A question is compared with the FAQ, then searched for, alone and with the question before it. `OneQuestionEmbedder`
stores these vectors only during the question. A longer cache would reveal, by its speed, which questions other
customers asked.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Vectors: TypeAlias = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors. Safe to call from several threads."""

    @property
    def name(self) -> str:
        """Name of the embedder. An index made by another embedder does not fit."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Embed documents. Returns one row of length 1 per text, shape `[texts, dimension]`."""

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Embed questions, which some models embed differently. Returns the same shape."""

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return the number of tokens that the model reads of all texts, without truncated ones."""

    def knowledge(self, text: str) -> float:
        """Return how well the embedder knows the language of a text (not just its script), from 0 to 1."""

    def knows_word(self, word: str) -> bool:
        """Return whether a lower-case word is one token of the embedder."""


_KNOWN: ContextVar[dict[str, Vectors] | None] = ContextVar("vectors of the question", default=None)


@contextmanager
def one_question() -> Iterator[None]:
    """Embed each text only once inside this context, in this thread."""
    before = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(before)


class OneQuestionEmbedder:
    """Wraps an embedder and calls it once for each text inside `one_question`. Safe to use from any thread."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.name, self.dimension = embedder.name, embedder.dimension
        self.embed_documents, self.knowledge = embedder.embed_documents, embedder.knowledge
        self.knows_word, self.count_tokens = embedder.knows_word, embedder.count_tokens

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        known = _KNOWN.get()
        if known is None or not texts:
            return self._embedder.embed_queries(texts)
        if missing := [text for text in dict.fromkeys(texts) if text not in known]:
            known |= zip(missing, self._embedder.embed_queries(missing), strict=True)
        return np.stack([known[text] for text in texts])
