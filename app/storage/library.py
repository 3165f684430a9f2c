"""Documents and passages in the database. The index and encoded modules can be rebuilt from it.

A change is one transaction; a large change is several short ones (`document_change`). If a document is replaced, a
passage with the same content keeps its row, so its number, embedding and module stay. Paths and names are sorted by
code point, as in SQLite, because PostgreSQL's order depends on the settings of the database.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from operator import attrgetter, itemgetter
from pathlib import PurePath
from urllib.parse import quote

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.documents import (
    CollectionSize,
    Counts,
    Ids,
    ModuleLabel,
    ModuleSize,
    NewDocument,
    NewPassage,
    Replaced,
    StoredDocument,
    StoredPassage,
    Vectors,
    passage_label,
)
from app.domain.errors import DeskError
from app.storage.database import Database
from app.storage.document_change import (
    ROWS_AT_ONCE,
    STORED_AS,
    AnyRow,
    AnySelect,
    DocumentChange,
    document_row,
    generation_of,
    in_pieces,
    neighbours_of,
    packed,
    set_neighbours,
    unpacked,
    update_passages,
    where_in,
)
from app.storage.tables import (
    DocumentRow,
    FactRow,
    PassageNeighbourRow,
    PassageRow,
    PassageStatementsRow,
    StagedEmbeddingRow,
)

log = logging.getLogger(__name__)


class Library:
    """Stored documents. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, database: Database, page_urls: Mapping[str, str] | None = None) -> None:
        self._database, self._page_urls = database, dict(page_urls or {})
        self.is_shared = database.is_shared

    def find(self, path: str) -> StoredDocument | None:
        with self._database.read() as session:
            row = document_row(session, path)
            return None if row is None else row.to(StoredDocument)

    def documents(self) -> list[StoredDocument]:
        rows = self._database.values(select(DocumentRow))
        return sorted((row.to(StoredDocument) for row in rows), key=attrgetter("path"))

    def set_remarks(self, path: str, remarks: Sequence[str]) -> None:
        with self._database.write() as session:
            session.execute(update(DocumentRow).where(DocumentRow.path == path).values(remarks=list(remarks)))

    def counts(self) -> Counts:
        query = select(func.count(), func.coalesce(func.sum(DocumentRow.num_passages), 0))
        [(documents, passages)] = self._database.rows(query)
        return Counts(documents=documents, passages=passages)

    def known_hashes(self, path: str) -> frozenset[str]:
        """Return the content hashes of a document's stored passages, which need no new embedding."""
        query = select(PassageRow.content_hash).join(DocumentRow).where(DocumentRow.path == path)
        return frozenset(self._database.values(query))

    def passages(self, ids: Sequence[int]) -> list[StoredPassage]:
        with self._database.read() as session:
            rows = where_in(session, _passage_query(), PassageRow.id, ids)
            by_id = {passage.id: passage for passage in _stored_passages(session, rows, self._page_urls)}
        return [by_id[id_] for id_ in ids if id_ in by_id]

    def passages_of(self, path: str, first: int = 0, most: int | None = None) -> list[StoredPassage]:
        """Return the passages of one document, in order. first: number of passages to skip. most: maximum number."""
        query = _passage_query().where(DocumentRow.path == path).order_by(PassageRow.ordinal).offset(first).limit(most)
        with self._database.read() as session:
            return _stored_passages(session, session.execute(query), self._page_urls)

    def headings(self) -> list[tuple[str, tuple[str, ...]]]:
        query = select(DocumentRow.path, PassageRow.ordinal, PassageRow.heading_path).join(DocumentRow)
        rows = sorted(self._database.rows(query), key=itemgetter(0, 1))
        return [(path, tuple(headings)) for path, _, headings in rows]

    def ids_of(self, paths: Collection[str]) -> frozenset[int]:
        return self._ids(DocumentRow.path, paths)

    def ids_in(self, collections: Collection[str]) -> frozenset[int]:
        return self._ids(DocumentRow.collection, collections)

    def _ids(self, column: InstrumentedAttribute[str], values: Collection[str]) -> frozenset[int]:
        query = select(PassageRow.id).join(DocumentRow)
        with self._database.read() as session:
            return frozenset(row.id for row in where_in(session, query, column, values))

    def collections(self) -> list[str]:
        """Return all collections, sorted by name. Documents without a collection are in ""."""
        return sorted(self._database.values(select(DocumentRow.collection).distinct()))

    def collection_sizes(self) -> list[CollectionSize]:
        document = DocumentRow
        tokens = func.coalesce(func.sum(PassageRow.num_tokens), 0)
        query = select(document.collection, func.count(document.id.distinct()), func.count(PassageRow.id), tokens)
        query = query.outerjoin(PassageRow).group_by(document.collection)
        return [
            CollectionSize(name=name, documents=documents, passages=passages, tokens=num_tokens)
            for name, documents, passages, num_tokens in sorted(self._database.rows(query), key=itemgetter(0))
        ]

    def all_ids(self, *, only_alone: bool = False, only_unencoded: bool = False) -> list[int]:
        """Return passage ids, ascending. only_alone: only without neighbours. only_unencoded: only without a module."""
        query = select(PassageRow.id).order_by(PassageRow.id)
        if only_alone:
            query = query.where(PassageRow.id.not_in(select(PassageNeighbourRow.passage_id)))
        if only_unencoded:
            query = query.where(PassageRow.module_key.is_(None))
        return list(self._database.values(query))

    def module_sizes(self) -> list[ModuleSize]:
        query = select(PassageRow.id, PassageRow.num_tokens, PassageRow.module_key).order_by(PassageRow.id)
        return [ModuleSize(**row._mapping) for row in self._database.rows(query)]

    def module_keys(self) -> frozenset[str]:
        return frozenset(key for key in self._database.values(select(PassageRow.module_key)) if key is not None)

    def vectors(self, dimension: int, ids: Sequence[int]) -> tuple[Ids, Vectors]:
        """Return the content of the vector index for some passages, in order: the passage id of each vector
        `[vectors]`, and the vectors `[vectors, dimension]`. A vector with NaN or infinity is replaced by zeros, and the
        log names its passage.
        """
        import numpy as np  # most commands read no vectors

        rows = self._rows(select(PassageRow.id, PassageRow.embedding), ids)
        width = dimension * np.dtype(STORED_AS).itemsize
        if any(len(row.embedding) % width for row in rows):
            raise DeskError("the stored embeddings differ in length: ingest everything again", code="embeddings-mixed")
        vectors = unpacked(b"".join(row.embedding for row in rows), dimension).astype(np.float32)
        numbers = np.array([row.id for row in rows for _ in range(len(row.embedding) // width)], np.int64)
        bad = ~np.isfinite(vectors).all(axis=1)
        if bad.any():
            vectors[bad] = 0
            for passage in self.passages(np.unique(numbers[bad]).tolist()):
                log.warning(
                    "%s: the vector of %r has undefined numbers, so only keyword search finds it: forget the document "
                    "and ingest it again",
                    *(passage.document, passage.label),
                )
        return numbers, vectors

    def searchable(self, ids: Sequence[int]) -> dict[int, list[str]]:
        """Return the texts of each passage's windows for the keyword index, by passage id."""
        from retrieval.search.vector_index import window_texts  # imports faiss, which lists of documents do not need

        rows = self._rows(select(PassageRow.id, PassageRow.heading_path, PassageRow.text), ids)
        return {row.id: window_texts(row.heading_path, row.text) for row in rows}

    def _rows(self, query: AnySelect, ids: Sequence[int]) -> list[AnyRow]:
        with self._database.read() as session:
            return list(where_in(session, query.order_by(PassageRow.id), PassageRow.id, ids))

    def module_labels(self, keys: Collection[str]) -> dict[str, ModuleLabel]:
        """Return the passage of each module, by key; the oldest passage if several use it. Unknown keys are skipped."""
        passage = PassageRow
        query = select(passage.module_key, DocumentRow.path, passage.heading_path, passage.ordinal)
        query = query.join(DocumentRow).order_by(passage.id.desc())
        with self._database.read() as session:
            return {
                key: ModuleLabel(document=path, passage=passage_label(headings, ordinal))
                for key, path, headings, ordinal in where_in(session, query, passage.module_key, keys)
            }

    def passage_of_module(self, key: str) -> StoredPassage | None:
        query = select(PassageRow.id).where(PassageRow.module_key == key).order_by(PassageRow.id).limit(1)
        return next(iter(self.passages(self._database.values(query))), None)

    def fact(self, key: str) -> str | None:
        return next(iter(self._database.values(select(FactRow.value).where(FactRow.key == key))), None)

    def generation(self) -> int:
        """Return a number that grows with every change of documents or the FAQ, also by other servers."""
        with self._database.read() as session:
            return generation_of(session)

    def alone(self) -> AbstractContextManager[Callable[[], bool]]:
        return self._database.alone("documents")

    def set_fact(self, key: str, value: str) -> None:
        with self._database.write() as session:
            session.merge(FactRow(key=key, value=value))

    def replace(self, documents: Sequence[tuple[NewDocument, Sequence[NewPassage]]]) -> list[Replaced]:
        """Store documents and replace those with the same paths. Raises ValueError for a passage without an embedding
        if its document had no passage with the same content. Call this and `remove` within `alone` only.
        """
        return [
            DocumentChange(self._database, document.path, passages).run(document) for document, passages in documents
        ]

    def stage(self, embedder: str, vectors: Mapping[str, Vectors]) -> None:
        """Store vectors of passages before the passages themselves, by content hash: see `StagedEmbeddingRow`."""
        with self._database.write() as session:
            for hash_, rows in vectors.items():
                session.merge(StagedEmbeddingRow(content_hash=f"{embedder} {hash_}", embedding=packed(rows)))

    def staged(self, embedder: str, hashes: Collection[str], dimension: int) -> dict[str, Vectors]:
        import numpy as np

        named = {f"{embedder} {hash_}": hash_ for hash_ in hashes}
        query = select(StagedEmbeddingRow.content_hash, StagedEmbeddingRow.embedding)
        with self._database.read() as session:
            rows = list(where_in(session, query, StagedEmbeddingRow.content_hash, named))
        found = {named[row.content_hash]: unpacked(row.embedding, dimension) for row in rows}
        return {hash_: vectors for hash_, vectors in found.items() if np.isfinite(vectors).all()}

    def clear_staged(self) -> None:
        hashes = self._database.values(select(StagedEmbeddingRow.content_hash))
        for some in in_pieces(hashes, ROWS_AT_ONCE):
            with self._database.write() as session:
                session.execute(delete(StagedEmbeddingRow).where(StagedEmbeddingRow.content_hash.in_(some)))

    def remove(self, paths: Sequence[str]) -> list[Replaced]:
        """Delete documents and their passages. Return the change of each existing document. Quotes in stored answers
        stay: `History.forget_document` removes them and must be called before.
        """
        changes = (DocumentChange(self._database, path) for path in dict.fromkeys(paths))
        removed = [change.run(None) for change in changes if change.before is not None]
        self._database.flush_log()
        return removed

    def set_module_keys(self, keys: Mapping[int, str | None]) -> None:
        """Store module keys by passage number. This method and those below ignore deleted passages."""
        self._update_passages("module_key", keys)

    def set_neighbours(self, chosen: Mapping[int, Sequence[int]]) -> tuple[str, ...]:
        """Replace the neighbours of passages, closest first. A passage whose neighbours change loses its module. Return
        the modules that no passage uses any more.
        """
        unused = set[str]()
        for some in in_pieces(list(chosen), ROWS_AT_ONCE):
            with self._database.write() as session:
                unused.update(set_neighbours(session, {id_: chosen[id_] for id_ in some}))
        return tuple(sorted(unused))

    def set_embeddings(self, vectors: Mapping[int, Vectors]) -> None:
        self._update_passages("embedding", {id_: packed(rows) for id_, rows in vectors.items()})

    def statement_vectors(self, encoder: str, ids: Collection[int]) -> dict[int, bytes]:
        row = PassageStatementsRow
        query = select(row.passage_id, row.vectors).where(row.encoder == encoder)
        with self._database.read() as session:
            return {found.passage_id: found.vectors for found in where_in(session, query, row.passage_id, ids)}

    def without_statements(self, encoder: str) -> list[int]:
        read = select(PassageStatementsRow.passage_id).where(PassageStatementsRow.encoder == encoder)
        query = select(PassageRow.id).where(PassageRow.id.not_in(read)).order_by(PassageRow.id)
        return list(self._database.values(query))

    def keep_statement_vectors(self, encoder: str, vectors: Mapping[int, bytes]) -> None:
        with self._database.write() as session:
            for row in where_in(session, select(PassageRow.id), PassageRow.id, vectors):
                session.merge(PassageStatementsRow(passage_id=row.id, encoder=encoder, vectors=vectors[row.id]))

    def _update_passages(self, column: str, values: Mapping[int, object]) -> None:
        for some in in_pieces(list(values), ROWS_AT_ONCE):
            with self._database.write() as session:
                there = where_in(session, select(PassageRow.id), PassageRow.id, some)
                update_passages(session, [{"id": row.id, column: values[row.id]} for row in there])


def _passage_query() -> AnySelect:
    one, of = PassageRow, DocumentRow
    own = (one.id, one.ordinal, one.heading_path, one.text, one.content_hash, one.num_tokens, one.module_key)
    query = select(*own, of.path.label("document"), of.title, of.collection, of.url)  # quicker than whole rows
    return query.select_from(one).join(of)


def _stored_passages(session: Session, rows: Iterable[AnyRow], page_urls: Mapping[str, str]) -> list[StoredPassage]:
    passages = [_with_url(_stored_passage(row), page_urls) for row in rows]
    neighbours = neighbours_of(session, [passage.id for passage in passages])
    wanted = {id_ for ids in neighbours.values() for id_ in ids}
    by_id = {row.id: _stored_passage(row) for row in where_in(session, _passage_query(), PassageRow.id, wanted)}
    return [replace(p, neighbours=tuple(by_id[id_] for id_ in neighbours[p.id])) for p in passages]


def _with_url(passage: StoredPassage, page_urls: Mapping[str, str]) -> StoredPassage:
    pattern = page_urls.get(passage.collection, "")
    if passage.url or not pattern:
        return passage
    return replace(passage, url=pattern.replace("{name}", quote(PurePath(passage.document).stem)))


def _stored_passage(row: AnyRow) -> StoredPassage:
    return StoredPassage(**{**row._mapping, "heading_path": tuple(row.heading_path)})
