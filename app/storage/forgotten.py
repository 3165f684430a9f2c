"""Which stored answers may still say what a forgotten document said, however they say it.

An answer rests on a document if it cites it, or if one of the document's passages stood in its prompt. What was asked
after such an answer in the same conversation may rest on it in turn, because the answer stood in later prompts. This
holds for questions that were asked before the document was forgotten; later ones know nothing of it. When a document
was forgotten is stored, so that an answer that ends later, or after a restart, is recognised as well.

Not covered: removing the document itself (`app.knowledge.forget`).
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.storage.tables import ForgottenRow, MessageRow

NEVER = datetime.min.replace(tzinfo=UTC)


def mark_forgotten(session: Session, path: str, moment: datetime) -> None:
    """Remember that a document was forgotten; the last time counts. All questions that are stored came before it, also
    if another desk's clock is ahead of this one's.
    """
    newest = session.scalar(select(func.max(MessageRow.created)).where(MessageRow.role == "user"))
    session.merge(ForgottenRow(path=path, forgotten=max(moment, newest or moment)))


def forgotten_at(session: Session, paths: Collection[str]) -> dict[str, datetime]:
    """When these documents were forgotten; those that never were are left out."""
    rows = session.scalars(select(ForgottenRow).where(ForgottenRow.path.in_(sorted(paths))))
    return {row.path: row.forgotten for row in rows}


def documents_of(row: MessageRow) -> set[str]:
    """The documents an answer rests on."""
    return {one.document for one in row.citations} | {one.document for one in row.modules if one.document}


def resting_on_forgotten(rows: Sequence[MessageRow], forgotten: Mapping[str, datetime]) -> set[str]:
    """The answers of a conversation, given in its order, that may say what a forgotten document said."""
    asked = {row.id: row.created for row in rows}
    found, until = set(), NEVER
    for row in rows:
        question = asked.get(row.question_id or "", row.created)
        until = max([until, *(at for one in documents_of(row) if (at := forgotten.get(one, NEVER)) >= question)])
        if row.role == "assistant" and question <= until:
            found.add(row.id)
    return found
