"""Conversations for agents and operators, and actions of owners: rename, delete, undo, repeat.

Customers see only their own conversations (`history`); code that serves customers must not use `Transcripts`. A deleted
conversation is hidden at once and can be restored for `UNDO_S` seconds. Then it is removed with everything that belongs
to it. Counts of answers stay, because they name no customer.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVarTuple

from sqlalchemy import ColumnElement, Select, case, delete, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, aliased

from app.domain.answers import Turn
from app.domain.callers import CUSTOMERS, OPERATOR
from app.domain.errors import DeskError
from app.domain.quality import BADGES, ENDED_WORDS, WEAK, BadAnswer, Cause, Ended, FaqDraft, TranscriptSummary
from app.domain.words import utc_now
from app.storage.database import Store
from app.storage.document_change import where_in
from app.storage.history import (
    MAX_QUERY,
    conversation_of,
    holds,
    latest_messages,
    shortened,
    spoken,
    summaries,
    turn,
    whole,
)
from app.storage.tables import ConversationRow, FeedbackRow, HandoffRow, MessageRow

Columns = TypeVarTuple("Columns")
_QUESTION = aliased(MessageRow)
_BEFORE = aliased(MessageRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The time between two limits. None: no limit."""

    since: datetime | None = None
    until: datetime | None = None

    def within(self, time: InstrumentedAttribute[datetime]) -> list[ColumnElement[bool]]:
        since = [] if self.since is None else [time >= self.since]
        return since if self.until is None else [*since, time < self.until]


EVER = Period()


class _Ended:
    """Outcomes of conversations in a period, as SQL: `joined` adds the tables to a query, `had` has the conditions."""

    def __init__(self, period: Period, ids: Sequence[str] | None = None) -> None:
        """ids: only these conversations; None: all."""
        outcome, rated = MessageRow.outcome, FeedbackRow.value
        flags: dict[Ended, ColumnElement[bool]] = {"asked": outcome != "smalltalk"}
        flags |= {"answered": outcome == "answered", "unsure": outcome == "unsure", "nothing": outcome == "nothing"}
        flags |= {"down": rated == "down", "up": rated == "up"}
        columns = [func.max(case((flag, 1), else_=0)).label(f"was_{kind}") for kind, flag in flags.items()]
        said = select(MessageRow.conversation_id, *columns).outerjoin(FeedbackRow)
        said = said.where(MessageRow.role == "assistant", *period.within(MessageRow.created))
        if ids is not None:
            said = said.where(MessageRow.conversation_id.in_(ids))
        self._said = said.group_by(MessageRow.conversation_id).subquery()
        handed = select(HandoffRow.conversation_id).where(*period.within(HandoffRow.requested))
        self._handed = handed.distinct().subquery()
        had = {kind: func.coalesce(self._said.c[f"was_{kind}"], 0) == 1 for kind in flags}
        had["person"] = self._handed.c.conversation_id.is_not(None)
        had["asked"] |= had["person"]
        had["answered"] &= ~had["nothing"] & ~had["unsure"]
        had["resolved"] = had["answered"] & ~had["person"] & ~had["down"]
        self.had: Mapping[Ended, ColumnElement[bool]] = had

    def joined(self, query: Select[*Columns]) -> Select[*Columns]:
        for table in (self._said, self._handed):
            query = query.outerjoin(table, table.c.conversation_id == ConversationRow.id)
        return query


def _of_customers() -> ColumnElement[bool]:
    return ConversationRow.deleted.is_(None) & or_(*map(ConversationRow.owner.startswith, CUSTOMERS))


class Transcripts(Store):
    """Conversations of all owners, except deleted ones."""

    def conversations(
        self, query: str = "", owner: str = "", limit: int = 100, *, ended: Ended | None = None, period: Period = EVER
    ) -> list[TranscriptSummary]:
        """Return conversations, last used first. query: words that each contains. ended: its outcome in `period`."""
        listed = summaries(_of_customers(), *map(holds, query[:MAX_QUERY].split())).add_columns(ConversationRow.owner)
        if owner:
            listed = listed.where(ConversationRow.owner == owner)
        if ended is not None:
            how = _Ended(period)
            listed = how.joined(listed).where(how.had[ended])
        found = [TranscriptSummary(**row._mapping) for row in self._database.rows(listed.limit(limit))]
        badges = self._badges([one.id for one in found])
        return [replace(one, ended=badges[one.id]) for one in found]

    def _badges(self, ids: list[str]) -> dict[str, tuple[Ended, ...]]:
        how = _Ended(EVER, ids)
        query = how.joined(select(ConversationRow.id, *(how.had[kind] for kind in BADGES)))
        rows = self._database.rows(query.where(ConversationRow.id.in_(ids)))
        return {id_: tuple(kind for kind, had in zip(BADGES, flags, strict=True) if had) for id_, *flags in rows}

    def how_many(self, period: Period) -> Mapping[Ended, int]:
        """Return the number of customers' conversations with each outcome in a period."""
        how = _Ended(period)
        counts = how.joined(
            select(*(func.count().filter(how.had[kind]) for kind in ENDED_WORDS)).select_from(ConversationRow)
        )
        [row] = self._database.rows(counts.where(_of_customers()))
        return dict(zip(ENDED_WORDS, row, strict=True))

    def owner_of(self, conversation_id: str) -> str | None:
        its = select(ConversationRow.owner).where(ConversationRow.id == conversation_id)
        return next(iter(self._database.values(its.where(ConversationRow.deleted.is_(None)))), None)

    def turns(self, conversation_id: str) -> list[Turn]:
        its = (MessageRow.conversation_id == conversation_id, ConversationRow.deleted.is_(None))
        return [turn(row, None) for row in self._database.values(whole(latest_messages(*its)))[::-1]]

    def drafted(self, message_id: str, agent: str) -> FaqDraft | None:
        """Return an answer or an agent's message and its question as a FAQ draft, without Warmdesk's own words. Return
        None for an unknown message. agent: only messages that this account wrote; "" for all.
        """
        before = select(_BEFORE.text).where(
            _BEFORE.conversation_id == MessageRow.conversation_id, _BEFORE.role == "user"
        )
        before = before.where(_BEFORE.position < MessageRow.position).order_by(_BEFORE.position.desc()).limit(1)
        its = [MessageRow.id == message_id, MessageRow.role != "user", ConversationRow.deleted.is_(None)]
        its += [MessageRow.role == "agent", MessageRow.author == agent] if agent else []
        query = select(func.coalesce(_QUESTION.text, before.scalar_subquery(), ""), MessageRow)
        query = query.join(ConversationRow, ConversationRow.id == MessageRow.conversation_id)
        query = query.outerjoin(_QUESTION, _QUESTION.id == MessageRow.question_id).where(*its)
        return next((FaqDraft(question=one, answer=spoken(row)) for one, row in self._database.rows(query)), None)

    def bad_answers(self, since: datetime, limit: int) -> list[BadAnswer]:
        was_handed = MessageRow.id.in_(_last_before_handoffs(since))
        is_bad = or_(MessageRow.outcome.in_(("nothing", "unsure")), MessageRow.grounding <= WEAK, was_handed)
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
            .where(is_bad | (FeedbackRow.value == "down"))
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
    """Return the id of the last answer before each hand-off since a time, except small talk and look-ups."""
    last = (
        select(_BEFORE.id)
        .where(_BEFORE.conversation_id == HandoffRow.conversation_id, _BEFORE.created <= HandoffRow.requested)
        .where(_BEFORE.role == "assistant", _BEFORE.outcome.notin_(("smalltalk", "lookup")))
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


UNDO_S = 60
_AT_ONCE = 20
"""Number of conversations removed in one transaction. New questions wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """Numbers of an owner's removed conversations, messages and ratings."""

    conversations: int
    messages: int
    feedback: int


class ConversationCare(Store):
    """Changes to stored conversations: rename, hide, restore, remove."""

    def rename_conversation(self, conversation_id: str, title: str, owner: str = OPERATOR) -> None:
        if not (title := shortened(title)):
            raise DeskError("the title is empty: write one", code="title-empty")
        with self._database.write() as session:
            conversation_of(session, conversation_id, owner).title = title

    def delete_conversation(self, conversation_id: str, owner: str = OPERATOR) -> None:
        """Hide a conversation, which is removed after `UNDO_S` seconds. An unknown id is not an error."""
        its = (ConversationRow.id == conversation_id, ConversationRow.of(owner))
        with self._database.write() as session:
            session.execute(update(ConversationRow).where(*its).values(deleted=utc_now()))

    def restore_conversation(self, conversation_id: str, owner: str = OPERATOR) -> None:
        with self._database.write() as session:
            row = session.get(ConversationRow, conversation_id)
            deleted = None if row is None or row.owner != owner else row.deleted
            if row is None or deleted is None or utc_now() - deleted > timedelta(seconds=UNDO_S):
                raise DeskError(f"conversation {conversation_id!r} was deleted", code="no-such-conversation")
            row.deleted = None

    def last_question(self, conversation_id: str, owner: str = OPERATOR) -> str:
        """Return the id of the last question, to replace it. Raises DeskError if there is none or an agent got it."""
        with self._database.read() as session:
            conversation_of(session, conversation_id, owner)
            asked = select(MessageRow).where(MessageRow.conversation_id == conversation_id, MessageRow.role == "user")
            if (question := session.scalar(asked.order_by(MessageRow.position.desc()).limit(1))) is None:
                raise DeskError(f"conversation {conversation_id!r} has no question", code="no-such-message")
            if question.handoff_id is not None:
                raise DeskError("the last message was for an agent and cannot be replaced", code="with-person")
            return question.id

    def purge(self, deleted_before: datetime, unused_since: datetime | None = None) -> frozenset[str]:
        """Remove conversations deleted before a time or not used since a time. Return their owners."""
        gone = ConversationRow.deleted <= deleted_before
        if unused_since is not None:
            gone |= ConversationRow.updated < unused_since
            self._database.remove_backups(unused_since)
        return self._remove(gone)

    def present(self, ids: Collection[str]) -> frozenset[str]:
        with self._database.read() as session:
            rows = where_in(session, select(ConversationRow.id), ConversationRow.id, ids)
            return frozenset(row.id for row in rows)

    def erase(self, owner: str) -> Erased:
        """Remove all data of an owner, also hidden conversations, and the database copies made before migrations."""
        its = ConversationRow.owner == owner
        messages = select(func.count()).select_from(MessageRow).join(ConversationRow).where(its)
        feedback = select(func.count()).select_from(FeedbackRow).join(MessageRow).join(ConversationRow).where(its)
        with self._database.write() as session:
            erased = Erased(
                conversations=session.scalar(select(func.count()).select_from(ConversationRow).where(its)) or 0,
                messages=session.scalar(messages) or 0,
                feedback=session.scalar(feedback) or 0,
            )
            session.execute(update(ConversationRow).where(its).values(deleted=utc_now()))  # all of it is hidden at once
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
