"""Replaces or removes one document in short transactions. Questions and answers are stored between them.

A transaction changes at most `ROWS_AT_ONCE` passages. Until the last one the document has no content hash, so an
interrupted change is repeated by the next run. New passages come first and old ones go last: questions find the old
ones until the end. Title and collection also change at the end.

Out of scope: which server may change documents (`Library.alone`), search during the change (`app.knowledge.finder`).
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.domain.documents import NewDocument, NewPassage, Replaced
from app.storage.database import Database
from app.storage.passage_rows import (
    ROWS_AT_ONCE,
    count_change,
    delete_passages,
    drop_neighbours,
    having_neighbours,
    in_pieces,
    insert_passages,
    packed,
    unused,
    update_passages,
)
from app.storage.tables import DocumentRow, PassageRow

UNFINISHED = ""
"""Content hash of a document during its change."""


class _PassageStep(NamedTuple):
    """A step for one passage. new: to insert at `ordinal`. moved: new values of its row. changed: its number, if its
    title or collection changes. gone: its number, if it is deleted.
    """

    ordinal: int = 0
    new: NewPassage | None = None
    moved: dict[str, Any] | None = None
    changed: int | None = None
    gone: int | None = None


def document_row(session: Session, path: str) -> DocumentRow | None:
    """Return the row of the document with exactly this path."""
    return session.scalar(select(DocumentRow).where(DocumentRow.path == path))


def replace_document(database: Database, document: NewDocument, passages: Sequence[NewPassage]) -> Replaced:
    """Store a document in place of the one with the same path; rows of unchanged content stay. Raises ValueError for a
    passage without an embedding if the document had no passage with the same content.
    """
    return _Change(database, document.path, passages).run(document)


def remove_document(database: Database, path: str) -> Replaced | None:
    """Delete a document with its passages. Returns None if there is no such document."""
    change = _Change(database, path, ())
    return None if change.before is None else change.run(None)


class _Change:
    """The change from the stored passages of a document to its new ones."""

    def __init__(self, database: Database, path: str, passages: Sequence[NewPassage]) -> None:
        self._database, self._path, self._passages = database, path, passages
        columns = (PassageRow.id, PassageRow.content_hash, PassageRow.module_key, PassageRow.ordinal)
        with database.read() as session:
            self.before = document_row(session, path)
            query = select(*columns, PassageRow.num_tokens).order_by(PassageRow.ordinal.desc())
            its = PassageRow.document_id == (None if self.before is None else self.before.id)
            old = session.execute(query.where(its)).all()
        known, unmatched = {row.content_hash for row in old}, defaultdict(list)
        for row in old:
            unmatched[row.content_hash].append(row)
        self._ids, self._moved = dict[int, int](), list[dict[str, Any]]()  # kept ones by ordinal
        self._new = dict[int, NewPassage]()
        for ordinal, passage in enumerate(passages):
            if matching := unmatched[passage.content_hash]:
                row = matching.pop()
                self._ids[ordinal] = row.id
                if (row.ordinal, row.num_tokens) != (ordinal, passage.num_tokens):
                    self._moved.append({"id": row.id, "ordinal": ordinal, "num_tokens": passage.num_tokens})
            elif passage.embedding is None and passage.content_hash not in known:
                raise ValueError(f"passage {ordinal} is new to its document and has no embedding")
            else:
                self._new[ordinal] = passage
        self._gone = {row.id for rows in unmatched.values() for row in rows}
        self._dropped = {row.module_key for row in old if row.id in self._gone and row.module_key is not None}

    def run(self, document: NewDocument | None) -> Replaced:
        """Change the document, or delete it. Raises DeskError; the steps before it stay."""
        before, kept = self.before, tuple(self._ids.values())
        is_renamed = before is not None and document is not None and before.title != document.title
        is_moved = before is not None and document is not None and before.collection != document.collection
        steps = [
            *(_PassageStep(ordinal=ordinal, new=passage) for ordinal, passage in self._new.items()),
            *(_PassageStep(moved=row) for row in self._moved),
            *(_PassageStep(changed=id_) for id_ in kept if is_renamed or is_moved),
            *(_PassageStep(gone=id_) for id_ in self._gone),
        ]
        pieces = list(in_pieces(steps, ROWS_AT_ONCE)) or [[]]
        removed_module_keys: tuple[str, ...] = ()
        for number, piece in enumerate(pieces, 1):
            embeddings = {
                one.ordinal: packed(one.new.embedding) for one in piece if one.new and one.new.embedding is not None
            }
            with self._database.write() as session:
                row = document_row(session, self._path)
                if row is None:
                    assert document is not None
                    row = DocumentRow(path=self._path, title=document.title, collection=document.collection)
                    row.url, row.loaded_at, row.num_passages = document.url, datetime.now(UTC), 0
                    session.add(row)
                row.content_hash = UNFINISHED
                session.flush()
                self._take(session, row.id, piece, embeddings, is_moved=is_moved)
                if number == len(pieces):
                    count_change(session)
                    self._end(session, row, document)
                    removed_module_keys = unused(session, self._dropped)
        return Replaced(
            ids=tuple(self._ids[ordinal] for ordinal in range(len(self._passages))),
            kept=kept,
            new=tuple(self._ids[ordinal] for ordinal in self._new),
            removed=tuple(sorted(self._gone)),
            removed_module_keys=removed_module_keys,
        )

    def _take(
        self,
        session: Session,
        document_id: int,
        piece: Sequence[_PassageStep],
        embeddings: dict[int, bytes],
        *,
        is_moved: bool,
    ) -> None:
        """Other passages may have one that changes as neighbour: all neighbours of those are deleted, so that they are
        chosen again. The title is the heading of passages without headings; those of another collection are no
        neighbours.
        """
        new = {one.ordinal: one.new for one in piece if one.new is not None}
        self._ids |= insert_passages(session, document_id, new, embeddings)
        update_passages(session, [one.moved for one in piece if one.moved is not None])
        gone = [one.gone for one in piece if one.gone is not None]
        changed = [one.changed for one in piece if one.changed is not None]
        lost = having_neighbours(session, [*changed, *gone]) - self._gone
        self._dropped |= drop_neighbours(session, lost.union(changed) if is_moved else lost)
        delete_passages(session, gone)

    def _end(self, session: Session, row: DocumentRow, document: NewDocument | None) -> None:
        if document is None:
            session.delete(row)
            return
        row.title, row.content_hash, row.collection = document.title, document.content_hash, document.collection
        row.loaded_at, row.num_passages, row.url = datetime.now(UTC), len(self._passages), document.url
        session.flush()
