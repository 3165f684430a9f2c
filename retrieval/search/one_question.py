"""An embedder that remembers the last questions: what is compared with the FAQ first and then searched for, alone and
with the question before it, is embedded once.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from retrieval.search.embedding import Embedder, Vectors

REMEMBERED = 32
"""Questions whose vectors are kept."""


class LastQuestionsEmbedder:
    """Another embedder, asked once for each of the last questions. Safe to use from any thread."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.name, self.dimension = embedder.name, embedder.dimension
        self.embed_documents, self.knowledge = embedder.embed_documents, embedder.knowledge
        self.knows_word, self.count_tokens = embedder.knows_word, embedder.count_tokens
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Vectors] = OrderedDict()

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        with self._lock:
            found = {text: self._known[text] for text in texts if text in self._known}
        if missing := [text for text in dict.fromkeys(texts) if text not in found]:
            found |= zip(missing, self._embedder.embed_queries(missing), strict=True)
        with self._lock:
            for text in texts:
                self._known[text] = found[text]
                self._known.move_to_end(text)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return np.stack([found[text] for text in texts]) if texts else self._embedder.embed_queries(texts)
