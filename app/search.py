"""The vector index of this desk: opened from its file, or rebuilt from the database, and swapped as a whole.

Readers take a snapshot and keep it for one search; a change makes a new snapshot. The database is the truth: an
index file that is missing, damaged, of another embedder or of other passages is rebuilt from stored embeddings.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.library import Library
from app.stored import Replaced, Vectors
from retrieval.documents import Passage
from retrieval.embedding import Embedder
from retrieval.errors import IndexDamaged
from retrieval.index import Hit, VectorIndex
from retrieval.keywords import KeywordIndex
from retrieval.passage_vectors import embed_passages
from retrieval.retriever import Retriever

log = logging.getLogger(__name__)

SENTENCES_KEPT = 20_000
"""Vectors of sentences kept in memory, 30 MB of the bundled embedder's."""
EMBEDDER = "embedder"
"""Fact that names the embedder of the stored embeddings."""


class Search:
    """Finds passages for a question. Safe to use from any thread."""

    def __init__(self, library: Library, embedder: Embedder, path: Path) -> None:
        self.embedder = embedder
        self._library, self._path = library, path
        self._lock = threading.Lock()
        self._sentences: dict[str, np.ndarray[Any, Any]] = {}
        self._use_this_embedder()
        self._index = self._open()
        self._retriever = self._new_retriever()

    def find(self, queries: Sequence[str], count: int) -> list[Hit]:
        """The best passages over several wordings of one question, best first."""
        return self._retriever.search(queries, count)

    def embed(self, passages: Sequence[tuple[Sequence[str], str]]) -> list[Vectors]:
        """The vectors of passages, given as heading path and text: for each its own, one a row."""
        numbered = {
            number: Passage(text=text, heading_path=tuple(path), ordinal=number)
            for number, (path, text) in enumerate(passages)
        }
        ids, vectors = embed_passages(self.embedder, numbered, count_words)
        rows = np.array(ids)
        return [vectors[rows == number] for number in numbered]

    def embed_sentences(self, texts: Sequence[str]) -> Vectors:
        """Vectors of short texts `[texts, dimension]`, of length 1; those of the latest are kept, because the same
        passages are asked about again.
        """
        found = {text: self._sentences.get(text) for text in texts}
        unknown = [text for text, vector in found.items() if vector is None]
        if unknown:
            found.update(zip(unknown, self.embedder.embed_documents(unknown), strict=True))
        with self._lock:
            self._sentences.update((text, vector) for text, vector in found.items() if vector is not None)
            while len(self._sentences) > SENTENCES_KEPT:
                del self._sentences[next(iter(self._sentences))]
        return np.array([found[text] for text in texts])

    def nearest(self, ids: Sequence[int], count: int) -> dict[int, list[int]]:
        """For each of these passages the `count` others that are closest to the whole of it (cosine), closest first.
        What was applied is there, published or not.
        """
        numbers, vectors = self._library.vectors(self.embedder.dimension, ids)
        with self._lock:
            index = self._index
        found: dict[int, list[int]] = {}
        for id_, vector in zip(numbers.tolist(), vectors, strict=True):
            if id_ not in found:  # the first of a passage's vectors is that of the whole
                hits = index.search(vector, count + 1)
                found[id_] = [hit.id for hit in hits if hit.id != id_][:count]
        return found

    def apply(self, replaced: Replaced) -> None:
        """Follow a change of the library. Questions see it, and the file has it, with `publish`."""
        ids, vectors = self._library.vectors(self.embedder.dimension, replaced.new)
        with self._lock:
            self._index = self._index.updated(replaced.removed, ids.tolist(), vectors)

    def publish(self) -> None:
        """Let questions see what was applied, all at once, and write the index. Raises OSError; then the old file is
        whole and questions see the new state.
        """
        with self._lock:
            self._retriever = self._new_retriever()
            self._index.save(self._path)

    def _new_retriever(self) -> Retriever:
        return Retriever(self.embedder, self._index, KeywordIndex(*self._library.searchable()))

    def _open(self) -> VectorIndex:
        ids, vectors = self._library.vectors(self.embedder.dimension)
        try:
            index = VectorIndex.load(self._path, self.embedder.name, self.embedder.dimension)
            if index.passage_ids == frozenset(ids.tolist()):
                return index
            reason = "it holds other passages than the database"
        except IndexDamaged as damage:
            reason = damage.reason
        index = VectorIndex(self.embedder.name, self.embedder.dimension)
        if len(ids):
            log.warning("the vector index is rebuilt from the database: %s", reason)
            index = index.updated((), ids.tolist(), vectors)
            index.save(self._path)
        return index

    def _use_this_embedder(self) -> None:
        """Embed all passages anew if the stored embeddings are another model's."""
        stored = self._library.fact(EMBEDDER)
        if stored == self.embedder.name:
            return
        if stored is not None and self._library.counts().passages:
            log.warning(
                "the embedder changed from %s to %s: all passages are embedded anew",
                stored,
                self.embedder.name,
            )
            for document in self._library.documents():
                passages = self._library.passages_of(document.path)
                vectors = self.embed([(p.heading_path, p.text) for p in passages])
                self._library.set_embeddings({p.id: rows for p, rows in zip(passages, vectors, strict=True)})
        self._library.set_fact(EMBEDDER, self.embedder.name)


def count_words(text: str) -> int:
    """Roughly the embedder's own count of tokens, with its tokenizer left alone."""
    return len(text) // 4
