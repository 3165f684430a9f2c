"""Conversations of everybody, for those who look after the desk: a list, each by its id, and the answers that were bad.

Customers see their own alone (`history`); nothing that serves a customer may use this. Conversations that their owner
deleted are not here.
"""

from datetime import datetime
from typing import cast

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import aliased

from app.domain.answers import Outcome, Turn, from_documents
from app.domain.callers import CUSTOMERS
from app.domain.quality import WEAK, BadAnswer, Cause, FaqDraft, TranscriptSummary
from app.storage.answer_rows import turn
from app.storage.database import Database
from app.storage.history import MAX_QUERY, holds, latest_messages, whole
from app.storage.tables import ConversationRow, FeedbackRow, HandoffRow, MessageRow

_QUESTION = aliased(MessageRow)
_BEFORE = aliased(MessageRow)


class Transcripts:
    """Reads conversations of all owners. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def conversations(self, query: str = "", owner: str = "", limit: int = 100) -> list[TranscriptSummary]:
        """The latest conversations of customers with a message, most recently used first. query: each of its words
        stands in the title or a message. owner: only those of this one.
        """
        table = ConversationRow
        number = select(func.count()).where(MessageRow.conversation_id == table.id).scalar_subquery()
        listed = select(table.id, table.owner, table.title, table.updated, number.label("turns"))
        listed = listed.where(table.deleted.is_(None), number > 0, *(holds(word) for word in query[:MAX_QUERY].split()))
        listed = listed.where(or_(*map(table.owner.startswith, CUSTOMERS)))
        if owner:
            listed = listed.where(table.owner == owner)
        rows = self._database.rows(listed.order_by(table.updated.desc(), table.id).limit(limit))
        return [TranscriptSummary(**row._mapping) for row in rows]

    def owner_of(self, conversation_id: str) -> str | None:
        """Whose a conversation is; None if there is none of this id."""
        its = select(ConversationRow.owner).where(ConversationRow.id == conversation_id)
        return next(iter(self._database.values(its.where(ConversationRow.deleted.is_(None)))), None)

    def turns(self, conversation_id: str) -> list[Turn]:
        """All messages of a conversation, oldest first; empty when there is no such conversation."""
        its = (MessageRow.conversation_id == conversation_id, ConversationRow.deleted.is_(None))
        return [turn(row, None) for row in self._database.values(whole(latest_messages(*its)))[::-1]]

    def answered(self, message_id: str) -> FaqDraft | None:
        """An answer with its question, as they would stand in the FAQ; the answer is empty where nothing was said from
        the documents. None if there is no such answer.
        """
        query = select(_QUESTION.text, MessageRow.text, MessageRow.outcome).join(
            _QUESTION, _QUESTION.id == MessageRow.question_id
        )
        query = query.join(ConversationRow, ConversationRow.id == MessageRow.conversation_id)
        query = query.where(MessageRow.id == message_id, ConversationRow.deleted.is_(None))
        for question, answer, outcome in self._database.rows(query):
            return FaqDraft(question=question, answer=from_documents(answer, cast("Outcome", outcome)))
        return None

    def bad_answers(self, since: datetime, limit: int) -> list[BadAnswer]:
        """Answers since then that were none, unsure, not liked, not supported, or the last before the conversation went
        to a person; the latest first.
        """
        disliked, was_handed = FeedbackRow.value == "down", MessageRow.id.in_(_last_before_handoffs(since))
        query = (
            select(
                *(MessageRow.id, MessageRow.conversation_id, MessageRow.text, MessageRow.created),
                *(MessageRow.outcome, MessageRow.grounding, FeedbackRow.value, FeedbackRow.reason),
                *(_QUESTION.text.label("question"), was_handed.label("handed")),
            )
            .join(_QUESTION, _QUESTION.id == MessageRow.question_id)
            .join(ConversationRow, ConversationRow.id == MessageRow.conversation_id)
            .outerjoin(FeedbackRow, FeedbackRow.message_id == MessageRow.id)
            .where(MessageRow.role == "assistant", MessageRow.created >= since, ConversationRow.deleted.is_(None))
            .where(
                or_(MessageRow.outcome.in_(("nothing", "unsure")), MessageRow.grounding <= WEAK, disliked, was_handed)
            )
            .order_by(MessageRow.created.desc())
            .limit(limit)
        )
        return [
            BadAnswer(
                message_id=row.id,
                conversation_id=row.conversation_id,
                question=row.question,
                answer=row.text,
                created=row.created,
                causes=_causes(row.outcome, row.grounding, row.value, row.handed),
                reason=(row.reason or "") if row.value == "down" else "",
            )
            for row in self._database.rows(query)
        ]


def _last_before_handoffs(since: datetime) -> Select[tuple[str]]:
    """Ids of the answers that were the last, but for small talk, when somebody asked for a person since then."""
    last = (
        select(_BEFORE.id)
        .where(_BEFORE.conversation_id == HandoffRow.conversation_id, _BEFORE.created <= HandoffRow.requested)
        .where(_BEFORE.role == "assistant", _BEFORE.outcome != "smalltalk")
        .order_by(_BEFORE.position.desc())
        .limit(1)
        .correlate(HandoffRow)
        .scalar_subquery()
    )
    return select(last).where(HandoffRow.requested >= since, last.is_not(None))


def _causes(outcome: str | None, grounding: float | None, value: str | None, handed: bool) -> tuple[Cause, ...]:
    found: dict[Cause, bool] = {
        "nothing": outcome == "nothing",
        "unsure": outcome == "unsure",
        "down": value == "down",
        "unsupported": grounding is not None and grounding <= WEAK,
        "handed": handed,
    }
    return tuple(cause for cause, is_so in found.items() if is_so)
