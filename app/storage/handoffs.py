"""Hand-offs to agents, and the messages about them to the webhook, in the database.

A customer can access only hand-offs of their own conversations. An agent can access every hand-off with its
conversation, but no other conversation (`HandoffOfSomebody.owner`). A message to the webhook is written in the
transaction of the change, so no message is lost when the server stops.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median_high
from uuid import uuid4

from sqlalchemy import func, or_, select, tuple_
from sqlalchemy.orm import Session

from app.domain.answers import Handoff, HandoffReason, HandoffState, Outcome
from app.domain.errors import DeskError
from app.storage.database import Database, Store
from app.storage.history import conversation_of, last_position
from app.storage.tables import ConversationRow, DeliveryRow, FactRow, FeedbackRow, HandoffRow, MessageRow

CLAIMED = timedelta(minutes=1)  # longer than sending a message takes
LONGEST_PAUSE = timedelta(days=1)  # between two attempts
LATEST, ENOUGH = 50, 3  # maximum and minimum number of hand-offs from which the usual wait is computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message to the webhook. event: handoff.requested, .left, .taken or .closed."""

    id: str
    event: str
    created: datetime
    tries: int
    handoff: Handoff


class Deliveries(Store):
    """The messages to the webhook, in the database."""

    def claim(self, now: datetime) -> Delivery | None:
        """Return the oldest message that is due, or None. For the time `CLAIMED`, no other server sends it. After
        this time, another server may send it, because this one may have been killed.
        """
        # A message due later than the longest pause from now was recorded before the clock was set back.
        waiting = (DeliveryRow.state == "due", or_(DeliveryRow.due <= now, DeliveryRow.due > now + LONGEST_PAUSE))
        query = select(DeliveryRow, HandoffRow).join(HandoffRow, HandoffRow.id == DeliveryRow.handoff_id)
        query = query.where(*waiting).order_by(DeliveryRow.created, DeliveryRow.id).limit(1)
        with self._database.write() as session:
            found = session.execute(query).first()
            if found is None:
                return None
            row, handoff = found
            row.due = now + CLAIMED
            return row.to(Delivery, handoff=handoff.to(Handoff, place=0, usual_wait=None, messages=0, fresh=False))

    def note(self, delivery_id: str, problem: str, again: datetime | None) -> None:
        """Record an attempt. problem: the error, in one line; "": none. again: time of the next attempt, or None."""
        state = "delivered" if not problem else "failed" if again is None else "due"
        with self._database.write() as session:
            if (row := session.get(DeliveryRow, delivery_id)) is not None:  # else deleted with its conversation
                row.state, row.tries, row.due, row.problem = state, row.tries + 1, again or row.due, problem


_WATCHED = "queue watched"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffOfSomebody:
    """A hand-off as agents see it. owner, title: of the conversation. role, text, said (time): of its last message."""

    handoff: Handoff
    owner: str
    title: str
    role: str
    text: str
    said: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An answer for the hand-off rules. feedback: up, down or None."""

    outcome: Outcome
    grounding: float | None
    feedback: str | None


class Handoffs(Store):
    """The hand-offs. announced: each change also stores a message to the webhook, in the same transaction."""

    def __init__(self, database: Database, *, announced: bool) -> None:
        super().__init__(database)
        self._announced = announced

    def latest(self, conversation_id: str, owner: str) -> Handoff | None:
        with self._database.read() as session:
            row = _latest(session, conversation_id, owner)
            return None if row is None else _as_told(session, row)

    def of_owner(self, owner: str) -> list[Handoff]:
        query = select(HandoffRow).join(ConversationRow).where(ConversationRow.of(owner)).order_by(HandoffRow.id)
        with self._database.read() as session:
            return [_handoff(session, row) for row in session.scalars(query)]

    def request(
        self, conversation_id: str, owner: str, state: HandoffState, reason: HandoffReason, email: str, now: datetime
    ) -> Handoff:
        """Ask for an agent. state: waiting or left. A waiting hand-off keeps waiting; an e-mail address stays if no new
        one is given. Raises DeskError if the owner has no such conversation.
        """
        with self._database.write() as session:
            conversation_of(session, conversation_id, owner)
            row = _latest(session, conversation_id, owner)
            if row is None or row.state == "closed":
                row = HandoffRow(conversation_id=conversation_id, state="", agent="", email="")
                session.add(row)
            if row.state in ("", "left"):
                row.state, row.reason, row.requested = state, reason, now
                row.email = email or row.email
                session.flush()
                self._announce(session, row, "handoff.left" if state == "left" else "handoff.requested", now)
            return _as_told(session, row)

    def take(self, handoff_id: int, agent: str, now: datetime) -> None:
        with self._database.write() as session:
            row = _row(session, handoff_id)
            if row.state == "taken" and row.agent == agent:
                return
            if row.state == "taken":
                raise DeskError(f"{row.agent} answers this customer already", code="handoff-taken")
            if row.state == "closed":
                raise DeskError("this conversation is with the assistant again", code="handoff-closed")
            row.state, row.agent, row.taken = "taken", agent, now
            self._announce(session, row, "handoff.taken", now)

    def close(self, handoff_id: int, now: datetime) -> None:
        with self._database.write() as session:
            row = _row(session, handoff_id)
            if row.state != "closed":
                row.state, row.closed, row.position = "closed", now, last_position(session, row.conversation_id)
                self._announce(session, row, "handoff.closed", now)

    def queue(self) -> list[HandoffOfSomebody]:
        """Return open hand-offs: waiting, then taken ones, then those with only an e-mail address; oldest first."""
        there = (HandoffRow.state != "closed", ConversationRow.deleted.is_(None))
        query = select(HandoffRow).join(ConversationRow).where(*there)
        with self._database.read() as session:
            found = [_of_somebody(session, row) for row in session.scalars(query)]
        order = ("waiting", "taken", "left")
        return sorted(found, key=lambda one: (order.index(one.handoff.state), one.handoff.requested, one.handoff.id))

    def closed(self, since: datetime, agent: str) -> list[HandoffOfSomebody]:
        """Return the hand-offs closed since a time, latest first. agent: the account that took them; "" for all."""
        its = [HandoffRow.closed >= since, HandoffRow.state == "closed", ConversationRow.deleted.is_(None)]
        its += [HandoffRow.agent == agent] if agent else []
        query = select(HandoffRow).join(ConversationRow).where(*its).order_by(HandoffRow.closed.desc())
        with self._database.read() as session:
            return [_of_somebody(session, row) for row in session.scalars(query)]

    def num_waiting(self) -> int:
        its = (HandoffRow.state == "waiting", ConversationRow.deleted.is_(None))
        query = select(func.count()).select_from(HandoffRow).join(ConversationRow).where(*its)
        with self._database.read() as session:
            return session.scalar(query) or 0

    def num_others(self, conversation_id: str, owner: str) -> int:
        others = (ConversationRow.of(owner), ConversationRow.id != conversation_id)
        with self._database.read() as session:
            return session.scalar(select(func.count()).select_from(ConversationRow).where(*others)) or 0

    def named(self, handoff_id: int) -> HandoffOfSomebody:
        with self._database.read() as session:
            return _of_somebody(session, _row(session, handoff_id))

    def judged_since(self, conversation_id: str) -> tuple[list[Judged], bool]:
        """Return the assistant's answers since the last closed hand-off of the conversation (all if there was none),
        oldest first, without small talk and look-ups. Also return whether there was a closed hand-off.
        """
        last = select(func.max(HandoffRow.position)).where(HandoffRow.conversation_id == conversation_id)
        with self._database.read() as session:
            since = session.scalar(last)
            query = (
                select(MessageRow.outcome, MessageRow.grounding, FeedbackRow.value.label("feedback"))
                .outerjoin(FeedbackRow, FeedbackRow.message_id == MessageRow.id)
                .where(MessageRow.conversation_id == conversation_id, MessageRow.role == "assistant")
                .where(
                    MessageRow.outcome.notin_(("smalltalk", "lookup")),
                    MessageRow.position > (-1 if since is None else since),
                )
                .order_by(MessageRow.position)
            )
            return [Judged(**row._mapping) for row in session.execute(query)], since is not None

    def watch(self, now: datetime) -> None:
        with self._database.write() as session:
            session.merge(FactRow(key=_WATCHED, value=now.isoformat()))

    def watched(self) -> datetime | None:
        values = self._database.values(select(FactRow.value).where(FactRow.key == _WATCHED))
        return datetime.fromisoformat(values[0]) if values else None

    def _announce(self, session: Session, row: HandoffRow, event: str, now: datetime) -> None:
        if self._announced:
            delivery = DeliveryRow(id=uuid4().hex, handoff_id=row.id, event=event, created=now, state="due")
            delivery.tries, delivery.due, delivery.problem = 0, now, ""
            session.add(delivery)


def _row(session: Session, handoff_id: int) -> HandoffRow:
    row = session.get(HandoffRow, handoff_id)
    if row is None:
        raise DeskError(f"there is no hand-off {handoff_id}", code="no-such-handoff")
    return row


def _latest(session: Session, conversation_id: str, owner: str) -> HandoffRow | None:
    its = (HandoffRow.conversation_id == conversation_id, ConversationRow.of(owner))
    return session.scalar(select(HandoffRow).join(ConversationRow).where(*its).order_by(HandoffRow.id.desc()).limit(1))


def _handoff(session: Session, row: HandoffRow) -> Handoff:
    place, last = 0, last_position(session, row.conversation_id)
    if row.state == "waiting":
        earlier = tuple_(HandoffRow.requested, HandoffRow.id) <= (row.requested, row.id)
        place = session.scalar(select(func.count()).where(HandoffRow.state == "waiting", earlier)) or 0
    fresh = row.state == "closed" and row.position == last
    return row.to(Handoff, place=place, usual_wait=None, messages=last + 1, fresh=fresh)


def _as_told(session: Session, row: HandoffRow) -> Handoff:
    """Return a hand-off for its customer, with the usual wait. Agents' lists omit it: it would need a query per row."""
    return replace(_handoff(session, row), usual_wait=_usual_wait(session) if row.state == "waiting" else None)


def _usual_wait(session: Session) -> timedelta | None:
    query = select(HandoffRow.requested, HandoffRow.taken).where(HandoffRow.reason != "agent")
    latest = session.execute(query.where(HandoffRow.taken.is_not(None)).order_by(HandoffRow.id.desc()).limit(LATEST))
    waits = [taken - requested for requested, taken in latest if taken is not None]
    return median_high(waits) if len(waits) >= ENOUGH else None


def _of_somebody(session: Session, row: HandoffRow) -> HandoffOfSomebody:
    conversation = session.get_one(ConversationRow, row.conversation_id)
    its = select(MessageRow).where(MessageRow.conversation_id == row.conversation_id)
    last = session.scalar(its.order_by(MessageRow.position.desc()).limit(1))
    return HandoffOfSomebody(
        handoff=_handoff(session, row),
        owner=conversation.owner,
        title=conversation.title,
        role="" if last is None else last.role,
        text="" if last is None else last.text,
        said=row.requested if last is None else last.created,
    )
