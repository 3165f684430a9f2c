"""An embedder that embeds each text of one question once: what is compared with the FAQ first is then searched for,
alone and with the question before it.

It remembers nothing between questions: who asked what somebody else has just asked would see it by the time it takes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from retrieval.search.embedding import Embedder, Vectors

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
