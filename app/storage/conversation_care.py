"""What an owner does with its conversations besides asking: rename, delete, take that back, ask the last question anew.

A deleted conversation is hidden at once and can be brought back for `UNDO_S` seconds. Then it is removed for good, with
everything that belongs to it; counts of answers, which name nobody, stay.

Not covered: when that happens (`app.desk.housekeeping`), what was said (`history`).
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from app.domain.callers import OPERATOR
from app.domain.errors import DeskError
from app.storage.database import Database
from app.storage.history import shortened
from app.storage.passage_rows import where_in
from app.storage.tables import ConversationRow, FeedbackRow, MessageRow

UNDO_S = 60
_AT_ONCE = 20
"""Conversations removed in one transaction: questions that are asked meanwhile wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """How much was removed of one owner."""

    conversations: int
    messages: int
    feedback: int


class ConversationCare:
    """Changes stored conversations. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def rename_conversation(self, conversation_id: str, title: str, owner: str = OPERATOR) -> None:
        """Give a conversation another title; it is shortened. Raises DeskError for an empty one, and if there is no
        such conversation.
        """
        if not (title := shortened(title)):
            raise DeskError("the title is empty: write one", code="title-empty")
        with self._database.write() as session:
            _its(session, conversation_id, owner).title = title

    def delete_conversation(self, conversation_id: str, owner: str = OPERATOR) -> None:
        """Hide a conversation, to be removed after `UNDO_S` seconds; an unknown id is no error."""
        its = (ConversationRow.id == conversation_id, ConversationRow.of(owner))
        with self._database.write() as session:
            session.execute(update(ConversationRow).where(*its).values(deleted=_now()))

    def restore_conversation(self, conversation_id: str, owner: str = OPERATOR) -> None:
        """Bring a deleted conversation back. Raises DeskError if that was too long ago."""
        with self._database.write() as session:
            row = session.get(ConversationRow, conversation_id)
            deleted = None if row is None or row.owner != owner else row.deleted
            if row is None or deleted is None or _now() - deleted > timedelta(seconds=UNDO_S):
                raise DeskError(
                    f"conversation {conversation_id!r} is gone: it was deleted", code="no-such-conversation"
                )
            row.deleted = None

    def last_question(self, conversation_id: str, owner: str = OPERATOR) -> str:
        """The message id of the last question of a conversation, to be replaced by another one. Raises DeskError if
        there is no such conversation, no question in it, or the last one went to a person.
        """
        with self._database.read() as session:
            _its(session, conversation_id, owner)
            asked = select(MessageRow).where(MessageRow.conversation_id == conversation_id, MessageRow.role == "user")
            if (question := session.scalar(asked.order_by(MessageRow.position.desc()).limit(1))) is None:
                raise DeskError(f"conversation {conversation_id!r} has no question", code="no-such-message")
            if question.handoff_id is not None:
                raise DeskError("the last message went to a person: it stays", code="with-person")
            return question.id

    def purge(self, deleted_before: datetime, unused_since: datetime | None = None) -> frozenset[str]:
        """Remove for good what was deleted up to then and, if a time is given, what was not used since, also copies of
        the database that are older; gives whose conversations they were.
        """
        gone = ConversationRow.deleted <= deleted_before
        if unused_since is not None:
            gone |= ConversationRow.updated < unused_since
            self._database.remove_backups(unused_since)
        return self._remove(gone)

    def present(self, ids: Collection[str]) -> frozenset[str]:
        """Those of these conversations that are not removed for good."""
        with self._database.read() as session:
            rows = where_in(session, select(ConversationRow.id), ConversationRow.id, ids)
            return frozenset(row.id for row in rows)

    def erase(self, owner: str) -> Erased:
        """Remove everything of an owner for good, also what it deleted a moment ago, and the copies that were made
        before migrations.
        """
        its = ConversationRow.owner == owner
        messages = select(func.count()).select_from(MessageRow).join(ConversationRow).where(its)
        feedback = select(func.count()).select_from(FeedbackRow).join(MessageRow).join(ConversationRow).where(its)
        with self._database.write() as session:
            erased = Erased(
                conversations=session.scalar(select(func.count()).select_from(ConversationRow).where(its)) or 0,
                messages=session.scalar(messages) or 0,
                feedback=session.scalar(feedback) or 0,
            )
            session.execute(update(ConversationRow).where(its).values(deleted=_now()))  # all of it is hidden at once
        self._remove(its)
        self._database.remove_backups()
        return erased

    def _remove(self, which: ColumnElement[bool]) -> frozenset[str]:
        owners = set[str]()
        while True:
            with self._database.write() as session:
                rows = session.execute(select(ConversationRow.id, ConversationRow.owner).where(which).limit(_AT_ONCE))
                found = {row.id: row.owner for row in rows}
                session.execute(delete(ConversationRow).where(ConversationRow.id.in_(found)))
            owners |= set(found.values())
            if len(found) < _AT_ONCE:
                break
        if owners:
            self._database.flush_log()
        else:
            self._database.tidy()
        return frozenset(owners)


def _its(session: Session, conversation_id: str, owner: str) -> ConversationRow:
    its = select(ConversationRow).where(ConversationRow.id == conversation_id, ConversationRow.of(owner))
    if (row := session.scalar(its)) is None:
        raise DeskError(f"there is no conversation with the id {conversation_id}", code="no-such-conversation")
    return row


def _now() -> datetime:
    return datetime.now(UTC)
