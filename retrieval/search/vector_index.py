"""Vector search: inner products over all vectors of length 1. The only file that imports faiss.

**Windows** are the texts by which a passage is found: the whole passage, then short parts of it. A passage is as long
as a prompt module should be. That is too long for one vector, and the words of a question are far apart in it. So each
window has a vector and keywords, and the best window counts. With windows, the right article of the sample help centre
is among the first three for 96 % of its questions, with whole passages for 93 %. A window id is the passage's id times
WINDOWS_PER_PASSAGE, plus the position of the window in the passage.

**Segments** are the parts of an index, as in Lucene. New windows become a new segment, and segments of similar size are
merged. So the cost of an addition depends on its size, and other segments are shared with the index before. Vectors are
stored in half precision. Cosines change by less than 0.0005, less than the bundled embedder's own error, and a search
reads half as much memory (95,659 vectors of 384 numbers, one thread: 3.3 ms a search instead of 13.4 ms).

**An index** is a snapshot that never changes: `updated` returns a new one, and readers can continue with the old one. A
damaged file is refused, because the index can be rebuilt from the stored passages. Out of scope: texts, and approximate
search.

**Files** of vector and keyword indexes are replaced as a whole and refused if they were altered: a line with the kind,
a line with the digest of the rest, a line of JSON, and bytes.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import faiss
import numpy as np
import numpy.typing as npt

from durable import replacing
from retrieval.documents import content_hash, cut, with_headings
from retrieval.errors import IndexDamaged, RetrievalError
from retrieval.search.embedding import Vectors

LARGEST = 20_000  # maximum number of windows of a merged segment, so that no change copies more than that at once

S = TypeVar("S", bound=Sized)


def merged(segments: Sequence[S], join: Callable[[Sequence[S]], S]) -> list[S]:
    """Merge neighbouring segments until each is at least twice as large as the next. So there are few segments, and
    merges are rare. Empty segments are dropped. join: makes one segment of several.
    """
    done: list[S] = []
    for segment in filter(len, segments):
        done.append(segment)
        while len(done) > 1 and len(done[-2]) < 2 * len(done[-1]) and len(done[-2]) + len(done[-1]) <= LARGEST:
            done[-2:] = [join(done[-2:])]
    return done


def write_index_file(path: Path, kind: str, header: Mapping[str, Any], *payload: bytes | memoryview) -> None:
    """Write a file that only this user can read: always the complete old or new one. Raises OSError."""
    line = json.dumps(header).encode("ascii") + b"\n"
    start = f"{kind}\n{content_hash(line, *payload)}\n".encode("ascii")
    with replacing(path, f".{path.name}.") as temporary, temporary.open("wb") as file:
        file.writelines((start, line, *payload))


def read_index_file(path: Path, kind: str) -> tuple[dict[str, Any], bytes]:
    """Return the header and the bytes of a file. Raises IndexDamaged if it is missing, altered, or of another kind."""
    try:
        with path.open("rb") as file:
            kind_line, digest, header = (file.readline() for _ in range(3))
            payload = file.read()
    except OSError as error:
        reason = "no index file" if isinstance(error, FileNotFoundError) else str(error)
        raise IndexDamaged(path, reason) from None
    if kind_line != f"{kind}\n".encode("ascii"):
        raise IndexDamaged(path, "not an index of this program")
    if f"{content_hash(header, payload)}\n".encode("ascii") != digest:
        raise IndexDamaged(path, "truncated or altered")
    return json.loads(header), payload


WINDOWS_PER_PASSAGE = 4096  # at most; part of the file format
WINDOW_TOKENS = 60  # maximum tokens of a part, without headings
CHARACTERS_PER_TOKEN = 4  # estimate that saves calls of the embedder's tokenizer


def window_texts(heading_path: Sequence[str], text: str) -> list[str]:
    """Return the whole passage, then its parts if there are several, each with the passage's headings."""
    parts = cut(text, lambda part: len(part) // CHARACTERS_PER_TOKEN, WINDOW_TOKENS)
    windows = [text, *parts] if len(parts) > 1 else [text]
    return [with_headings(tuple(heading_path), window) for window in windows[:WINDOWS_PER_PASSAGE]]


def window_ids(passages: Sequence[int]) -> npt.NDArray[np.int64]:
    places: defaultdict[int, Iterator[int]] = defaultdict(count)
    return np.array([passage * WINDOWS_PER_PASSAGE + next(places[passage]) for passage in passages], np.int64)


def passage_ids(window_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return window_ids // WINDOWS_PER_PASSAGE


def passage_id(window_id: int) -> int:
    return window_id // WINDOWS_PER_PASSAGE


Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Selection: TypeAlias = faiss.SearchParameters


class VectorSegment:
    """Vectors of some windows. They never change, because faiss shares their memory. Thread-safe."""

    def __init__(self, vectors: faiss.Index) -> None:
        assert isinstance(vectors, faiss.IndexIDMap)
        self._faiss = vectors

    @classmethod
    def of(cls, window_ids: Ids, vectors: Vectors) -> "VectorSegment":
        """Return a new segment. vectors: `[windows, dimension]`, in the order of `window_ids`."""
        half = faiss.IndexScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        index = faiss.IndexIDMap(half)
        index.add_with_ids(np.ascontiguousarray(vectors, np.float32), np.ascontiguousarray(window_ids, np.int64))
        return cls(index)

    @classmethod
    def merged(cls, segments: Sequence["VectorSegment"]) -> "VectorSegment":
        """Return one new segment with the contents of the segments, in order. Half-precision numbers do not change."""
        vectors = np.concatenate([segment.vectors(np.arange(len(segment))) for segment in segments])
        return cls.of(np.concatenate([segment.window_ids for segment in segments]), vectors)

    def without(self, gone: Ids) -> "VectorSegment":
        stays = ~np.isin(passage_ids(self.window_ids), gone)
        if stays.all():
            return self
        return VectorSegment.of(self.window_ids[stays], self.vectors(np.flatnonzero(stays)))

    def __len__(self) -> int:
        return int(self._faiss.ntotal)

    @cached_property
    def window_ids(self) -> Ids:
        ids: Ids = faiss.vector_to_array(self._faiss.id_map)
        return ids

    @cached_property
    def _in_order(self) -> Ids:
        return np.argsort(self.window_ids, kind="stable")

    def places_of(self, wanted: Ids) -> Ids:
        places = np.searchsorted(self.window_ids, wanted, sorter=self._in_order)
        places = self._in_order[np.minimum(places, len(self) - 1)]
        return np.where(self.window_ids[places] == wanted, places, -1)

    def vectors(self, places: Ids) -> Vectors:
        rows: Vectors = self._faiss.index.reconstruct_batch(places)
        return rows

    def search(self, vector: Vectors, k: int, within: Selection | None = None) -> tuple[Scores, Ids]:
        """Return scores and window ids of the `k` nearest windows and all ties with the last one, best first. k: at
        least 1. within: only these windows; an id of -1 means no window.
        """
        number = k + 1
        while True:
            number = min(number, len(self))
            with _one_thread():
                scores, ids = self._faiss.search(vector[np.newaxis], number, params=within)
            if number == len(self) or ids[0, -1] < 0 or scores[0, -1] < scores[0, k - 1]:
                return scores[0], ids[0]
            number *= 2

    def packed(self) -> memoryview:
        packed: memoryview = faiss.serialize_index(self._faiss).data
        return packed

    @classmethod
    def unpacked(cls, packed: memoryview) -> "VectorSegment":
        return cls(faiss.deserialize_index(np.frombuffer(packed, np.uint8)))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit faiss to the calling thread, because starting threads takes longer than one query. The limit belongs to the
    calling thread, so it is set for each search. Torch reads it too, so it is reset.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


_KIND = "warmdesk vectors 3"


class WindowHit(NamedTuple):
    """A found window. id: window id. score: cosine with the question, -1 to 1."""

    id: int
    score: float


class VectorIndex:
    """An index of segments, empty by default. Reading is safe from several threads. embedder: name of the vectors'
    embedder. dimension: length of a vector.
    """

    def __init__(self, embedder: str, dimension: int, segments: Sequence[VectorSegment] = ()) -> None:
        self.embedder, self.dimension = embedder, dimension
        self.segments = tuple(segments)

    @property
    def passage_ids(self) -> frozenset[int]:
        return frozenset(passage_ids(self._window_ids).tolist())

    @property
    def _window_ids(self) -> Ids:
        return np.concatenate([np.zeros(0, np.int64), *(segment.window_ids for segment in self.segments)])

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    def updated(
        self, removed_ids: Sequence[int] = (), added_ids: Sequence[int] = (), added_vectors: Vectors | None = None
    ) -> "VectorIndex":
        """Return a new index without the passages `removed_ids` (unknown ones are ignored) and with the added vectors.
        added_vectors: `[windows, dimension]`, of length 1. added_ids: the passage of each row; the rows of a passage
        replace its old ones. Raises RetrievalError if the vectors do not fit. Only segments that lose a passage or are
        merged are copied.
        """
        vectors = np.zeros((0, self.dimension), np.float32) if added_vectors is None else added_vectors
        self._check(vectors, len(added_ids))
        gone = np.array([*removed_ids, *added_ids], np.int64)
        segments = [segment.without(gone) for segment in self.segments]
        ids = window_ids(added_ids)
        parts = (slice(first, first + LARGEST) for first in range(0, len(ids), LARGEST))
        segments += [VectorSegment.of(ids[part], vectors[part]) for part in parts]
        return VectorIndex(self.embedder, self.dimension, merged(segments, VectorSegment.merged))

    def selection(self, passages: Collection[int]) -> Selection:
        """Return the faiss selector that limits a search to some passages."""
        ids = self._window_ids
        wanted = ids[np.isin(passage_ids(ids), np.array([*passages], np.int64))]
        return faiss.SearchParameters(sel=faiss.IDSelectorBatch(wanted))  # type: ignore[call-arg]

    def search(self, vector: Vectors, k: int, *, within: Selection | None = None) -> list[WindowHit]:
        """Return the `k` nearest windows, or fewer if there are fewer, best first. within: only these windows. Raises
        RetrievalError for a vector of another dimension.
        """
        query = np.ascontiguousarray(vector, np.float32)
        self._check(query[np.newaxis], 1)
        if k <= 0 or not self.segments:
            return []
        scores, ids = map(np.concatenate, zip(*(one.search(query, k, within) for one in self.segments), strict=True))
        best_first = np.lexsort((ids, -scores))[:k]  # equal scores by rising id
        pairs = zip(ids[best_first].tolist(), scores[best_first].tolist(), strict=True)
        return [WindowHit(id_, score) for id_, score in pairs if id_ >= 0]

    def cosines(self, vector: Vectors, window_ids: Ids) -> Scores:
        """Return the cosine of `vector` with each of these windows; 0 for windows without a vector."""
        cosines = np.zeros(len(window_ids), np.float32)
        for segment in self.segments:
            places = segment.places_of(window_ids)
            known = places >= 0
            if known.any():
                rows = segment.vectors(places[known])
                cosines[known] = (rows * vector).sum(axis=1)  # `@` adds equal rows in different orders
        return cosines

    def save(self, path: Path) -> None:
        """Write the index to one file, which is always the complete old or new one. Raises OSError."""
        packed = [segment.packed() for segment in self.segments]
        header = {"embedder": self.embedder, "dimension": self.dimension, "segments": [len(part) for part in packed]}
        write_index_file(path, _KIND, header, *packed)

    @classmethod
    def load(cls, path: Path, embedder: str, dimension: int) -> "VectorIndex":
        """Read an index. Raises IndexDamaged if it is missing, truncated, altered, or of another embedder."""
        header, payload = read_index_file(path, _KIND)
        if (header["embedder"], header["dimension"]) != (embedder, dimension):
            made_by = f"made by {header['embedder']} with vectors of {header['dimension']} numbers"
            raise IndexDamaged(path, f"{made_by}, not by {embedder} with {dimension}")
        ends = np.cumsum([0, *header["segments"]]).tolist()
        parts = [memoryview(payload)[start:end] for start, end in pairwise(ends)]
        return cls(embedder, dimension, [VectorSegment.unpacked(part) for part in parts])

    def _check(self, vectors: Vectors, count: int) -> None:
        if vectors.shape != (count, self.dimension):
            raise RetrievalError(
                f"vectors of shape {list(vectors.shape)} do not fit an index of {self.embedder}, which needs "
                f"{[count, self.dimension]}; rebuild the index after a change of embedder"
            )
        if not np.isfinite(vectors).all():
            raise RetrievalError(f"the embedder {self.embedder} returned a vector with infinite or undefined numbers")
