"""What the webhook is still to be told, and what became of it.

A delivery is written with the change that it tells of, in one transaction (`handoffs`), so none is lost when the desk
stops. Not covered: sending (`app.support.webhook`).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select

from app.domain.handoffs import Handoff
from app.storage.database import Database
from app.storage.tables import DeliveryRow, HandoffRow

CLAIMED = timedelta(minutes=1)
"""Longer than sending takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message to the webhook. event: handoff.requested, .left, .taken or .closed. tries: that failed so far."""

    id: str
    event: str
    created: datetime
    tries: int
    handoff: Handoff


class Deliveries:
    """Safe to use from any thread; every method is a transaction and may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, now: datetime) -> Delivery | None:
        """The oldest that is to be sent now, if there is one. Nobody else gets it before `CLAIMED` is over: another
        desk of the database does not send it, too, and what a desk that was killed had claimed is sent then.
        """
        waiting = (DeliveryRow.state == "due", DeliveryRow.due <= now)
        query = select(DeliveryRow, HandoffRow).join(HandoffRow, HandoffRow.id == DeliveryRow.handoff_id)
        query = query.where(*waiting).order_by(DeliveryRow.created, DeliveryRow.id).limit(1)
        with self._database.write() as session:
            found = session.execute(query).first()
            if found is None:
                return None
            row, handoff = found
            row.due = now + CLAIMED
            return row.to(Delivery, handoff=handoff.to(Handoff, place=0, messages=0, fresh=False))

    def delivered(self, delivery_id: str) -> None:
        """The receiver has it."""
        self._note(delivery_id, "delivered", None, "")

    def failed(self, delivery_id: str, again: datetime | None, problem: str) -> None:
        """It did not arrive. again: when to try once more; None: never. problem: one line."""
        self._note(delivery_id, "failed" if again is None else "due", again, problem)

    def _note(self, delivery_id: str, state: str, due: datetime | None, problem: str) -> None:
        with self._database.write() as session:
            row = session.get(DeliveryRow, delivery_id)
            if row is None:  # deleted with its conversation
                return
            row.state, row.tries, row.due, row.problem = state, row.tries + 1, due or row.due, problem
