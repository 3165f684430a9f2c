"""Changes of documents, their passages and neighbours, and the record of the servers that have applied them.

A document is replaced or removed in short transactions. Questions and answers are stored between them.

A transaction changes at most `ROWS_AT_ONCE` passages. The document has no content hash until the last transaction, so
the next run repeats an interrupted change. New passages are stored first and old ones removed last: questions find the
old ones until the end. Title and collection also change at the end.

A passage has a module key only if that module was encoded with its stored neighbours. Therefore a change of its
neighbours deletes its module key in the same transaction. The generation is a number that grows in the transaction of
every change. Other servers compare it to notice changes (`app.desk.repeating`). Times are taken from the database, so
the servers' clocks do not matter.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import uuid4

from sqlalchemy import DateTime, Row, Select, bindparam, delete, func, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.documents import NewDocument, NewPassage, Replaced, Vectors
from app.storage.database import Database
from app.storage.tables import DeskRow, DocumentRow, FactRow, PassageNeighbourRow, PassageRow

_GENERATION = "generation"


def count_change(session: Session) -> None:
    """Increment the generation, because this transaction changes passages, their neighbours or the FAQ."""
    session.merge(FactRow(key=_GENERATION, value=str(generation_of(session) + 1)))
    session.flush()


def generation_of(session: Session) -> int:
    return int(session.scalar(select(FactRow.value).where(FactRow.key == _GENERATION)) or 0)


T = TypeVar("T")
AnySelect = Select[*tuple[Any, ...]]
AnyRow = Row[*tuple[Any, ...]]

STORED_AS = "<f4"
ROWS_AT_ONCE = 50
"""Maximum passages per transaction, about 20 KB each with vectors. Customers' questions wait for a transaction."""
_IN_A_QUERY = 10_000  # SQLite takes 32,766 parameters at most


def insert_passages(session: Session, document_id: int, passages: Mapping[int, NewPassage]) -> dict[int, int]:
    """Insert new passages, given by ordinal. Return their ids by ordinal. A passage without an embedding gets the
    embedding of a passage with the same content in its document.
    """
    missing = {passage.content_hash for passage in passages.values() if passage.embedding is None}
    query = select(PassageRow.content_hash, PassageRow.embedding).where(PassageRow.document_id == document_id)
    known = {row.content_hash: row.embedding for row in where_in(session, query, PassageRow.content_hash, missing)}
    rows = [
        {
            "document_id": document_id,
            "ordinal": ordinal,
            "heading_path": passage.heading_path,
            "text": passage.text,
            "content_hash": passage.content_hash,
            "num_tokens": passage.num_tokens,
            "embedding": known[passage.content_hash] if passage.embedding is None else packed(passage.embedding),
        }
        for ordinal, passage in passages.items()
    ]
    if not rows:
        return {}
    returning = insert(PassageRow).returning(PassageRow.id, sort_by_parameter_order=True)
    return dict(zip(passages, session.scalars(returning, rows), strict=True))


def update_passages(session: Session, rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        session.execute(update(PassageRow), rows)


def neighbours_of(session: Session, ids: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Return the stored neighbours of these passages, closest first."""
    neighbour = PassageNeighbourRow
    query = select(neighbour.passage_id, neighbour.neighbour_id).order_by(neighbour.passage_id, neighbour.rank)
    found: dict[int, tuple[int, ...]] = dict.fromkeys(ids, ())
    for row in where_in(session, query, neighbour.passage_id, ids):
        found[row.passage_id] += (row.neighbour_id,)
    return found


def drop_neighbours(session: Session, ids: Collection[int]) -> set[str]:
    """Delete the neighbours and the module keys of passages, and return these keys."""
    query = select(PassageRow.module_key).where(PassageRow.module_key.is_not(None))
    keys = {row.module_key for row in where_in(session, query, PassageRow.id, ids)}
    for some in in_pieces(sorted(ids), _IN_A_QUERY):
        session.execute(delete(PassageNeighbourRow).where(PassageNeighbourRow.passage_id.in_(some)))
        session.execute(update(PassageRow).where(PassageRow.id.in_(some)).values(module_key=None))
    return keys


def set_neighbours(session: Session, chosen: Mapping[int, Sequence[int]]) -> tuple[str, ...]:
    """Store neighbours: see `Library.set_neighbours`. A passage with the same neighbours as before keeps its module."""
    named = {*chosen, *(id_ for ids in chosen.values() for id_ in ids)}
    there = {row.id for row in where_in(session, select(PassageRow.id), PassageRow.id, named)}
    wanted = {id_: tuple(n for n in ids if n in there) for id_, ids in chosen.items() if id_ in there}
    before = neighbours_of(session, wanted)
    new = {id_: ids for id_, ids in wanted.items() if ids != before[id_]}
    if new:
        count_change(session)
    dropped = drop_neighbours(session, new)
    rows = [
        {"passage_id": id_, "rank": rank, "neighbour_id": neighbour}
        for id_, ids in new.items()
        for rank, neighbour in enumerate(ids)
    ]
    if rows:
        session.execute(insert(PassageNeighbourRow), rows)
    return unused(session, dropped)


def unused(session: Session, keys: Collection[str]) -> tuple[str, ...]:
    used = where_in(session, select(PassageRow.module_key), PassageRow.module_key, keys)
    return tuple(sorted(set(keys) - {row.module_key for row in used}))


def packed(vectors: Vectors) -> bytes:
    return vectors.astype(STORED_AS).tobytes()


def unpacked(stored: bytes, dimension: int) -> Vectors:
    import numpy as np  # most commands read no vectors

    return np.frombuffer(stored, STORED_AS).reshape(-1, dimension)


def where_in(
    session: Session, query: AnySelect, column: InstrumentedAttribute[Any], values: Collection[T]
) -> Iterator[AnyRow]:
    """Return the rows of a query whose column has one of the values, in as many queries as needed."""
    one_of = query.where(column.in_(bindparam("some", expanding=True)))  # fast: SQLAlchemy examines no value
    for some in in_pieces(list(values), _IN_A_QUERY):
        yield from session.execute(one_of, {"some": some})


def in_pieces(values: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), most):
        yield values[start : start + most]


UNFINISHED = ""


def document_row(session: Session, path: str) -> DocumentRow | None:
    return session.scalar(select(DocumentRow).where(DocumentRow.path == path))


class DocumentChange:
    """The change from the stored passages of a document to its new ones. before: the document; None if it is new."""

    def __init__(self, database: Database, path: str, passages: Sequence[NewPassage] = ()) -> None:
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
        self._ids, self._moved = dict[int, int](), list[dict[str, Any]]()  # kept passages by ordinal
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
        """Apply the change and return it. document: the new document; None removes the stored one."""
        before, kept = self.before, tuple(self._ids.values())
        is_renamed = before is not None and document is not None and before.title != document.title
        is_moved = before is not None and document is not None and before.collection != document.collection
        changed = kept if is_renamed or is_moved else ()
        steps = {"new": self._new, "moved": self._moved, "changed": changed, "gone": self._gone}
        pieces = list(in_pieces([(kind, one) for kind, some in steps.items() for one in some], ROWS_AT_ONCE)) or [[]]
        removed_module_keys: tuple[str, ...] = ()
        for number, piece in enumerate(pieces, 1):
            with self._database.write() as session:
                row = document_row(session, self._path)
                if row is None:
                    assert document is not None
                    row = DocumentRow(path=self._path, title=document.title, collection=document.collection)
                    row.url, row.loaded_at, row.num_passages = document.url, datetime.now(UTC), 0
                    session.add(row)
                row.content_hash = UNFINISHED
                session.flush()
                self._take(session, row.id, piece, is_moved=is_moved)
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

    def _take(self, session: Session, document_id: int, piece: Sequence[tuple[str, Any]], *, is_moved: bool) -> None:
        """Apply a part of a change. If a changed passage is a neighbour of another passage, all neighbours of that
        other passage are deleted and chosen again. A new title or collection also changes neighbours. piece: ordinals
        of new passages, rows of moved passages, numbers of changed and deleted passages.
        """
        new, moved, changed, gone = (
            [one for kind, one in piece if kind == wanted] for wanted in ("new", "moved", "changed", "gone")
        )
        self._ids |= insert_passages(session, document_id, {ordinal: self._new[ordinal] for ordinal in new})
        update_passages(session, moved)
        having = select(PassageNeighbourRow.passage_id)
        rows = where_in(session, having, PassageNeighbourRow.neighbour_id, [*changed, *gone])
        lost = {row.passage_id for row in rows} - self._gone
        self._dropped |= drop_neighbours(session, lost.union(changed) if is_moved else lost)
        session.execute(delete(PassageRow).where(PassageRow.id.in_(gone)))

    def _end(self, session: Session, row: DocumentRow, document: NewDocument | None) -> None:
        if document is None:
            session.delete(row)
            return
        row.title, row.content_hash, row.collection = document.title, document.content_hash, document.collection
        row.loaded_at, row.num_passages, row.url = datetime.now(UTC), len(self._passages), document.url
        row.remarks = list(document.remarks or ())
        session.flush()


ALIVE: Final = timedelta(seconds=30)
"""A server without a heartbeat for this long counts as stopped. Others do not wait for it."""
_NOW = func.timezone("utc", func.clock_timestamp(), type_=DateTime())


class Desks:
    """This server in the database's list of servers. Safe to use from any thread; methods may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database, self._id = database, uuid4().hex

    def note(self, generation: int) -> None:
        """Record that this server is alive and has applied this generation. Remove stopped servers."""
        with self._database.write() as session:
            session.execute(delete(DeskRow).where(DeskRow.id == self._id))
            session.execute(delete(DeskRow).where(DeskRow.seen < _NOW - ALIVE))
            session.execute(insert(DeskRow).values(id=self._id, seen=_NOW, generation=generation))

    def leave(self) -> None:
        with self._database.write() as session:
            session.execute(delete(DeskRow).where(DeskRow.id == self._id))

    def behind(self, generation: int) -> int:
        """Return the number of other live servers that have not applied all changes up to this generation."""
        others = (DeskRow.id != self._id, DeskRow.generation < generation, DeskRow.seen >= _NOW - ALIVE)
        with self._database.read() as session:
            return session.scalar(select(func.count()).select_from(DeskRow).where(*others)) or 0
