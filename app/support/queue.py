"""The agents' side of a hand-off: who waits, what was said, taking, answering, giving back."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from app.domain.answers import Turn
from app.domain.errors import DeskError
from app.domain.lengths import LONGEST_TEXT, check_length
from app.domain.settings import Settings
from app.storage.database import Database
from app.storage.handoffs import HandoffOfSomebody, Handoffs
from app.storage.history import History

MAX_MESSAGE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCase:
    """A hand-off with everything that was said in its conversation."""

    of: HandoffOfSomebody
    turns: list[Turn]


class AgentQueue:
    """For people who are signed in. Safe to use from any thread; every method may raise DeskError."""

    def __init__(
        self, database: Database, settings: Settings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._handoffs = Handoffs(database, announced=settings.handoff_webhook is not None)
        self._history, self._now = History(database), now

    def rows(self) -> list[HandoffOfSomebody]:
        """Who waits, who has an agent, who left an address. Whoever looks counts as somebody who is there."""
        self._handoffs.watch(self._now())
        return self._handoffs.queue()

    def case(self, handoff_id: int, agent: str = "") -> OpenCase:
        """A hand-off and its conversation. agent: who looks, unless it is an admin. Raises DeskError "handoff-closed"
        for one that went back to the machine and was not this agent's: nobody handed them what is said there now.
        """
        self._handoffs.watch(self._now())
        found = self._handoffs.named(handoff_id)
        if agent and found.handoff.state == "closed" and found.handoff.agent != agent:
            raise DeskError("this conversation went back to the machine", code="handoff-closed")
        return OpenCase(of=found, turns=self._history.turns(found.handoff.conversation_id, found.owner))

    def take(self, handoff_id: int, agent: str) -> None:
        """The agent begins to answer, and the customer sees it."""
        self._handoffs.take(handoff_id, agent, self._now())

    def answer(self, handoff_id: int, agent: str, text: str) -> None:
        """Write to the customer. Raises DeskError unless this agent has taken the conversation."""
        check_length(text, LONGEST_TEXT, "message")
        text, handoff = text.strip(), self._handoffs.named(handoff_id).handoff
        if handoff.state != "taken" or handoff.agent != agent:
            raise DeskError("take this conversation before you answer", code="not-taken")
        if not 0 < len(text) <= MAX_MESSAGE:
            raise DeskError(f"a message has 1 to {MAX_MESSAGE:,} characters", code="bad-message")
        self._history.record_said(handoff.conversation_id, text, handoff_id, agent)

    def close(self, handoff_id: int) -> None:
        """Give the conversation back to the machine."""
        self._handoffs.close(handoff_id, self._now())
