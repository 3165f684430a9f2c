"""The search index of this desk: opened from its file, or rebuilt from the database, and replaced as a whole.

Readers take a snapshot and keep it for one search; a change makes a new one. An index file that is missing, damaged, of
another embedder or of other passages than the database is rebuilt from the stored embeddings.
"""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from app.domain.documents import Ids, Replaced, Vectors
from app.storage.library import Library
from retrieval.errors import IndexDamaged
from retrieval.search.embedding import Embedder
from retrieval.search.keyword_index import KeywordIndex
from retrieval.search.retriever import Retriever
from retrieval.search.vector_index import VectorIndex
from retrieval.search.windows import passage_id, window_texts

log = logging.getLogger(__name__)

EMBEDDER = "embedder"
"""Fact that names the embedder of the stored embeddings."""


class Search:
    """Finds passages for a question. Safe to use from any thread."""

    def __init__(self, library: Library, embedder: Embedder, path: Path) -> None:
        self.embedder = embedder
        self._library, self._path = library, path
        self._lock = threading.Lock()
        for unfinished in path.parent.glob(f".{path.name}.*"):  # of a process that was killed while it wrote
            unfinished.unlink(missing_ok=True)
        self._use_this_embedder()
        self._index = self._open()
        self._keywords = KeywordIndex().updated((), library.searchable())
        self._retriever = Retriever(embedder, self._index, self._keywords)

    @property
    def retriever(self) -> Retriever:
        """The snapshot that questions see now."""
        return self._retriever

    def embed(self, passages: Sequence[tuple[Sequence[str], str]]) -> list[Vectors]:
        """The vectors of passages, given as heading path and text: for each `[windows, dimension]`."""
        windows = [window_texts(path, text) for path, text in passages]
        vectors = self.embedder.embed_documents([text for texts in windows for text in texts])
        return np.split(vectors, np.cumsum([len(texts) for texts in windows])[:-1]) if windows else []

    def nearest(self, ids: Sequence[int], count: int, *, within: Collection[int] | None = None) -> dict[int, list[int]]:
        """For each of these passages the `count` others that are closest to the whole of it (cosine), closest first.
        within: only these are candidates.
        """
        numbers, vectors = self._library.vectors(self.embedder.dimension, ids)
        index = self._retriever.index
        only = None if within is None else np.array(sorted(within), np.int64)
        found: dict[int, list[int]] = {}
        for id_, vector in zip(numbers.tolist(), vectors, strict=True):
            if id_ not in found:  # the first of a passage's vectors is that of the whole
                found[id_] = others_nearby(index, vector, id_, count, only)
        return found

    def change(self, write: Callable[[], Sequence[Replaced]]) -> Sequence[Replaced]:
        """Change the library and then the snapshot. `write` stores the change; when this returns, new questions see all
        of it. Raises what `write` raises.
        """
        with self._lock:
            changes = write()
            removed = [id_ for replaced in changes for id_ in replaced.removed]
            new = [id_ for replaced in changes for id_ in replaced.new]
            if removed or new:
                ids, vectors = self._library.vectors(self.embedder.dimension, new)
                self._index = self._index.updated(removed, ids.tolist(), vectors)
                self._keywords = self._keywords.updated(removed, self._library.searchable(new))
                self._retriever = Retriever(self.embedder, self._index, self._keywords)
        return changes

    def wait(self) -> None:
        """Return when no change is in progress."""
        with self._lock:
            return

    def save(self) -> None:
        """Write the index, so that the next start does not read all vectors from the database. Raises OSError; the old
        file is then unchanged.
        """
        with self._lock:
            self._index.save(self._path)

    def _open(self) -> VectorIndex:
        try:
            index = VectorIndex.load(self._path, self.embedder.name, self.embedder.dimension)
            if index.passage_ids == frozenset(self._library.all_ids()):
                return index
            reason = "it holds other passages than the database"
        except IndexDamaged as damage:
            reason = damage.reason
        index = VectorIndex(self.embedder.name, self.embedder.dimension)
        ids, vectors = self._library.vectors(self.embedder.dimension)
        if len(ids):
            log.warning("the vector index is rebuilt from the database: %s", reason)
            index = index.updated((), ids.tolist(), vectors)
            index.save(self._path)
        return index

    def _use_this_embedder(self) -> None:
        """Embed all passages again if the stored embeddings are of another model."""
        stored = self._library.fact(EMBEDDER)
        if stored == self.embedder.name:
            return
        if stored is not None and self._library.counts().passages:
            log.warning("all passages are embedded again: the embedder was %s, is %s", stored, self.embedder.name)
            for document in self._library.documents():
                passages = self._library.passages_of(document.path)
                vectors = self.embed([(p.heading_path, p.text) for p in passages])
                self._library.set_embeddings({p.id: rows for p, rows in zip(passages, vectors, strict=True)})
        self._library.set_fact(EMBEDDER, self.embedder.name)


def others_nearby(index: VectorIndex, vector: Vectors, id_: int, count: int, within: Ids | None) -> list[int]:
    """The `count` passages nearest to the vector of passage `id_`, without that passage."""
    wanted = count + 1
    while True:
        wanted = min(4 * wanted, len(index))
        hits = index.search(vector, wanted, within=within)
        others = [other for other in dict.fromkeys(passage_id(hit.id) for hit in hits) if other != id_]
        if len(others) >= count or wanted == len(index):
            return others[:count]
