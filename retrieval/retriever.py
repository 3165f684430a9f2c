"""A question to the passages that may answer it: the one thing callers ask.

Embeddings find what is meant, characters find what is written; the two cosines are added, the second with the weight
that ranked the sample questions best. Reranking belongs behind this same method; thresholds and refusals belong to the
caller.
"""

from collections.abc import Sequence

from retrieval.embedding import Embedder
from retrieval.errors import RetrievalError
from retrieval.index import Hit, VectorIndex
from retrieval.keywords import KeywordIndex

KEYWORD_WEIGHT = 1.0
CANDIDATES = 200
"""Passages either search proposes. One that only keywords propose counts with the lowest cosine of the others."""


class Retriever:
    """Searches one snapshot of both indexes; make another retriever for another snapshot."""

    def __init__(self, embedder: Embedder, index: VectorIndex, keywords: KeywordIndex) -> None:
        if (embedder.name, embedder.dimension) != (index.embedder, index.dimension):
            raise RetrievalError(
                f"the index is of {index.embedder}, the embedder is {embedder.name}; rebuild the index"
            )
        self.embedder = embedder
        self.index = index
        self.keywords = keywords

    def search(self, queries: Sequence[str], k: int) -> list[Hit]:
        """At most `k` passages for several wordings of one question, best first; `score` is the best cosine of
        embeddings alone. None for blank queries.
        """
        best: dict[int, tuple[float, float]] = {}  # by passage: fused score, cosine
        for query in queries:
            for id_, (fused, cosine) in self._fused(query).items():
                before = best.get(id_, (-2.0, -2.0))
                best[id_] = (max(fused, before[0]), max(cosine, before[1]))
        ranked = sorted(best.items(), key=lambda entry: (-entry[1][0], entry[0]))
        return [Hit(id_, cosine) for id_, (_, cosine) in ranked[: max(k, 0)]]

    def _fused(self, query: str) -> dict[int, tuple[float, float]]:
        if not query.strip() or not len(self.index):
            return {}
        dense = {hit.id: hit.score for hit in self.index.search(self.embedder.embed_query(query), CANDIDATES)}
        lowest = min(dense.values())
        scores = self.keywords.scores(query)
        written = {int(self.keywords.ids[at]): float(scores[at]) for at in (-scores).argsort()[:CANDIDATES]}
        return {
            id_: (dense.get(id_, lowest) + KEYWORD_WEIGHT * written.get(id_, 0.0), dense.get(id_, lowest))
            for id_ in dense.keys() | {id_ for id_, score in written.items() if score > 0}
        }
