"""The vector index: exact inner-product search over normalised vectors; the only file that imports faiss.

An index is a snapshot that never changes: `updated` gives a new one, and whoever holds the old one goes on
reading it. It is rebuildable from the stored passages, so a damaged file is refused, not repaired. Knows
passage numbers only, not texts; no filters, no approximate search.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import faiss
import numpy as np

from retrieval.documents import content_hash
from retrieval.embedding import Vectors
from retrieval.errors import IndexDamaged, RetrievalError

_MAGIC = b"warmdesk vectors 1\n"


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage found, by its number. `score` is the cosine with the question, from -1 to 1."""

    id: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    embedder: str
    dimension: int
    generation: int
    count: int
    payload_hash: str


class VectorIndex:
    """An empty index; `updated` and `load` give others. Reading is safe from several threads."""

    def __init__(self, embedder: str, dimension: int) -> None:
        self._embedder = embedder
        self._dimension = dimension
        self._generation = 0
        self._faiss = faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))

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

    def __len__(self) -> int:
        return int(self._faiss.ntotal)

    def updated(
        self,
        removed_ids: Sequence[int] = (),
        added_ids: Sequence[int] = (),
        added_vectors: Vectors | None = None,
    ) -> "VectorIndex":
        """A new index without `removed_ids` (unknown ones do no harm) and with the added vectors.

        An id that is added replaces its earlier vector. `added_vectors` has shape [len(added_ids), dimension].
        Raises RetrievalError when the vectors do not fit, or an id comes twice. Takes one copy of the index.
        """
        vectors = np.zeros((0, self._dimension), np.float32) if added_vectors is None else added_vectors
        self._check(vectors, len(added_ids))
        if len(set(added_ids)) != len(added_ids):
            raise RetrievalError("a passage number is given twice among the vectors to add")
        new = self._like(faiss.clone_index(self._faiss), self._generation + 1)
        gone = np.array([*removed_ids, *added_ids], dtype=np.int64)
        if len(gone) and len(new):
            new._faiss.remove_ids(gone)  # faiss would keep both vectors of an id and return it twice
        if len(added_ids):
            new._faiss.add_with_ids(
                np.ascontiguousarray(vectors, dtype=np.float32), np.array(added_ids, dtype=np.int64)
            )
        return new

    def search(self, vector: Vectors, k: int) -> list[Hit]:
        """The `k` nearest passages, best first; fewer when the index holds fewer.

        Raises RetrievalError for a vector of another dimension.
        """
        self._check(vector[np.newaxis], 1)
        if k < 1 or not len(self):
            return []
        # Counts for the calling thread only, hence here: more threads make one query over ten times slower.
        faiss.omp_set_num_threads(1)
        scores, ids = self._faiss.search(
            np.ascontiguousarray(vector[np.newaxis], np.float32), min(k, len(self))
        )
        hits = [
            Hit(int(id_), float(score)) for id_, score in zip(ids[0], scores[0], strict=True) if id_ != -1
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.id))

    def save(self, path: Path) -> None:
        """Write the index to one file, which at any moment is either the old one or the new one, complete.

        Raises OSError when the folder cannot be written.
        """
        payload = faiss.serialize_index(self._faiss).tobytes()
        header = _Header(
            embedder=self._embedder,
            dimension=self._dimension,
            generation=self._generation,
            count=len(self),
            payload_hash=content_hash(payload),
        )
        _replace(path, _MAGIC + json.dumps(asdict(header)).encode("ascii") + b"\n" + payload)

    @classmethod
    def load(cls, path: Path, embedder: str, dimension: int) -> "VectorIndex":
        """Read an index that `embedder` made.

        Raises IndexDamaged when the file is missing, truncated, altered, or of another embedder or dimension.
        """
        try:
            magic, header_line, payload = _three_parts(path.read_bytes())
        except OSError as error:
            raise IndexDamaged(
                path, "no index file" if isinstance(error, FileNotFoundError) else str(error)
            ) from None
        if magic != _MAGIC:
            raise IndexDamaged(path, "not a vector index of this program")
        try:
            header = _Header(**json.loads(header_line))
        except (ValueError, TypeError):
            raise IndexDamaged(path, "the header is damaged") from None
        if (header.embedder, header.dimension) != (embedder, dimension):
            raise IndexDamaged(
                path, f"made by {header.embedder} ({header.dimension} numbers), not {embedder} ({dimension})"
            )
        if content_hash(payload) != header.payload_hash:
            raise IndexDamaged(path, "truncated or altered")
        index = cls(embedder, dimension)._like(
            faiss.deserialize_index(np.frombuffer(payload, dtype=np.uint8)), header.generation
        )
        assert len(index) == header.count, "the hash is right, so the count must be"
        return index

    def _like(self, vectors: faiss.IndexIDMap2, generation: int) -> "VectorIndex":
        other = VectorIndex(self._embedder, self._dimension)
        other._faiss, other._generation = vectors, generation
        return other

    def _check(self, vectors: Vectors, count: int) -> None:
        if vectors.shape != (count, self._dimension):
            raise RetrievalError(
                f"vectors of shape {list(vectors.shape)} do not fit an index of {self._embedder}, which needs "
                f"{[count, self._dimension]}; rebuild the index after a change of embedder"
            )
        if not np.isfinite(vectors).all():
            raise RetrievalError(
                f"the embedder {self._embedder} gave a vector with infinite or undefined numbers"
            )


def _three_parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    header, _, payload = data[len(_MAGIC) :].partition(b"\n")
    return data[: len(_MAGIC)], header, payload


def _replace(path: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
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
