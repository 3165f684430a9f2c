"""The vector index: inner-product search over all normalised vectors; the only file that imports faiss.

Vectors are kept in half precision: cosines are within 0.0005 of those in full precision, which is less than what the
bundled embedder computes itself to, and a search reads half as much memory (95,659 vectors of 384 numbers, one thread:
3.3 ms a search against 13.4 ms). A passage may have several vectors, one for each of its units (see `units`).

An index is a snapshot that never changes: `updated` gives a new one, and whoever holds the old one goes on
reading it. It is rebuildable from the stored passages, so a damaged file is refused, not repaired. Knows
numbers of units only, not texts; no approximate nearest neighbours.
"""

import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt

from retrieval.documents.document import content_hash
from retrieval.errors import IndexDamaged, RetrievalError
from retrieval.search.embedding import Vectors
from retrieval.search.units import UNITS, unit_ids

_SPREAD_OF = 10_000
_MAGIC = b"warmdesk vectors 3\n"


@dataclass(frozen=True, slots=True)
class Hit:
    """A unit found, by its number. `score` is the cosine with the question, from -1 to 1."""

    id: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    embedder: str
    dimension: int
    generation: int


class VectorIndex:
    """An empty index; `updated` and `load` give others. Reading is safe from several threads."""

    def __init__(self, embedder: str, dimension: int) -> None:
        self._embedder = embedder
        self._dimension = dimension
        self._generation = 0
        half = faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        self._faiss: faiss.IndexIDMap = faiss.IndexIDMap(half)

    @property
    def embedder(self) -> str:
        """The name of the embedder that made the vectors."""
        return self._embedder

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return self._dimension

    @property
    def generation(self) -> int:
        """How many updates led here. Stored with the vectors, to compare with what the database expects."""
        return self._generation

    @property
    def passage_ids(self) -> frozenset[int]:
        """The passages that can be found, to compare with those the database holds."""
        return frozenset((faiss.vector_to_array(self._faiss.id_map) // UNITS).tolist())

    def __len__(self) -> int:
        """The number of vectors."""
        return int(self._faiss.ntotal)

    def updated(
        self,
        removed_ids: Sequence[int] = (),
        added_ids: Sequence[int] = (),
        added_vectors: Vectors | None = None,
    ) -> "VectorIndex":
        """A new index without `removed_ids` (unknown ones do no harm) and with the added vectors.

        `added_vectors` has one row for each of `added_ids`. The rows of one passage may be several; together
        they replace those it had before. Raises RetrievalError when the vectors do not fit. Takes a copy of
        the index: update with many passages at once.
        """
        vectors = np.zeros((0, self._dimension), np.float32) if added_vectors is None else added_vectors
        self._check(vectors, len(added_ids))
        new = self._like(faiss.clone_index(self._faiss), self._generation + 1)
        units = faiss.vector_to_array(self._faiss.id_map)
        gone = units[np.isin(units // UNITS, np.array([*removed_ids, *added_ids], dtype=np.int64))]
        if len(gone):
            new._faiss.remove_ids(faiss.IDSelectorBatch(gone))
        if len(added_ids):
            new._faiss.add_with_ids(np.ascontiguousarray(vectors, dtype=np.float32), unit_ids(added_ids))
        return new

    def search(self, vector: Vectors, k: int, *, within: npt.NDArray[np.int64] | None = None) -> list[Hit]:
        """The `k` nearest units, best first; fewer when the index holds fewer. within: only units of these passages.

        Raises RetrievalError for a vector of another dimension.
        """
        query = np.ascontiguousarray(vector[np.newaxis], np.float32)
        self._check(query, 1)
        only = None
        if within is not None:
            units = faiss.vector_to_array(self._faiss.id_map)
            selector = faiss.IDSelectorBatch(units[np.isin(units // UNITS, within)])
            only = faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]  # faiss adds the argument at run time
        k = min(max(k, 0), len(self))
        if not k:
            return []
        with _one_thread():
            scores, ids = self._faiss.search(query, k, params=only)
        pairs = sorted(zip((-scores[0]).tolist(), ids[0].tolist(), strict=True))  # equal scores by rising number
        return [Hit(id_, -score) for score, id_ in pairs if id_ >= 0]

    def similarity_spread(self, vector: Vectors) -> tuple[float, float]:
        """Mean and standard deviation of the cosines of `vector` with everything in the index, or with so many vectors
        of it, chosen by chance, that they tell.
        """
        mean, covariance = self._moments
        return float(mean @ vector), math.sqrt(max(0.0, float(vector @ covariance @ vector)))

    @cached_property
    def _moments(self) -> tuple[Vectors, Vectors]:
        """Mean `[dimension]` and covariance `[dimension, dimension]` of the vectors."""
        if not len(self):
            return np.zeros(self._dimension, np.float32), np.zeros((self._dimension, self._dimension), np.float32)
        number = min(len(self), _SPREAD_OF)
        some = np.sort(np.random.default_rng(0).choice(len(self), number, replace=False))
        vectors: Vectors = self._faiss.index.reconstruct_batch(some)
        mean = vectors.mean(axis=0)
        covariance: Vectors = (vectors.T @ vectors) / np.float32(len(some)) - np.outer(mean, mean)
        return mean, covariance

    def save(self, path: Path) -> None:
        """Write the index to one file, which at any moment is either the old one or the new one, complete.

        Raises OSError when the folder cannot be written.
        """
        payload = faiss.serialize_index(self._faiss).data
        header = _Header(embedder=self._embedder, dimension=self._dimension, generation=self._generation)
        header_line = json.dumps(asdict(header)).encode("ascii") + b"\n"
        _replace(path, (_MAGIC, content_hash(header_line, payload).encode("ascii"), b"\n", header_line, payload))

    @classmethod
    def load(cls, path: Path, embedder: str, dimension: int) -> "VectorIndex":
        """Read an index that `embedder` made.

        Raises IndexDamaged when the file is missing, truncated, altered, or of another embedder or dimension.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            reason = "no index file" if isinstance(error, FileNotFoundError) else str(error)
            raise IndexDamaged(path, reason) from None
        if not content.startswith(_MAGIC):
            raise IndexDamaged(path, "not a vector index of this program")
        start_of_data = content.find(b"\n", len(_MAGIC)) + 1
        start_of_payload = content.find(b"\n", start_of_data) + 1
        data = memoryview(content)[start_of_data:]  # views, not copies: an index may take hundreds of megabytes
        if content_hash(data).encode("ascii") != content[len(_MAGIC) : start_of_data - 1]:
            raise IndexDamaged(path, "truncated or altered")
        header = _Header(**json.loads(content[start_of_data:start_of_payload]))
        payload = memoryview(content)[start_of_payload:]
        if (header.embedder, header.dimension) != (embedder, dimension):
            made_by = f"made by {header.embedder} with {header.dimension} numbers a vector"
            raise IndexDamaged(path, f"{made_by}, not by {embedder} with {dimension}")
        vectors = faiss.deserialize_index(np.frombuffer(payload, dtype=np.uint8))
        return cls(embedder, dimension)._like(vectors, header.generation)

    def _like(self, vectors: faiss.Index, generation: int) -> "VectorIndex":
        other = VectorIndex(self._embedder, self._dimension)
        assert isinstance(vectors, faiss.IndexIDMap)
        other._faiss, other._generation = vectors, generation
        return other

    def _check(self, vectors: Vectors, count: int) -> None:
        if vectors.shape != (count, self._dimension):
            raise RetrievalError(
                f"vectors of shape {list(vectors.shape)} do not fit an index of {self._embedder}, made for "
                f"{[count, self._dimension]}; rebuild the index after a change of embedder"
            )
        if not np.isfinite(vectors).all():
            raise RetrievalError(f"the embedder {self._embedder} gave a vector with infinite or undefined numbers")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Search in the calling thread alone: starting others takes longer than one query.

    The number counts for the calling thread only, so it is set for each search. Torch reads the same one, so
    it is given back.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _replace(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the rename itself must survive a power cut, too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
