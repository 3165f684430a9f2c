"""Who did what, and when, of those who look after the desk. Entries are only added; the oldest go after a year.

No entry holds a customer's words, a password or a key. Not covered: what customers and programs ask (`history`).
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, select

from app.storage.database import Database
from app.storage.tables import AuditRow

KEPT = timedelta(days=365)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One thing that was done. who: name of an account, or see `app.domain.callers`. action: a key of
    `app.web.audit_page.ACTIONS`. subject: what it was done to, such as a name of an account or a document.
    """

    id: int
    created: datetime
    who: str
    action: str
    subject: str


class Audit:
    """Adds and reads entries. Safe to use from any thread; each method is a transaction and may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, who: str, action: str, subject: str = "") -> None:
        """Add an entry, and remove those that are too old."""
        now = datetime.now(UTC)
        with self._database.write() as session:
            session.execute(delete(AuditRow).where(AuditRow.created < now - KEPT))
            session.add(AuditRow(created=now, who=who, action=action, subject=subject))

    def latest(self, limit: int = 100, before: int | None = None) -> list[AuditEntry]:
        """The latest entries, latest first. before: only those that are older than the entry of this id."""
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditRow.id < before)
        return [row.to(AuditEntry) for row in self._database.values(query)]
