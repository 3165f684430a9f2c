"""Changes to the rows of passages and their neighbours, within a transaction of `library`.

A passage has a module key only if that module was encoded with the neighbours recorded for the passage. Therefore a
change of its neighbours deletes its module key in the same transaction.

Not covered: the rows of documents, and queries that only read (`library`).
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import Row, Select, delete, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.documents import NewPassage, Replaced, Vectors
from app.storage.generation import count_change
from app.storage.tables import PassageNeighbourRow, PassageRow

T = TypeVar("T")
AnySelect = Select[*tuple[Any, ...]]
AnyRow = Row[*tuple[Any, ...]]

STORED_AS = np.dtype("<f4")
_IN_A_QUERY = 10_000  # SQLite takes 32,766 parameters at most


def replace_passages(
    session: Session, document_id: int, passages: Sequence[NewPassage], *, is_other_neighbour: bool = False
) -> Replaced:
    """Make these the passages of a document; rows of unchanged content are kept.

    Other passages may have a removed passage as neighbour: all neighbours of those are deleted, so that they are chosen
    again. is_other_neighbour: do the same for kept passages, because the document's title (the heading of passages
    without headings) or its collection has changed.
    """
    query = select(PassageRow.id, PassageRow.content_hash, PassageRow.module_key)
    query = query.where(PassageRow.document_id == document_id).order_by(PassageRow.ordinal.desc())
    old = session.execute(query).all()
    unmatched = defaultdict(list)
    for row in old:
        unmatched[row.content_hash].append(row.id)
    kept, fresh = {}, {}
    for ordinal, passage in enumerate(passages):
        if unmatched[passage.content_hash]:
            kept[ordinal] = unmatched[passage.content_hash].pop()
        else:
            fresh[ordinal] = passage
    new = _insert(session, document_id, fresh)
    gone = {id_ for ids in unmatched.values() for id_ in ids}
    changed = gone | set(kept.values()) if is_other_neighbour else gone
    dropped = {row.module_key for row in old if row.id in gone and row.module_key is not None}
    neighbour = PassageNeighbourRow
    behind = where_in(session, select(neighbour.passage_id), neighbour.neighbour_id, changed)
    dropped |= drop_neighbours(session, {row.passage_id for row in behind} - gone)
    for some in _chunks(sorted(gone)):
        session.execute(delete(PassageRow).where(PassageRow.id.in_(some)))
    moved = [{"id": id_, "ordinal": at, "num_tokens": passages[at].num_tokens} for at, id_ in kept.items()]
    if moved:
        session.execute(update(PassageRow), moved)
    by_ordinal = kept | new
    return Replaced(
        ids=tuple(by_ordinal[ordinal] for ordinal in range(len(passages))),
        kept=tuple(kept.values()),
        new=tuple(new.values()),
        removed=tuple(sorted(gone)),
        removed_module_keys=unused(session, dropped),
    )


def _insert(session: Session, document_id: int, passages: Mapping[int, NewPassage]) -> dict[int, int]:
    """Insert new passages, given by ordinal; returns their numbers by ordinal."""
    missing = {passage.content_hash for passage in passages.values() if passage.embedding is None}
    query = select(PassageRow.content_hash, PassageRow.embedding).where(PassageRow.document_id == document_id)
    known = {row.content_hash: row.embedding for row in where_in(session, query, PassageRow.content_hash, missing)}
    rows = []
    for ordinal, passage in passages.items():
        if passage.embedding is None and passage.content_hash not in known:
            raise ValueError(f"passage {ordinal} is new to its document and has no embedding")
        embedding = known[passage.content_hash] if passage.embedding is None else packed(passage.embedding)
        rows.append({**asdict(passage), "document_id": document_id, "ordinal": ordinal, "embedding": embedding})
    if not rows:
        return {}
    returning = insert(PassageRow).returning(PassageRow.id, sort_by_parameter_order=True)
    return dict(zip(passages, session.scalars(returning, rows), strict=True))


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
    for some in _chunks(sorted(ids)):
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
    for some in _chunks(list(values)):
        yield from session.execute(query.where(column.in_(some)))


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _IN_A_QUERY):
        yield values[start : start + _IN_A_QUERY]
