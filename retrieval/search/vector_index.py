"""The vector index: inner-product search over all vectors of length 1. Every window of a passage has one (see
`windows`).

An index is a snapshot that never changes: `updated` gives a new one, which shares its segments, and whoever holds the
old one can go on reading it. A damaged file is refused, not repaired: the index can be rebuilt from the stored
passages. Not covered: texts, and approximate search.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retrieval.errors import IndexDamaged, RetrievalError
from retrieval.search.embedding import Vectors
from retrieval.search.index_file import read_index_file, write_index_file
from retrieval.search.segments import merged, parted
from retrieval.search.vector_segment import Ids, Scores, Selection, VectorSegment
from retrieval.search.windows import passage_ids, window_ids

_KIND = "warmdesk vectors 3"


class WindowHit(NamedTuple):
    """A window found. id: its window id. score: its cosine with the question, from -1 to 1."""

    id: int
    score: float


class VectorIndex:
    """An index of these segments, empty by default; `updated` and `load` give others. Reading is safe from several
    threads.

    embedder: the name of the embedder that makes the vectors. dimension: numbers in a vector.
    """

    def __init__(self, embedder: str, dimension: int, segments: Sequence[VectorSegment] = ()) -> None:
        self.embedder, self.dimension = embedder, dimension
        self.segments = tuple(segments)

    @property
    def passage_ids(self) -> frozenset[int]:
        """The passages that can be found."""
        return frozenset(passage_ids(self._window_ids).tolist())

    @property
    def _window_ids(self) -> Ids:
        """Of each vector, in order."""
        return np.concatenate([np.zeros(0, np.int64), *(segment.window_ids for segment in self.segments)])

    def __len__(self) -> int:
        """The number of vectors."""
        return sum(map(len, self.segments))

    def updated(
        self, removed_ids: Sequence[int] = (), added_ids: Sequence[int] = (), added_vectors: Vectors | None = None
    ) -> "VectorIndex":
        """A new index without the passages `removed_ids` (unknown ones are ignored) and with the added vectors.

        added_vectors: `[windows, dimension]`, of length 1. added_ids: the passage of each row; together the rows of a
        passage replace those it had. Raises RetrievalError when the vectors do not fit. Copies only segments that lose
        a passage or are merged.
        """
        vectors = np.zeros((0, self.dimension), np.float32) if added_vectors is None else added_vectors
        self._check(vectors, len(added_ids))
        gone = np.array([*removed_ids, *added_ids], np.int64)
        segments = [_without(segment, gone) for segment in self.segments]
        ids = window_ids(added_ids)
        segments += [VectorSegment.of(ids[part], vectors[part]) for part in parted(len(ids))]
        return VectorIndex(self.embedder, self.dimension, merged(segments, VectorSegment.merged))

    def selection(self, passages: Collection[int]) -> Selection:
        """The windows of these passages, for `search`; made once for many searches."""
        ids = self._window_ids
        return Selection(ids[np.isin(passage_ids(ids), np.array([*passages], np.int64))])

    def search(self, vector: Vectors, k: int, *, within: Selection | None = None) -> list[WindowHit]:
        """The `k` nearest windows, best first; fewer if there are fewer. within: only these windows.

        Raises RetrievalError for a vector of another dimension.
        """
        query = np.ascontiguousarray(vector, np.float32)
        self._check(query[np.newaxis], 1)
        if k <= 0 or not self.segments:
            return []
        scores, ids = map(np.concatenate, zip(*(one.search(query, k, within) for one in self.segments), strict=True))
        best_first = np.lexsort((ids, -scores))[:k]  # equal scores by rising number
        pairs = zip(ids[best_first].tolist(), scores[best_first].tolist(), strict=True)
        return [WindowHit(id_, score) for id_, score in pairs if id_ >= 0]

    def cosines(self, vector: Vectors, window_ids: Ids) -> Scores:
        """The cosine of `vector` with each of these windows; 0 for windows that have no vector."""
        cosines = np.zeros(len(window_ids), np.float32)
        for segment in self.segments:
            places = segment.places_of(window_ids)
            known = places >= 0
            if known.any():
                rows = segment.vectors(places[known])
                cosines[known] = (rows * vector).sum(axis=1)  # `@` adds equal rows in different orders
        return cosines

    def save(self, path: Path) -> None:
        """Write the index to one file; at any moment it is the complete old or the complete new one. Raises OSError."""
        packed = [segment.packed() for segment in self.segments]
        header = {"embedder": self.embedder, "dimension": self.dimension, "segments": [len(part) for part in packed]}
        write_index_file(path, _KIND, header, *packed)

    @classmethod
    def load(cls, path: Path, embedder: str, dimension: int) -> "VectorIndex":
        """Read an index. Raises IndexDamaged when it is missing, truncated, altered, or of another embedder."""
        header, payload = read_index_file(path, _KIND)
        if (header["embedder"], header["dimension"]) != (embedder, dimension):
            made_by = f"made by {header['embedder']} with {header['dimension']} numbers a vector"
            raise IndexDamaged(path, f"{made_by}, not by {embedder} with {dimension}")
        sizes = header.get("segments", [len(payload)])  # earlier versions had one
        ends = np.cumsum([0, *sizes]).tolist()
        parts = [memoryview(payload)[start:end] for start, end in pairwise(ends)]
        return cls(embedder, dimension, [VectorSegment.unpacked(part) for part in parts])

    def _check(self, vectors: Vectors, count: int) -> None:
        if vectors.shape != (count, self.dimension):
            raise RetrievalError(
                f"vectors of shape {list(vectors.shape)} do not fit an index of {self.embedder}, made for "
                f"{[count, self.dimension]}; rebuild the index after a change of embedder"
            )
        if not np.isfinite(vectors).all():
            raise RetrievalError(f"the embedder {self.embedder} gave a vector with infinite or undefined numbers")


def _without(segment: VectorSegment, gone: Ids) -> VectorSegment:
    """The segment without these passages; the same one if it has none of them."""
    stays = ~np.isin(passage_ids(segment.window_ids), gone)
    return segment if stays.all() else segment.only(stays)
