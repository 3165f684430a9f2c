"""A question to the passages that may answer it: the one thing callers ask.

Vectors only, so far. Keyword search, fusion and reranking belong behind this same method; thresholds and
refusals belong to the caller.
"""

from retrieval.embedding import Embedder
from retrieval.errors import RetrievalError
from retrieval.index import Hit, VectorIndex


class Retriever:
    """Searches one snapshot of the index; make another retriever for another snapshot."""

    def __init__(self, embedder: Embedder, index: VectorIndex) -> None:
        if (embedder.name, embedder.dimension) != (index.embedder, index.dimension):
            raise RetrievalError(
                f"the index is of {index.embedder}, the embedder is {embedder.name}; rebuild the index"
            )
        self.embedder = embedder
        self.index = index

    def search(self, query: str, k: int) -> list[Hit]:
        """At most `k` passages, best first; none for a blank query."""
        return self.index.search(self.embedder.embed_query(query), k) if query.strip() else []
