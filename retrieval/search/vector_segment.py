"""A segment: part of the vector index, some windows with their vectors. It never changes, so that an index can grow by
a segment and share the others with the index before it. The only file that imports faiss.

Vectors are kept in half precision: cosines change by less than 0.0005, less than the bundled embedder's own error, and
a search reads half as much memory (95,659 vectors of 384 numbers, one thread: 3.3 ms a search against 13.4 ms).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import faiss
import numpy as np
import numpy.typing as npt

from retrieval.search.embedding import Vectors

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]


class Selection:
    """Some windows: a search can be limited to them."""

    def __init__(self, window_ids: Ids) -> None:
        self.parameters = faiss.SearchParameters(sel=faiss.IDSelectorBatch(window_ids))  # type: ignore[call-arg]


class VectorSegment:
    """Reading is safe from several threads. It keeps what faiss keeps, and is not to be changed."""

    def __init__(self, vectors: faiss.Index) -> None:
        assert isinstance(vectors, faiss.IndexIDMap)
        self._faiss = vectors

    @classmethod
    def of(cls, window_ids: Ids, vectors: Vectors) -> "VectorSegment":
        """A new segment. vectors: `[windows, dimension]`, in the order of `window_ids`."""
        half = faiss.IndexScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        index = faiss.IndexIDMap(half)
        index.add_with_ids(np.ascontiguousarray(vectors, np.float32), np.ascontiguousarray(window_ids, np.int64))
        return cls(index)

    @classmethod
    def merged(cls, segments: Sequence["VectorSegment"]) -> "VectorSegment":
        """One new segment with all that these have, in their order. No number changes: halves are halves again."""
        vectors = np.concatenate([segment.vectors(np.arange(len(segment))) for segment in segments])
        return cls.of(np.concatenate([segment.window_ids for segment in segments]), vectors)

    def only(self, stays: npt.NDArray[np.bool_]) -> "VectorSegment":
        """A new segment with these windows. stays: for each window whether it stays."""
        return VectorSegment.of(self.window_ids[stays], self.vectors(np.flatnonzero(stays)))

    def __len__(self) -> int:
        """The number of windows."""
        return int(self._faiss.ntotal)

    @cached_property
    def window_ids(self) -> Ids:
        """Of each vector, in order."""
        ids: Ids = faiss.vector_to_array(self._faiss.id_map)
        return ids

    @cached_property
    def _in_order(self) -> Ids:
        """The places of the vectors by rising window id."""
        return np.argsort(self.window_ids, kind="stable")

    def places_of(self, wanted: Ids) -> Ids:
        """The place of each of these windows, -1 if it is not here."""
        places = np.searchsorted(self.window_ids, wanted, sorter=self._in_order)
        places = self._in_order[np.minimum(places, len(self) - 1)]
        return np.where(self.window_ids[places] == wanted, places, -1)

    def vectors(self, places: Ids) -> Vectors:
        """The vectors at these places, `[places, dimension]`."""
        rows: Vectors = self._faiss.index.reconstruct_batch(places)
        return rows

    def search(self, vector: Vectors, k: int, within: Selection | None = None) -> tuple[Scores, Ids]:
        """Scores and window ids of the `k` nearest and of all that are as near as the last of them, best first. k: at
        least 1. within: only these windows; an id of -1 stands for none.
        """
        parameters = None if within is None else within.parameters
        number = k + 1
        while True:
            number = min(number, len(self))
            with _one_thread():
                scores, ids = self._faiss.search(vector[np.newaxis], number, params=parameters)
            if number == len(self) or ids[0, -1] < 0 or scores[0, -1] < scores[0, k - 1]:
                return scores[0], ids[0]
            number *= 2

    def packed(self) -> memoryview:
        """The segment as bytes."""
        packed: memoryview = faiss.serialize_index(self._faiss).data
        return packed

    @classmethod
    def unpacked(cls, packed: memoryview) -> "VectorSegment":
        """What `packed` gave."""
        return cls(faiss.deserialize_index(np.frombuffer(packed, np.uint8)))


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
