"""The rows of one document's passages, within a transaction of `library`: which stay, come and go.

Not covered: documents' own rows and everything that only reads (`library`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import Row, Select, delete, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app import tables
from app.stored import NewPassage, Replaced, Vectors

T = TypeVar("T")
AnySelect = Select[*tuple[Any, ...]]
AnyRow = Row[*tuple[Any, ...]]

STORED_AS = np.dtype("<f4")
_GENERATION = "library_generation"
_IN_A_QUERY = 10_000  # SQLite takes 32,766 parameters at most


def replace_passages(session: Session, document_id: int, passages: Sequence[NewPassage]) -> Replaced:
    """Make these the passages of a document; rows of unchanged content are kept."""
    query = select(tables.Passage.id, tables.Passage.content_hash, tables.Passage.module_key)
    query = query.where(tables.Passage.document_id == document_id).order_by(tables.Passage.ordinal.desc())
    old = session.execute(query).all()
    unclaimed = defaultdict(list)
    for row in old:
        unclaimed[row.content_hash].append(row.id)
    kept, fresh = {}, {}
    for ordinal, passage in enumerate(passages):
        if unclaimed[passage.content_hash]:
            kept[ordinal] = unclaimed[passage.content_hash].pop()
        else:
            fresh[ordinal] = passage
    new = _insert(session, document_id, fresh)
    gone = {id_ for ids in unclaimed.values() for id_ in ids}
    for some in _chunks(sorted(gone)):
        session.execute(delete(tables.Passage).where(tables.Passage.id.in_(some)))
    if kept:
        moved = [
            {"id": id_, "ordinal": ordinal, "num_tokens": passages[ordinal].num_tokens} for ordinal, id_ in kept.items()
        ]
        session.execute(update(tables.Passage), moved)
    loose = {row.module_key for row in old if row.id in gone and row.module_key is not None}
    used = where_in(session, select(tables.Passage.module_key), tables.Passage.module_key, loose)
    loose -= {row.module_key for row in used}
    by_ordinal = kept | new
    return Replaced(
        ids=tuple(by_ordinal[ordinal] for ordinal in range(len(passages))),
        kept=tuple(kept.values()),
        new=tuple(new.values()),
        removed=tuple(sorted(gone)),
        removed_module_keys=tuple(sorted(loose)),
        generation=next_generation(session) if new or gone else generation(session),
    )


def _insert(session: Session, document_id: int, passages: Mapping[int, NewPassage]) -> dict[int, int]:
    """Numbers of the new rows by ordinal."""
    without = {passage.content_hash for passage in passages.values() if passage.embedding is None}
    query = select(tables.Passage.content_hash, tables.Passage.embedding)
    query = query.where(tables.Passage.document_id == document_id)
    found = where_in(session, query, tables.Passage.content_hash, without)
    lent = {row.content_hash: row.embedding for row in found}
    rows = []
    for ordinal, passage in passages.items():
        if passage.embedding is None and passage.content_hash not in lent:
            raise ValueError(f"passage {ordinal} is new to its document and has no embedding")
        rows.append(
            {
                "document_id": document_id,
                "ordinal": ordinal,
                "heading_path": list(passage.heading_path),
                "text": passage.text,
                "content_hash": passage.content_hash,
                "num_tokens": passage.num_tokens,
                "embedding": lent[passage.content_hash] if passage.embedding is None else packed(passage.embedding),
            }
        )
    if not rows:
        return {}
    returning = insert(tables.Passage).returning(tables.Passage.id, sort_by_parameter_order=True)
    return dict(zip(passages, session.scalars(returning, rows), strict=True))


def generation(session: Session) -> int:
    """The library's generation, from 0."""
    fact = session.get(tables.Fact, _GENERATION)
    return 0 if fact is None else int(fact.value)


def next_generation(session: Session) -> int:
    """Raise it by one."""
    value = generation(session) + 1
    session.merge(tables.Fact(key=_GENERATION, value=str(value)))
    return value


def packed(vectors: Vectors) -> bytes:
    """A passage's vectors as stored."""
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
