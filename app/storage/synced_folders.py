"""Synchronised folders in the database. Not covered: reading them (`app.knowledge.synchronising`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from operator import attrgetter

from sqlalchemy import delete, select

from app.domain.synced_folders import SyncedFolder, SyncResult, UnreadFile
from app.storage.database import Database
from app.storage.tables import SyncedFolderRow


class SyncedFolderTable:
    """Reads and writes synchronised folders, each known by its path. Safe to use from any thread; every method is one
    transaction and may raise DeskError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[SyncedFolder]:
        """Every folder, by path."""
        rows = self._database.values(select(SyncedFolderRow))
        return sorted(map(_stored, rows), key=attrgetter("folder"))

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Gives whether no other desk reads folders that are due; if so, none does so before the end of the block."""
        with self._database.alone("folders") as is_alone:
            yield is_alone

    def due(self, now: datetime) -> list[SyncedFolder]:
        """The folders whose time has come, the one that waits longest first."""
        waiting = select(SyncedFolderRow).where(SyncedFolderRow.next_run <= now)
        in_turn = waiting.order_by(SyncedFolderRow.next_run, SyncedFolderRow.id)
        return [_stored(row) for row in self._database.values(in_turn)]

    def save(self, folder: SyncedFolder) -> None:
        """Add a folder, or change how the one of its path is read; its last result stays."""
        with self._database.write() as session:
            row = session.scalar(select(SyncedFolderRow).where(SyncedFolderRow.folder == folder.folder))
            if row is None:
                row = SyncedFolderRow(folder=folder.folder)
                session.add(row)
            row.collection, row.every_minutes, row.next_run = folder.collection, folder.every_minutes, folder.next_run

    def remove(self, folder: str) -> bool:
        """Remove a folder; gives whether it was there. Its documents stay."""
        with self._database.write() as session:
            there = session.scalar(select(SyncedFolderRow.id).where(SyncedFolderRow.folder == folder)) is not None
            session.execute(delete(SyncedFolderRow).where(SyncedFolderRow.folder == folder))
        return there

    def record(self, folder: str, result: SyncResult, now: datetime) -> None:
        """What a reading did, and when the next one is due; nothing for a folder that was removed meanwhile."""
        with self._database.write() as session:
            row = session.scalar(select(SyncedFolderRow).where(SyncedFolderRow.folder == folder))
            if row is not None:
                row.last_run, row.last_result = now, asdict(result)
                row.next_run = now + timedelta(minutes=row.every_minutes)


def _stored(row: SyncedFolderRow) -> SyncedFolder:
    last = row.last_result
    result = (
        None if last is None else SyncResult(**{**last, "files": tuple(UnreadFile(**one) for one in last["files"])})
    )
    return row.to(SyncedFolder, last_result=result)
