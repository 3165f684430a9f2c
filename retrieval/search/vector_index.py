"""The vector index: inner-product search over all vectors of length 1. The only file that imports faiss.

Vectors are kept in half precision: cosines change by less than 0.0005, less than the bundled embedder's own error, and
a search reads half as much memory (95,659 vectors of 384 numbers, one thread: 3.3 ms a search against 13.4 ms). Every
window of a passage has a vector (see `windows`).

An index is a snapshot that never changes: `updated` gives a new one, and whoever holds the old one can go on reading
it. A damaged file is refused, not repaired: the index can be rebuilt from the stored passages. Not covered: texts, and
approximate search.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
import numpy.typing as npt

from retrieval.errors import IndexDamaged, RetrievalError
from retrieval.search.embedding import Vectors
from retrieval.search.index_file import read_index_file, write_index_file
from retrieval.search.windows import passage_ids, window_ids

_SAMPLE = 10_000  # vectors from which mean and covariance are computed
_KIND = "warmdesk vectors 3"

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]


class WindowHit(NamedTuple):
    """A window found. id: its window id. score: its cosine with the question, from -1 to 1."""

    id: int
    score: float


class Selection:
    """Some of the windows of an index: a search can be limited to them."""

    def __init__(self, window_ids: Ids) -> None:
        self.parameters = faiss.SearchParameters(sel=faiss.IDSelectorBatch(window_ids))  # type: ignore[call-arg]


class VectorIndex:
    """An empty index; `updated` and `load` give others. Reading is safe from several threads.

    embedder: the name of the embedder that makes the vectors. dimension: numbers in a vector. vectors: none by default.
    """

    def __init__(self, embedder: str, dimension: int, vectors: faiss.Index | None = None) -> None:
        self.embedder = embedder
        self.dimension = dimension
        half = faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        index = faiss.IndexIDMap(half) if vectors is None else vectors
        assert isinstance(index, faiss.IndexIDMap)
        self._faiss = index

    @property
    def passage_ids(self) -> frozenset[int]:
        """The passages that can be found."""
        return frozenset(passage_ids(self._window_ids).tolist())

    @cached_property
    def _window_ids(self) -> Ids:
        """Of each vector, in order."""
        ids: Ids = faiss.vector_to_array(self._faiss.id_map)
        return ids

    def __len__(self) -> int:
        """The number of vectors."""
        return int(self._faiss.ntotal)

    def updated(
        self, removed_ids: Sequence[int] = (), added_ids: Sequence[int] = (), added_vectors: Vectors | None = None
    ) -> "VectorIndex":
        """A new index without the passages `removed_ids` (unknown ones are ignored) and with the added vectors.

        added_vectors: `[windows, dimension]`, of length 1. added_ids: the passage of each row; together the rows of a
        passage replace those it had. Raises RetrievalError when the vectors do not fit. Copies the index: update with
        many passages at once.
        """
        vectors = np.zeros((0, self.dimension), np.float32) if added_vectors is None else added_vectors
        self._check(vectors, len(added_ids))
        new = VectorIndex(self.embedder, self.dimension, faiss.clone_index(self._faiss))
        gone = self._window_ids[np.isin(passage_ids(self._window_ids), [*removed_ids, *added_ids])]
        if len(gone):
            new._faiss.remove_ids(faiss.IDSelectorBatch(gone))
        if len(added_ids):
            new._faiss.add_with_ids(np.ascontiguousarray(vectors, dtype=np.float32), window_ids(added_ids))
        return new

    def selection(self, passages: Collection[int]) -> Selection:
        """The windows of these passages, for `search`; made once for many searches."""
        return Selection(self._window_ids[np.isin(passage_ids(self._window_ids), np.array([*passages], np.int64))])

    def search(self, vector: Vectors, k: int, *, within: Selection | None = None) -> list[WindowHit]:
        """The `k` nearest windows, best first; fewer if there are fewer. within: only these windows.

        Raises RetrievalError for a vector of another dimension.
        """
        query = np.ascontiguousarray(vector[np.newaxis], np.float32)
        self._check(query, 1)
        k = min(max(k, 0), len(self))
        if not k:
            return []
        with _one_thread():
            scores, ids = self._faiss.search(query, k, params=None if within is None else within.parameters)
        pairs = sorted(zip((-scores[0]).tolist(), ids[0].tolist(), strict=True))  # equal scores by rising number
        return [WindowHit(id_, -score) for score, id_ in pairs if id_ >= 0]

    def cosines(self, vector: Vectors, window_ids: Ids) -> Scores:
        """The cosine of `vector` with each of these windows; 0 for windows that have no vector."""
        in_order = self._in_order
        cosines = np.zeros(len(window_ids), np.float32)
        if len(in_order):
            places = np.searchsorted(self._window_ids, window_ids, sorter=in_order)
            places = in_order[np.minimum(places, len(in_order) - 1)]
            known = self._window_ids[places] == window_ids
            rows = self._faiss.index.reconstruct_batch(places[known])
            cosines[known] = (rows * vector).sum(axis=1)  # `@` adds equal rows in different orders
        return cosines

    @cached_property
    def _in_order(self) -> Ids:
        """The places of the vectors by rising window id."""
        return np.argsort(self._window_ids, kind="stable")

    def similarity_spread(self, vector: Vectors) -> tuple[float, float]:
        """Mean and standard deviation of the cosines of `vector` with the index, or with a random sample of it."""
        mean, covariance = self._moments
        return float(mean @ vector), math.sqrt(max(0.0, float(vector @ covariance @ vector)))

    @cached_property
    def _moments(self) -> tuple[Vectors, Vectors]:
        """Mean `[dimension]` and covariance `[dimension, dimension]` of the vectors."""
        if not len(self):
            return np.zeros(self.dimension, np.float32), np.zeros((self.dimension, self.dimension), np.float32)
        number = min(len(self), _SAMPLE)
        some = np.sort(np.random.default_rng(0).choice(len(self), number, replace=False))
        vectors: Vectors = self._faiss.index.reconstruct_batch(some)
        mean = vectors.mean(axis=0)
        covariance: Vectors = (vectors.T @ vectors) / np.float32(len(some)) - np.outer(mean, mean)
        return mean, covariance

    def save(self, path: Path) -> None:
        """Write the index to one file; at any moment it is the complete old or the complete new one. Raises OSError."""
        header = {"embedder": self.embedder, "dimension": self.dimension}
        write_index_file(path, _KIND, header, faiss.serialize_index(self._faiss).data)

    @classmethod
    def load(cls, path: Path, embedder: str, dimension: int) -> "VectorIndex":
        """Read an index. Raises IndexDamaged when it is missing, truncated, altered, or of another embedder."""
        header, payload = read_index_file(path, _KIND)
        if (header["embedder"], header["dimension"]) != (embedder, dimension):
            made_by = f"made by {header['embedder']} with {header['dimension']} numbers a vector"
            raise IndexDamaged(path, f"{made_by}, not by {embedder} with {dimension}")
        return cls(embedder, dimension, faiss.deserialize_index(np.frombuffer(payload, dtype=np.uint8)))

    def _check(self, vectors: Vectors, count: int) -> None:
        if vectors.shape != (count, self.dimension):
            raise RetrievalError(
                f"vectors of shape {list(vectors.shape)} do not fit an index of {self.embedder}, made for "
                f"{[count, self.dimension]}; rebuild the index after a change of embedder"
            )
        if not np.isfinite(vectors).all():
            raise RetrievalError(f"the embedder {self.embedder} gave a vector with infinite or undefined numbers")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let faiss use the calling thread only: starting others takes longer than one query. The number belongs to the
    calling thread, so it is set for each search; torch reads it too, so it is set back.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
