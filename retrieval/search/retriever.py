"""From a question to the passages that may answer it, by embeddings and by keywords.

Both scores say how much of the question a text covers, so they are added for each window, and a passage has the score
of its best window. The cosine counts less if the embedder does not know the question's language: an English embedder
knows little Chinese. Adding ranks instead (Cormack et al. 2009) would let a search that knows nothing spoil the order;
`warmdesk eval recall` shows both. Whether the passages answer the question is decided in `answerability`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from retrieval.errors import RetrievalError
from retrieval.search.embedding import Embedder, Vectors
from retrieval.search.keyword_index import KeywordIndex
from retrieval.search.spelling import Spelling
from retrieval.search.vector_index import VectorIndex
from retrieval.search.windows import passage_id, passage_ids

CANDIDATES = 300
"""Windows either search proposes. One that only keywords propose counts with the lowest cosine of the others."""
ALIKE = 0.1  # near copies differ in score by less than this


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A wording of a question, spelt as in the passages, with its vector. trust: factor of its cosines, 0 to 1."""

    text: str
    vector: Vectors
    trust: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageHit:
    """A passage found."""

    id: int
    score: float  # what passages are ranked by
    cosine: float  # of its best window with the question, -1 to 1
    share: float  # of the question's words that its best window has, 0 to 1


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

    def search(self, queries: Sequence[Query], k: int, *, within: Collection[int] | None = None) -> list[PassageHit]:
        """At most `k` passages for several wordings of one question, best first, without near copies of better ones.
        A blank wording finds nothing. within: only these passages.
        """
        best: dict[int, PassageHit] = {}
        for found in chain.from_iterable(self._fused(query, within) for query in queries):
            best[found.id] = max(best.get(found.id, found), found, key=lambda hit: hit.score)  # the first of equals
        chosen: list[PassageHit] = []
        for found in sorted(best.values(), key=lambda found: (-found.score, found.id)):
            if len(chosen) >= k:
                break
            near = [better for better in chosen if better.score - found.score < ALIKE]
            if not any(self.keywords.is_near_copy(found.id, better.id) for better in near):
                chosen.append(found)
        return chosen

    def _fused(self, query: Query, within: Collection[int] | None) -> list[PassageHit]:
        if not query.text.strip() or not len(self.index):
            return []
        only = None if within is None else np.array(sorted(within), np.int64)
        hits = self.index.search(query.vector, CANDIDATES, within=only)
        if not hits:
            return []
        shares = self.keywords.scores(query.text)
        if only is not None:
            shares[~np.isin(passage_ids(self.keywords.window_ids), only)] = 0.0
        written = np.flatnonzero(shares)
        if len(written) > CANDIDATES:
            written = written[np.argpartition(-shares[written], CANDIDATES)[:CANDIDATES]]
        share_of = dict(zip(self.keywords.window_ids[written].tolist(), shares[written].tolist(), strict=True))
        cosine_of = {hit.id: hit.score for hit in hits}
        lowest = hits[-1].score
        best: dict[int, tuple[float, float, float]] = {}  # score, cosine and share of a passage's best window
        for window in cosine_of.keys() | share_of.keys():
            cosine, share, id_ = cosine_of.get(window, lowest), share_of.get(window, 0.0), passage_id(window)
            values = (query.trust * cosine + share, cosine, share)
            best[id_] = max(values, best.get(id_, values))
        return [PassageHit(id=id_, score=a, cosine=b, share=c) for id_, (a, b, c) in best.items()]
