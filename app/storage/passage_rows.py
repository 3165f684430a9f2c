"""Changes of passages and their neighbours, within a transaction of `library`, and the generation of the documents.

A passage has a module key only if that module was encoded with the stored neighbours of the passage. Therefore a change
of its neighbours deletes its module key in the same transaction. The generation is a number that grows with every
change, in the same transaction. Other servers of the database notice the change by it (`app.desk.repeating`).

Out of scope: rows of documents, and queries (`library`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import Row, Select, delete, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.documents import NewPassage, Vectors
from app.storage.tables import FactRow, PassageNeighbourRow, PassageRow

_GENERATION = "generation"


def count_change(session: Session) -> None:
    """Increment the generation, because this transaction changes passages, their neighbours or the FAQ."""
    session.merge(FactRow(key=_GENERATION, value=str(generation_of(session) + 1)))
    session.flush()


def generation_of(session: Session) -> int:
    """Return the generation."""
    return int(session.scalar(select(FactRow.value).where(FactRow.key == _GENERATION)) or 0)


T = TypeVar("T")
AnySelect = Select[*tuple[Any, ...]]
AnyRow = Row[*tuple[Any, ...]]

STORED_AS = np.dtype("<f4")
ROWS_AT_ONCE = 50
"""Passages that one transaction changes, about 20 KB each with their vectors. Customers' questions wait for it."""
_IN_A_QUERY = 10_000  # SQLite takes 32,766 parameters at most


def insert_passages(
    session: Session, document_id: int, passages: Mapping[int, NewPassage], embeddings: Mapping[int, bytes]
) -> dict[int, int]:
    """Insert new passages, by ordinal; returns their numbers by ordinal. embeddings: as they are stored, by ordinal. A
    passage without one gets that of a passage with the same content in its document.
    """
    missing = {passage.content_hash for ordinal, passage in passages.items() if ordinal not in embeddings}
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
            "embedding": embeddings[ordinal] if ordinal in embeddings else known[passage.content_hash],
        }
        for ordinal, passage in passages.items()
    ]
    if not rows:
        return {}
    returning = insert(PassageRow).returning(PassageRow.id, sort_by_parameter_order=True)
    return dict(zip(passages, session.scalars(returning, rows), strict=True))


def update_passages(session: Session, rows: Sequence[Mapping[str, object]]) -> None:
    """Update rows of passages. Each change has the "id" and the new values."""
    if rows:
        session.execute(update(PassageRow), rows)


def delete_passages(session: Session, ids: Sequence[int]) -> None:
    """Delete passages with their statements and neighbours."""
    for some in in_pieces(ids, _IN_A_QUERY):
        session.execute(delete(PassageRow).where(PassageRow.id.in_(some)))


def having_neighbours(session: Session, ids: Collection[int]) -> set[int]:
    """Return the passages that have one of these as neighbour."""
    neighbour = PassageNeighbourRow
    return {row.passage_id for row in where_in(session, select(neighbour.passage_id), neighbour.neighbour_id, ids)}


def neighbours_of(session: Session, ids: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Return the stored neighbours of these passages, closest first."""
    neighbour = PassageNeighbourRow
    query = select(neighbour.passage_id, neighbour.neighbour_id).order_by(neighbour.passage_id, neighbour.rank)
    found: dict[int, tuple[int, ...]] = dict.fromkeys(ids, ())
    for row in where_in(session, query, neighbour.passage_id, ids):
        found[row.passage_id] += (row.neighbour_id,)
    return found


def drop_neighbours(session: Session, ids: Collection[int]) -> set[str]:
    """Delete the neighbours and the module keys of passages; returns these keys."""
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
    """Return which of these module keys no passage has."""
    used = where_in(session, select(PassageRow.module_key), PassageRow.module_key, keys)
    return tuple(sorted(set(keys) - {row.module_key for row in used}))


def packed(vectors: Vectors) -> bytes:
    """Return a passage's vectors in the stored form."""
    return vectors.astype(STORED_AS).tobytes()


def where_in(
    session: Session, query: AnySelect, column: InstrumentedAttribute[Any], values: Collection[T]
) -> Iterator[AnyRow]:
    """Return the rows of a query whose column has one of the values, in as many queries as needed."""
    for some in in_pieces(list(values), _IN_A_QUERY):
        yield from session.execute(query.where(column.in_(some)))


def in_pieces(values: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Split values into pieces of at most this number."""
    for start in range(0, len(values), most):
        yield values[start : start + most]
