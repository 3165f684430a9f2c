"""The generation of the documents: a number that grows with every change of them, in the transaction of the change. A
desk sees by it that another one of the same database has changed something.

Not covered: what a desk does then (`app.desk.repeating`).

Changes to the rows of passages and their neighbours, within a transaction of `library`.

A passage has a module key only if that module was encoded with the neighbours recorded for the passage. Therefore a
change of its neighbours deletes its module key in the same transaction.

Not covered: the rows of documents, and queries that only read (`library`).
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
    """Passages, their neighbours or the FAQ change with this transaction."""
    session.merge(FactRow(key=_GENERATION, value=str(generation_of(session) + 1)))
    session.flush()


def generation_of(session: Session) -> int:
    """How often something was changed."""
    return int(session.scalar(select(FactRow.value).where(FactRow.key == _GENERATION)) or 0)


T = TypeVar("T")
AnySelect = Select[*tuple[Any, ...]]
AnyRow = Row[*tuple[Any, ...]]

STORED_AS = np.dtype("<f4")
ROWS_AT_ONCE = 50
"""Passages that one transaction changes, some 20 KB each with their vectors: customers' questions wait for it."""
_IN_A_QUERY = 10_000  # SQLite takes 32,766 parameters at most


def insert_passages(
    session: Session, document_id: int, passages: Mapping[int, NewPassage], embeddings: Mapping[int, bytes]
) -> dict[int, int]:
    """Insert new passages, given by ordinal; returns their numbers by ordinal. embeddings: of those that have one, as
    they are stored; the others have that of a passage of the same content in their document.
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
    """Change rows of passages, each given by its "id" and what is other."""
    if rows:
        session.execute(update(PassageRow), rows)


def delete_passages(session: Session, ids: Sequence[int]) -> None:
    """Delete passages, with their statements and neighbours."""
    for some in in_pieces(ids, _IN_A_QUERY):
        session.execute(delete(PassageRow).where(PassageRow.id.in_(some)))


def having_neighbours(session: Session, ids: Collection[int]) -> set[int]:
    """The passages that have one of these as neighbour."""
    neighbour = PassageNeighbourRow
    return {row.passage_id for row in where_in(session, select(neighbour.passage_id), neighbour.neighbour_id, ids)}


def neighbours_of(session: Session, ids: Collection[int]) -> dict[int, tuple[int, ...]]:
    """The neighbours recorded for each of these passages, the closest first."""
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
    """See `Library.set_neighbours`. A passage whose neighbours do not change keeps its module."""
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
    """Those of these module keys that no passage has."""
    used = where_in(session, select(PassageRow.module_key), PassageRow.module_key, keys)
    return tuple(sorted(set(keys) - {row.module_key for row in used}))


def packed(vectors: Vectors) -> bytes:
    """A passage's vectors in the form that is stored."""
    return vectors.astype(STORED_AS).tobytes()


def where_in(
    session: Session, query: AnySelect, column: InstrumentedAttribute[Any], values: Collection[T]
) -> Iterator[AnyRow]:
    """The rows of a query whose column has one of the values, however many these are."""
    for some in in_pieces(list(values), _IN_A_QUERY):
        yield from session.execute(query.where(column.in_(some)))


def in_pieces(values: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """These values in order, at most so many at a time."""
    for start in range(0, len(values), most):
        yield values[start : start + most]
