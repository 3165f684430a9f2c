"""The FAQ and the synchronised folders in the database."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from msgspec import convert
from sqlalchemy import delete, select

from app.domain.documents import SiteOptions, SyncedFolder, SyncResult, Vectors
from app.domain.errors import DeskError
from app.domain.quality import FaqDraft, FaqPair
from app.storage.database import Store
from app.storage.document_change import count_change, packed, unpacked
from app.storage.tables import FaqRow, SyncedFolderRow


@dataclass(frozen=True, slots=True, kw_only=True)
class FaqVectors:
    """Vectors of a question and its wordings, `[questions, dimension]`, and the name of their embedder."""

    embedder: str
    rows: Vectors


class FaqStore(Store):
    """The FAQ pairs in the database, each a question and its answer."""

    def pairs(self) -> list[FaqPair]:
        return [_pair(row) for row in self._database.values(select(FaqRow).order_by(FaqRow.id))]

    def vectors(self) -> dict[int, FaqVectors]:
        query = select(FaqRow.id, FaqRow.wordings, FaqRow.embedder, FaqRow.vectors).order_by(FaqRow.id)
        return {
            id_: FaqVectors(embedder=embedder, rows=unpacked(data, len(data) // (1 + len(wordings)) // 4))
            for id_, wordings, embedder, data in self._database.rows(query)
        }

    def find(self, id_: int) -> FaqPair:
        rows = self._database.values(select(FaqRow).where(FaqRow.id == id_))
        if not rows:
            raise DeskError(f"there is no FAQ pair {id_}: it was deleted", code="faq-unknown")
        return _pair(rows[0])

    def save(self, draft: FaqDraft, vectors: FaqVectors, author: str, id_: int | None = None) -> int:
        now = datetime.now(UTC)
        with self._database.write() as session:
            row = FaqRow(created=now) if id_ is None else session.get(FaqRow, id_)
            if row is None:
                raise DeskError(f"there is no FAQ pair {id_}: it was deleted", code="faq-unknown")
            row.question, row.answer, row.wordings = draft.question, draft.answer, list(draft.wordings)
            row.author, row.updated = author, now
            row.embedder, row.vectors = vectors.embedder, packed(vectors.rows)
            session.add(row)
            count_change(session)
            return row.id

    def set_vectors(self, vectors: dict[int, FaqVectors]) -> None:
        with self._database.write() as session:
            for id_, one in vectors.items():
                if (row := session.get(FaqRow, id_)) is not None:
                    row.embedder, row.vectors = one.embedder, packed(one.rows)

    def delete(self, id_: int | None = None) -> None:
        query = delete(FaqRow) if id_ is None else delete(FaqRow).where(FaqRow.id == id_)
        with self._database.write() as session:
            session.execute(query)
            count_change(session)
        self._database.flush_log()


def _pair(row: FaqRow) -> FaqPair:
    return row.to(FaqPair, wordings=tuple(row.wordings))


class SyncedFolderTable(Store):
    """The synchronised folders, each identified by its path."""

    def all(self) -> list[SyncedFolder]:
        rows = self._database.values(select(SyncedFolderRow))
        return sorted(map(_stored, rows), key=attrgetter("folder"))

    def alone(self) -> AbstractContextManager[Callable[[], bool]]:
        return self._database.alone("folders")

    def due(self, now: datetime) -> list[SyncedFolder]:
        in_turn = select(SyncedFolderRow).order_by(SyncedFolderRow.next_run, SyncedFolderRow.id)
        folders = map(_stored, self._database.values(in_turn))
        # A run due later than one interval from now was planned before the clock was set back.
        return [one for one in folders if not now < one.next_run <= now + timedelta(minutes=one.every_minutes)]

    def save(self, folder: SyncedFolder) -> None:
        """Add a folder, or change the settings of the folder with this path. Its last result stays."""
        with self._database.write() as session:
            row = session.scalar(select(SyncedFolderRow).where(SyncedFolderRow.folder == folder.folder))
            if row is None:
                row = SyncedFolderRow(folder=folder.folder)
                session.add(row)
            row.collection, row.every_minutes, row.next_run = folder.collection, folder.every_minutes, folder.next_run
            row.site = asdict(folder.site)

    def remove(self, folder: str) -> bool:
        with self._database.write() as session:
            there = session.scalar(select(SyncedFolderRow.id).where(SyncedFolderRow.folder == folder)) is not None
            session.execute(delete(SyncedFolderRow).where(SyncedFolderRow.folder == folder))
        return there

    def record(self, folder: str, result: SyncResult, now: datetime) -> None:
        with self._database.write() as session:
            row = session.scalar(select(SyncedFolderRow).where(SyncedFolderRow.folder == folder))
            if row is not None:
                row.last_run, row.last_result = now, asdict(result)
                row.next_run = now + timedelta(minutes=row.every_minutes)


def _stored(row: SyncedFolderRow) -> SyncedFolder:
    last = None if row.last_result is None else convert(row.last_result, SyncResult)
    return row.to(SyncedFolder, site=convert(row.site or {}, SiteOptions), last_result=last)
