"""A question to the passages that may answer it: the one thing callers ask.

Embeddings find what is meant, keywords find what is written. Both scores say how much of the question a text covers, so
they are added, unit by unit, and a passage counts as its best unit. The cosine counts as much as the embedder knows of
the question's language: an English one knows little about Chinese. Fusing ranks instead (Cormack et al. 2009) would let
a retriever that knows nothing spoil the order; `warmdesk eval recall` shows both.

Whether what was found answers the question at all is in `classifier`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.errors import RetrievalError
from retrieval.search.embedding import Embedder, Vectors
from retrieval.search.keyword_index import KeywordIndex
from retrieval.search.spelling import Spelling
from retrieval.search.units import UNITS, passage_of
from retrieval.search.vector_index import VectorIndex

CANDIDATES = 300
"""Units either search proposes. One that only keywords propose counts with the lowest cosine of the others."""
ALIKE = 0.1
"""Near copies differ in score by less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A wording of a question, spelt as the passages spell, with its vector. trust: what its cosines count for."""

    text: str
    vector: Vectors
    trust: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A passage found, by its number. score: what passages are ranked by. cosine, share: of its best unit with the
    question, -1 to 1, and of the question's words in it, 0 to 1.
    """

    id: int
    score: float
    cosine: float
    share: float


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
        self.spelling = Spelling(keywords.words, embedder.knows_word)

    def query(self, text: str) -> Query:
        """A wording of a question, ready for search."""
        corrected = self.spelling.corrected(text)
        trust = self.embedder.knowledge(corrected) ** 2
        return Query(text=corrected, vector=self.embedder.embed_query(corrected), trust=trust)

    def search(self, queries: Sequence[Query], k: int, *, within: Collection[int] | None = None) -> list[Found]:
        """At most `k` passages for several wordings of one question, best first, without near copies of better ones;
        none for blank wordings. within: only these passages.
        """
        best: dict[int, Found] = {}
        for query in queries:
            for found in self._fused(query, within):
                if found.id not in best or found.score > best[found.id].score:
                    best[found.id] = found
        chosen: list[Found] = []
        for found in sorted(best.values(), key=lambda found: (-found.score, found.id)):
            if len(chosen) >= k:
                break
            near = [better for better in chosen if better.score - found.score < ALIKE]
            if not any(self.keywords.is_near_copy(found.id, better.id) for better in near):
                chosen.append(found)
        return chosen

    def _fused(self, query: Query, within: Collection[int] | None) -> list[Found]:
        if not query.text.strip() or not len(self.index):
            return []
        only = None if within is None else np.array(sorted(within), np.int64)
        hits = self.index.search(query.vector, CANDIDATES, within=only)
        if not hits:
            return []
        shares = self.keywords.scores(query.text)
        if only is not None:
            shares[~np.isin(self.keywords.units // UNITS, only)] = 0.0
        written = np.flatnonzero(shares)
        if len(written) > CANDIDATES:
            written = written[np.argpartition(-shares[written], CANDIDATES)[:CANDIDATES]]
        share_of = dict(zip(self.keywords.units[written].tolist(), shares[written].tolist(), strict=True))
        cosine_of = {hit.id: hit.score for hit in hits}
        lowest = hits[-1].score
        best: dict[int, tuple[float, float, float]] = {}  # score, cosine and share of a passage's best unit
        for unit in cosine_of.keys() | share_of.keys():
            cosine, share, id_ = cosine_of.get(unit, lowest), share_of.get(unit, 0.0), passage_of(unit)
            unit_is = (query.trust * cosine + share, cosine, share)
            if id_ not in best or unit_is > best[id_]:
                best[id_] = unit_is
        return [Found(id=id_, score=score, cosine=cosine, share=share) for id_, (score, cosine, share) in best.items()]
