"""Open look-ups, and the outcomes of calls. Values are stored only while a look-up is open."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from sqlalchemy import Select, delete, exists, func, select, update

from app.domain.words import utc_now
from app.storage.database import Store
from app.storage.tables import ConversationRow, LookUpCallRow, LookUpStateRow, MessageRow

HOUR = timedelta(hours=1)
KEPT = timedelta(days=90)
SHOWN_AS_EXPIRED = timedelta(days=1)
RESENT = timedelta(days=1)  # maximum age of the answers that a program may send again
_MOST_FIGURES = 10_000
_IN_A_ROW = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a look-up. by_event: counts of asked, found, not_found, failed, cancelled. ms: median of its calls."""

    by_event: dict[str, int]
    ms: float | None


def _expired(state: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields that an expired look-up keeps to tell the customer so; None for an offer, which just ends."""
    is_told = state["state"] in ("asking", "confirming", "expired")
    return {"name": state["name"], "state": "expired", "language": state["language"]} if is_told else None


class LookUpStore(Store):
    """Look-ups and calls. Safe to use from any thread; each method is a transaction and may raise DeskError."""

    def open(self, conversation_id: str) -> dict[str, Any] | None:
        """Return the state of a conversation's open look-up; of an expired one, only the fields of `_expired`."""
        return self._first(select(LookUpStateRow).where(LookUpStateRow.conversation_id == conversation_id))

    def continued(self, owner: str, trail: str) -> dict[str, Any] | None:
        """Return the open look-up of a program that sends no conversation id. trail: the hash of its messages."""
        query = select(LookUpStateRow).join(ConversationRow).where(ConversationRow.of(owner))
        return self._first(query.where(LookUpStateRow.trail == trail).order_by(LookUpStateRow.expires.desc()))

    def _first(self, query: Select[LookUpStateRow]) -> dict[str, Any] | None:
        row = next(iter(self._database.values(query.limit(1))), None)
        return None if row is None else row.state if row.expires > utc_now() else _expired(row.state)

    def save(self, conversation_id: str, state: dict[str, Any] | None, expires: datetime, trail: str = "") -> None:
        """Store, replace or (None) delete the open look-up of a conversation."""
        its = LookUpStateRow.conversation_id == conversation_id
        with self._database.write() as session:
            session.execute(delete(LookUpStateRow).where(its))
            is_there = session.get(ConversationRow, conversation_id) is not None
            if state is not None and is_there:
                row = LookUpStateRow(conversation_id=conversation_id, state=state, expires=expires, trail=trail)
                session.add(row)

    def take(self, conversation_id: str) -> bool:
        """Delete the open look-up of a conversation. Return whether it existed, so that only one request calls."""
        with self._database.write() as session:
            its = LookUpStateRow.conversation_id == conversation_id
            return bool(session.execute(delete(LookUpStateRow).where(its).returning(LookUpStateRow.trail)).all())

    def tidy(self, now: datetime) -> None:
        """Delete the values of expired look-ups, and after `SHOWN_AS_EXPIRED` all of their state. Delete the hashes of
        visitors and addresses after `HOUR`, and calls after `KEPT`.
        """
        with self._database.write() as session:
            session.execute(delete(LookUpCallRow).where(LookUpCallRow.created < now - KEPT))
            for row in session.scalars(select(LookUpStateRow).where(LookUpStateRow.expires <= now)):
                left = None if row.expires <= now - SHOWN_AS_EXPIRED else _expired(row.state)
                if left is None:
                    session.delete(row)
                else:
                    row.state = left
            old = (LookUpCallRow.created < now - HOUR, LookUpCallRow.visitor != "")
            session.execute(update(LookUpCallRow).where(*old).values(visitor="", address=""))

    def note(self, name: str, event: str, *, ms: float = 0.0, visitor: str = "", address: str = "") -> None:
        row = LookUpCallRow(created=utc_now(), name=name, event=event, ms=ms, visitor=visitor, address=address)
        with self._database.write() as session:
            session.add(row)

    def calls(self, name: str, events: Collection[str], **who: str) -> int:
        """Return the number of calls with these results in the last hour. who: either visitor or address."""
        (column, value) = next(iter(who.items()))
        its = (LookUpCallRow.name == name, getattr(LookUpCallRow, column) == value)
        since = LookUpCallRow.created > utc_now() - HOUR
        query = select(func.count()).where(*its, since, LookUpCallRow.event.in_(sorted(events)))
        return self._database.values(query)[0]

    def is_closed(self, name: str, seconds: float) -> bool:
        """Return whether calls are suspended: the last five failed, the latest within these seconds."""
        called = (LookUpCallRow.name == name, LookUpCallRow.event.in_(("found", "not_found", "failed")))
        query = select(LookUpCallRow.event, LookUpCallRow.created).where(*called)
        rows = self._database.rows(query.order_by(LookUpCallRow.id.desc()).limit(_IN_A_ROW))
        has_failed = len(rows) == _IN_A_ROW and all(row.event == "failed" for row in rows)
        return has_failed and utc_now() - rows[0].created < timedelta(seconds=seconds)

    def figures(self, name: str) -> Figures:
        its = LookUpCallRow.name == name
        counts = select(LookUpCallRow.event, func.count()).where(its).group_by(LookUpCallRow.event)
        times = select(LookUpCallRow.ms).where(its, LookUpCallRow.ms > 0).order_by(LookUpCallRow.id.desc())
        took = self._database.values(times.limit(_MOST_FIGURES))
        by_event = dict(self._database.rows(counts))
        return Figures(by_event=by_event, ms=median(took) if took else None)

    def is_used(self) -> bool:
        """Return whether any look-up was ever asked."""
        return bool(self._database.values(select(exists(select(LookUpCallRow.id))))[0])

    def answers_among(self, owner: str, texts: Collection[str]) -> frozenset[str]:
        """Return the texts that are recent answers to this owner, except answers of look-ups."""
        recent = (ConversationRow.of(owner), ConversationRow.updated > utc_now() - RESENT)
        query = select(MessageRow.text).join(ConversationRow).where(*recent, MessageRow.role == "assistant")
        query = query.where(MessageRow.outcome != "lookup", MessageRow.text.in_(sorted(texts)))
        return frozenset(self._database.values(query))
