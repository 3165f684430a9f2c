"""Measured savings: a row for each answer that was computed a second time without reuse. No row holds words.

A row stays when its conversation is deleted: it is a number. Not covered: measuring (`app.answering.savings_meter`),
what the numbers say together (`app.desk.savings`).
"""

from dataclasses import asdict, fields
from datetime import datetime

from sqlalchemy import select

from app.domain.savings import SavingsSample
from app.storage.database import Database
from app.storage.tables import MessageRow, SavingsRow

MOST = 1000


class SavingsSamples:
    """Adds and reads samples. Safe to use from any thread; each method is a transaction and may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, sample: SavingsSample) -> None:
        """Add a sample; without its question if that was deleted meanwhile."""
        with self._database.write() as session:
            row = SavingsRow(**asdict(sample))
            if sample.question_id is not None and session.get(MessageRow, sample.question_id) is None:
                row.question_id = None
            session.add(row)

    def between(self, since: datetime, until: datetime) -> list[SavingsSample]:
        """The samples of a time, the latest first, and no more than `MOST`: they say enough."""
        columns = (getattr(SavingsRow, one.name) for one in fields(SavingsSample))
        query = select(*columns).where(SavingsRow.created >= since, SavingsRow.created < until)
        rows = self._database.rows(query.order_by(SavingsRow.created.desc()).limit(MOST))
        return [SavingsSample(**row._mapping) for row in rows]
