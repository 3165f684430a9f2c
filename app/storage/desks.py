"""The desks that are open on a shared database, and up to which generation of the documents each of them follows.

Times are the server's own, so that the clocks of machines do not matter. Not covered: databases of a single desk, which
has nobody to wait for.
"""

from datetime import timedelta
from typing import Final
from uuid import uuid4

from sqlalchemy import DateTime, delete, func, insert, select

from app.storage.database import Database
from app.storage.tables import DeskRow

ALIVE: Final = timedelta(seconds=30)
"""A desk that said nothing for so long is gone, and nobody waits for it."""
_NOW = func.timezone("utc", func.clock_timestamp(), type_=DateTime())


class Desks:
    """One desk among those of its database. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database, self._id = database, uuid4().hex

    def note(self, generation: int) -> None:
        """This desk is alive and has taken in all changes up to this generation. Removes desks that are gone."""
        with self._database.write() as session:
            session.execute(delete(DeskRow).where(DeskRow.id == self._id))
            session.execute(delete(DeskRow).where(DeskRow.seen < _NOW - ALIVE))
            session.execute(insert(DeskRow).values(id=self._id, seen=_NOW, generation=generation))

    def leave(self) -> None:
        """This desk is closed."""
        with self._database.write() as session:
            session.execute(delete(DeskRow).where(DeskRow.id == self._id))

    def behind(self, generation: int) -> int:
        """How many other desks that are alive have not taken in all changes up to this generation."""
        others = (DeskRow.id != self._id, DeskRow.generation < generation, DeskRow.seen >= _NOW - ALIVE)
        with self._database.read() as session:
            return session.scalar(select(func.count()).select_from(DeskRow).where(*others)) or 0
