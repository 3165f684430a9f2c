"""Vector and keyword search over the documents, opened from files and replaced as a whole.

Each search uses one snapshot. A change makes a new snapshot. Entries that the files lack are taken from the database:
passages stored shortly before the program was killed, or everything if a file is missing, damaged, of another embedder,
or made with other rules for words.
"""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from app.domain.documents import Replaced, StoredPassage, Vectors
from app.domain.errors import DeskError
from app.domain.progress import Progress, no_progress
from app.storage.library import Library
from cache.memory.disk import return_freed_memory
from retrieval.documents import Passage
from retrieval.errors import IndexDamaged, RetrievalError
from retrieval.search.embedding import Embedder
from retrieval.search.keyword_index import KeywordIndex, load_keywords, save_keywords
from retrieval.search.retriever import Retriever
from retrieval.search.vector_index import Selection, VectorIndex, passage_id, window_texts

log = logging.getLogger(__name__)
T = TypeVar("T")

EMBEDDER = "embedder"  # name of a stored fact: the embedder of the stored embeddings
VIEWS_KEPT = 32  # sets of collections that are cached per snapshot
EMBEDDED_AT_ONCE = 16  # passages that are embedded together: few, so that a run can be stopped
ADDED_AT_ONCE = 1000  # passages whose texts are in memory together while the keyword index is rebuilt


class Snapshot:
    """A state of the search indexes, which never changes. Safe to use from any thread.

    passages_in: the passages of each collection.
    """

    def __init__(
        self, embedder: Embedder, index: VectorIndex, keywords: KeywordIndex, passages_in: dict[str, frozenset[int]]
    ) -> None:
        self.index, self.keywords = index, keywords
        self._embedder, self._passages_in = embedder, passages_in
        self._everything = Retriever(embedder, index, keywords)
        self._limited = lru_cache(VIEWS_KEPT)(self._limit)

    def retriever(self, collections: Collection[str] = ()) -> Retriever:
        """Return the retriever of these collections, or of all. The same collections share one object."""
        known = frozenset(self._passages_in).intersection(collections)
        return self._limited(known) if collections else self._everything

    def _limit(self, collections: frozenset[str]) -> Retriever:
        within = frozenset[int]().union(*(self._passages_in[name] for name in collections))
        return Retriever(self._embedder, self.index, self.keywords, within=within)


class Search:
    """Finds passages for a question. Safe to use from any thread."""

    def __init__(self, library: Library, embedder: Embedder, path: Path) -> None:
        self.embedder = embedder
        self._library, self._path = library, path
        self._lock = threading.Lock()
        for unfinished in path.parent.glob(f".{path.name}.*"):  # from a process that was killed during a write
            unfinished.unlink(missing_ok=True)
        self._use_this_embedder()
        stored = frozenset(library.all_ids())
        self.snapshot = self._state(self._open_vectors(stored), self._open_keywords(stored))

    def vectors_of(self, passages: Sequence[Passage | StoredPassage], progress: Progress) -> dict[str, Vectors]:
        """Return vectors `[windows, dimension]` by content hash. They are stored after every few passages, so that the
        next run can use them if this run is killed. Raises RetrievalError.
        """
        name, by_hash = self.embedder.name, {passage.content_hash: passage for passage in passages}
        found = self._library.staged(name, by_hash, self.embedder.dimension)
        missing = [hash_ for hash_ in by_hash if hash_ not in found]
        for first in range(0, len(missing), EMBEDDED_AT_ONCE):
            some = missing[first : first + EMBEDDED_AT_ONCE]
            windows = [window_texts(by_hash[hash_].heading_path, by_hash[hash_].text) for hash_ in some]
            vectors = self.embedder.embed_documents([text for texts in windows for text in texts])
            if not np.isfinite(vectors).all():
                raise RetrievalError(f"the embedder {name} returned a vector with undefined numbers")
            rows = np.split(vectors, np.cumsum([len(texts) for texts in windows])[:-1])
            self._library.stage(name, new := dict(zip(some, rows, strict=True)))
            found |= new
            return_freed_memory()
            progress("embedding", first + len(some), len(missing))
        return found

    def nearest(self, ids: Sequence[int], count: int, *, within: Collection[int] | None = None) -> dict[int, list[int]]:
        """Return the `count` other passages most similar to each passage, closest first. within: search only these."""
        numbers, vectors = self._library.vectors(self.embedder.dimension, ids)
        index = self.snapshot.index
        only = None if within is None else index.selection(within)
        found: dict[int, list[int]] = {}
        for id_, vector in zip(numbers.tolist(), vectors, strict=True):
            if id_ not in found:  # the first vector of a passage is of its whole text
                found[id_] = others_nearby(index, vector, id_, count, only)
        return found

    def change(self, write: Callable[[], Sequence[Replaced]], gone: Collection[int] = ()) -> Sequence[Replaced]:
        """Change the library and then the snapshot. write: stores the change. When this method returns, new questions
        see the whole change. gone: passages that search hides from the start, because removing many takes time. Raises
        the errors of `write`. The snapshot then has all changes stored before the error.
        """
        with self._lock:
            try:
                if gone:
                    self._update(sorted(gone), ())
                changes = write()
                removed = [id_ for replaced in changes for id_ in replaced.removed if id_ not in gone]
                new = [id_ for replaced in changes for id_ in replaced.new]
                self._update(removed, new)
            except BaseException:
                with suppress(Exception):  # it has the same cause, which is reported
                    self._catch_up()
                raise
        return changes

    def follow(self) -> bool:
        """Update the snapshot from the library, including other servers' changes. Return whether passages were removed.
        Waits for a change in progress. Raises DeskError, also if another server's embedder made the vectors.
        """
        with self._lock:
            if (stored_by := self._library.fact(EMBEDDER)) != self.embedder.name:
                raise DeskError(
                    f"another server of this database uses the embedder {stored_by}, this one uses "
                    f"{self.embedder.name}: set the same embedder on all servers, and restart them",
                    code="embedder-differs",
                )
            return self._catch_up()

    def _catch_up(self) -> bool:
        """Apply the changes of all servers. Return whether passages were removed. The caller holds the lock."""
        stored, indexed = frozenset(self._library.all_ids()), self.snapshot.index.passage_ids
        self._update(sorted(indexed - stored), sorted(stored - indexed))
        return bool(indexed - stored)

    def _update(self, removed: Sequence[int], new: Sequence[int]) -> None:
        """Make the next snapshot. The caller holds the lock."""
        index, keywords = self.snapshot.index, self.snapshot.keywords
        if removed or new:
            ids, vectors = self._library.vectors(self.embedder.dimension, new)
            index = index.updated(removed, ids.tolist(), vectors)
            keywords = keywords.updated(removed, self._library.searchable(new))
        self.snapshot = self._state(index, keywords)  # a document may only have moved to another collection

    def save(self) -> None:
        """Write both indexes, so that the next start is fast. Raises OSError; files not yet written are unchanged."""
        with self._lock:
            self.snapshot.index.save(self._path)
            save_keywords(self.snapshot.keywords, keywords_folder(self._path))

    def _state(self, index: VectorIndex, keywords: KeywordIndex) -> Snapshot:
        """Return a snapshot of both indexes. The library must not change during the call."""
        passages_in = {name: self._library.ids_in([name]) for name in self._library.collections()}
        return Snapshot(self.embedder, index, keywords, passages_in)

    def _open_vectors(self, stored: frozenset[int]) -> VectorIndex:
        name, dimension = self.embedder.name, self.embedder.dimension
        index, reason = opened(lambda: VectorIndex.load(self._path, name, dimension), VectorIndex(name, dimension))
        missing, gone = differences(index, stored, reason)
        if missing or gone:
            ids, vectors = self._library.vectors(dimension, missing)
            index = index.updated(gone, ids.tolist(), vectors)
            index.save(self._path)
        return index

    def _open_keywords(self, stored: frozenset[int]) -> KeywordIndex:
        folder = keywords_folder(self._path)
        index, reason = opened(lambda: load_keywords(folder), KeywordIndex())
        missing, gone = differences(index, stored, reason)
        if missing or gone:
            index = index.updated(gone, {})
            for first in range(0, len(missing), ADDED_AT_ONCE):
                index = index.updated((), self._library.searchable(missing[first : first + ADDED_AT_ONCE]))
                save_keywords(index, folder)  # a killed rebuild continues from here
            save_keywords(index, folder)
        return index

    def _use_this_embedder(self) -> None:
        stored = self._library.fact(EMBEDDER)
        if stored == self.embedder.name:
            return
        if stored is not None and self._library.counts().passages:
            log.warning(
                "all passages are embedded again: the embedder was %s, now it is %s", stored, self.embedder.name
            )
            paths = [document.path for document in self._library.documents()]
            for path in paths:  # takes hours; setting the earlier embedder stops it without loss
                self.vectors_of(self._library.passages_of(path), no_progress)
            self._library.set_fact(EMBEDDER, f"{self.embedder.name} (not for all passages yet)")
            for path in paths:
                passages = self._library.passages_of(path)
                found = self.vectors_of(passages, no_progress)
                self._library.set_embeddings({p.id: found[p.content_hash] for p in passages})
        self._library.set_fact(EMBEDDER, self.embedder.name)
        self._library.clear_staged()


def keywords_folder(index_path: Path) -> Path:
    return index_path.with_suffix(".keywords")


def opened(load: Callable[[], T], empty: T) -> tuple[T, str]:
    """Return an index from its files, or an empty index and the reason why the files cannot be used."""
    try:
        return load(), ""
    except IndexDamaged as damage:
        return empty, damage.reason


def differences(index: VectorIndex | KeywordIndex, stored: frozenset[int], reason: str) -> tuple[list[int], list[int]]:
    """Return the passages that an index lacks, and those it must not contain. Log their number and the reason."""
    missing, gone = sorted(stored - index.passage_ids), sorted(index.passage_ids - stored)
    if missing or gone:
        log.warning(
            "the %s index is updated from the database, %d passages to add and %d to remove: %s",
            *("vector" if isinstance(index, VectorIndex) else "keyword", len(missing), len(gone)),
            reason or "it contains other passages",
        )
    return missing, gone


def others_nearby(index: VectorIndex, vector: Vectors, id_: int, count: int, within: Selection | None) -> list[int]:
    """Return the `count` passages nearest to the vector of passage `id_`, without this passage."""
    wanted = count + 1
    while True:
        wanted = min(4 * wanted, len(index))
        hits = index.search(vector, wanted, within=within)
        others = [other for other in dict.fromkeys(passage_id(hit.id) for hit in hits) if other != id_]
        if len(others) >= count or wanted == len(index):
            return others[:count]
