"""What a served desk does every minute: remove conversations for good that were deleted, or not used for longer than
the setting `keep_days` says, with what was computed for their owners, also where another desk of the database removed
them.

Not covered: what deleting is (`app.storage.conversation_care`).
"""

import threading
from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

from app.desk.repeating import repeating
from app.storage.conversation_care import UNDO_S, ConversationCare

EVERY_S = 60.0


class Housekeeping:
    """The work of one minute. Safe to use from any thread."""

    def __init__(
        self, care: ConversationCare, drop_prefixes: Callable[[str], bool], keep_days: int | None = None
    ) -> None:
        """drop_prefixes: removes what was computed for an owner; gives whether all of it is gone. keep_days: how long
        conversations are kept after their last message; None: forever.
        """
        self._care, self._drop_prefixes, self._keep_days = care, drop_prefixes, keep_days
        self._in_use = set[str]()  # owners whose prefixes an answer in progress needed
        self._asked = dict[str, str]()  # owners by conversation, which another desk may remove
        self._lock = threading.Lock()

    def tidy(self, now: datetime) -> None:
        """Remove what is due. Raises DeskError."""
        unused_since = None if self._keep_days is None else now - timedelta(days=self._keep_days)
        self.drop(self._care.purge(now - timedelta(seconds=UNDO_S), unused_since) | self._gone_elsewhere())

    def asked(self, conversation_id: str, owner: str) -> None:
        """Watch a conversation that other desks may remove: what was computed for it is here."""
        with self._lock:
            self._asked[conversation_id] = owner

    def _gone_elsewhere(self) -> Set[str]:
        with self._lock:
            asked = dict(self._asked)
        gone = asked.keys() - self._care.present(asked)
        with self._lock:
            return {self._asked.pop(conversation_id, asked[conversation_id]) for conversation_id in gone}

    def drop(self, owners: Set[str]) -> None:
        """Remove what was computed for these owners, and what was in use before; what is in use now, the next time."""
        with self._lock:
            self._in_use = {owner for owner in owners | self._in_use if not self._drop_prefixes(owner)}


def every_minute(housekeeping: Housekeeping) -> AbstractContextManager[None]:
    """Tidy now and every minute, for the block."""
    return repeating("housekeeping", EVERY_S, lambda stop: housekeeping.tidy(datetime.now(UTC)))
