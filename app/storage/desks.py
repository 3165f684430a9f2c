"""The servers of a shared database, and the generation of the documents that each of them has applied.

Times are those of the database, so the clocks of the servers do not matter. Out of scope: databases with one server.
"""

from datetime import timedelta
from typing import Final
from uuid import uuid4

from sqlalchemy import DateTime, delete, func, insert, select

from app.storage.database import Database
from app.storage.tables import DeskRow

ALIVE: Final = timedelta(seconds=30)
"""A server without a sign of life for this long is gone. Others do not wait for it."""
_NOW = func.timezone("utc", func.clock_timestamp(), type_=DateTime())


class Desks:
    """One server among those of its database. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database, self._id = database, uuid4().hex

    def note(self, generation: int) -> None:
        """Record that this server is alive and has applied all changes up to this generation. Removes servers that are
        gone.
        """
        with self._database.write() as session:
            session.execute(delete(DeskRow).where(DeskRow.id == self._id))
            session.execute(delete(DeskRow).where(DeskRow.seen < _NOW - ALIVE))
            session.execute(insert(DeskRow).values(id=self._id, seen=_NOW, generation=generation))

    def leave(self) -> None:
        """Record that this server is stopped."""
        with self._database.write() as session:
            session.execute(delete(DeskRow).where(DeskRow.id == self._id))

    def behind(self, generation: int) -> int:
        """Return the number of other live servers that have not applied all changes up to this generation."""
        others = (DeskRow.id != self._id, DeskRow.generation < generation, DeskRow.seen >= _NOW - ALIVE)
        with self._database.read() as session:
            return session.scalar(select(func.count()).select_from(DeskRow).where(*others)) or 0
