"""The generation of the documents: a number that grows with every change of them, in the transaction of the change. A
desk sees by it that another one of the same database has changed something.

Not covered: what a desk does then (`app.desk.following`).
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.storage.tables import FactRow

_GENERATION = "generation"


def count_change(session: Session) -> None:
    """Passages, their neighbours or the FAQ change with this transaction."""
    session.merge(FactRow(key=_GENERATION, value=str(generation_of(session) + 1)))
    session.flush()


def generation_of(session: Session) -> int:
    """How often something was changed."""
    return int(session.scalar(select(FactRow.value).where(FactRow.key == _GENERATION)) or 0)
