"""An embedder that is told what texts mean, and retrievers of it: cosines one can work out."""

from collections.abc import Mapping, Sequence

import numpy as np

from retrieval.search.embedding import Embedder, Vectors
from retrieval.search.keyword_index import KeywordIndex
from retrieval.search.retriever import Retriever
from retrieval.search.vector_index import VectorIndex


class MeaningEmbedder:
    """Knows the meaning of the texts it was told; all others mean the first dimension."""

    name, dimension = "meaning", 3

    def __init__(self, meanings: Mapping[str, Sequence[float]] | None = None, knowledge: float = 1.0) -> None:
        self._meanings, self._knowledge = meanings or {}, knowledge

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        vectors = np.array([self._meanings.get(text, (1.0, 0.0, 0.0)) for text in texts], np.float32).reshape(-1, 3)
        units: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return units

    embed_queries = embed_documents

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(len(text.split()) for text in texts)

    def knowledge(self, text: str) -> float:
        return self._knowledge

    def knows_word(self, word: str) -> bool:
        return False


def retriever_of(windows: Mapping[int, Sequence[str]], embedder: Embedder) -> Retriever:
    """Searches passages given by number with the texts of their windows."""
    ids = [id_ for id_, texts in windows.items() for _ in texts]
    vectors = embedder.embed_documents([text for texts in windows.values() for text in texts])
    index = VectorIndex(embedder.name, embedder.dimension).updated((), ids, vectors)
    return Retriever(embedder, index, KeywordIndex().updated((), windows))
