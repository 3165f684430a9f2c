"""Texts as vectors: the interface of embedders.

Every vector has length 1, so an inner product is a cosine. Callers pass whole passages; an embedder truncates texts
that are too long for it.

An embedder that embeds each text of one question once: what is compared with the FAQ first is then searched for,
alone and with the question before it.

It remembers nothing between questions: who asked what somebody else has just asked would see it by the time it takes.
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


_KNOWN: ContextVar[dict[str, Vectors] | None] = ContextVar("vectors of the question", default=None)


@contextmanager
def one_question() -> Iterator[None]:
    """Within it, and in this thread, each text is embedded once."""
    before = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(before)


class OneQuestionEmbedder:
    """Another embedder, asked once for each text within `one_question`. Safe to use from any thread."""

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
