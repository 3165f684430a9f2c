"""Stored answers that may contain information from a deleted document.

An answer depends on a document if it cites the document, or if a passage of the document was in its prompt. Later
questions of the same conversation may depend on such an answer, because it was in their prompts. This applies to
questions asked before the deletion. The time of the deletion is stored, so that an answer which ends later, or after a
restart, is recognised as well.

Out of scope: deleting the document itself (`app.knowledge.forget`).
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.storage.tables import ForgottenRow, MessageRow

NEVER = datetime.min.replace(tzinfo=UTC)


def mark_forgotten(session: Session, path: str, moment: datetime) -> None:
    """Store that a document was deleted; the last time counts. It is later than all stored questions, also if the clock
    of another server is ahead.
    """
    newest = session.scalar(select(func.max(MessageRow.created)).where(MessageRow.role == "user"))
    session.merge(ForgottenRow(path=path, forgotten=max(moment, newest or moment)))


def forgotten_at(session: Session, paths: Collection[str]) -> dict[str, datetime]:
    rows = session.scalars(select(ForgottenRow).where(ForgottenRow.path.in_(sorted(paths))))
    return {row.path: row.forgotten for row in rows}


def documents_of(row: MessageRow) -> set[str]:
    return {one.document for one in row.citations} | {one.document for one in row.modules if one.document}


def resting_on_forgotten(rows: Sequence[MessageRow], forgotten: Mapping[str, datetime]) -> set[str]:
    """Return the answers that may contain information from a deleted document. rows: a conversation, in order."""
    asked = {row.id: row.created for row in rows}
    found, until = set(), NEVER
    for row in rows:
        question = asked.get(row.question_id or "", row.created)
        until = max([until, *(at for one in documents_of(row) if (at := forgotten.get(one, NEVER)) >= question)])
        if row.role == "assistant" and question <= until:
            found.add(row.id)
    return found
