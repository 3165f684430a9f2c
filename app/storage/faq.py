"""The FAQ in the database: questions that agents answered themselves, with the vectors of their wordings.

Not covered: the document that is made of them, who may change them (`app.support.faq`).
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from sqlalchemy import delete, select

from app.domain.documents import Vectors
from app.domain.errors import DeskError
from app.domain.quality import FaqDraft, FaqPair
from app.storage.database import Database
from app.storage.generation import count_change
from app.storage.tables import FaqRow


@dataclass(frozen=True, slots=True, kw_only=True)
class FaqVectors:
    """The vectors of a pair's question and wordings, `[questions, dimension]`, and the embedder they are of."""

    embedder: str
    rows: Vectors


class FaqStore:
    """Reads and changes the FAQ. Safe to use from any thread; each method is a transaction and may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pairs(self) -> list[FaqPair]:
        """Every pair, by number."""
        return [_pair(row) for row in self._database.values(select(FaqRow).order_by(FaqRow.id))]

    def vectors(self) -> dict[int, FaqVectors]:
        """The vectors of every pair, by number."""
        query = select(FaqRow.id, FaqRow.wordings, FaqRow.embedder, FaqRow.vectors).order_by(FaqRow.id)
        return {
            id_: FaqVectors(embedder=embedder, rows=np.frombuffer(data, "<f4").reshape(1 + len(wordings), -1))
            for id_, wordings, embedder, data in self._database.rows(query)
        }

    def find(self, id_: int) -> FaqPair:
        """One pair. Raises DeskError if there is none of this number."""
        rows = self._database.values(select(FaqRow).where(FaqRow.id == id_))
        if not rows:
            raise DeskError(f"there is no FAQ {id_}: it was deleted", code="faq-unknown")
        return _pair(rows[0])

    def save(self, draft: FaqDraft, vectors: FaqVectors, author: str, id_: int | None = None) -> int:
        """Add a pair, or change that of a number; gives its number. Raises DeskError if there is none."""
        now = datetime.now(UTC)
        with self._database.write() as session:
            row = FaqRow(created=now) if id_ is None else session.get(FaqRow, id_)
            if row is None:
                raise DeskError(f"there is no FAQ {id_}: it was deleted", code="faq-unknown")
            row.question, row.answer, row.wordings = draft.question, draft.answer, list(draft.wordings)
            row.author, row.updated = author, now
            row.embedder, row.vectors = vectors.embedder, vectors.rows.astype("<f4").tobytes()
            session.add(row)
            count_change(session)
            return row.id

    def set_vectors(self, vectors: dict[int, FaqVectors]) -> None:
        """Replace the vectors of pairs, by number."""
        with self._database.write() as session:
            for id_, one in vectors.items():
                if (row := session.get(FaqRow, id_)) is not None:
                    row.embedder, row.vectors = one.embedder, one.rows.astype("<f4").tobytes()

    def delete(self, id_: int | None = None) -> None:
        """Delete the pair of a number, or all; an unknown number is no error."""
        query = delete(FaqRow) if id_ is None else delete(FaqRow).where(FaqRow.id == id_)
        with self._database.write() as session:
            session.execute(query)
            count_change(session)
        self._database.flush_log()


def _pair(row: FaqRow) -> FaqPair:
    return row.to(FaqPair, wordings=tuple(row.wordings))
