"""A conversation that goes to a person: its states, and why it went there.

A conversation is with the machine until somebody asks for a person. It is then *waiting*, *taken* by an agent, and in
the end *closed*, which gives it back to the machine. Outside of office hours a customer leaves an address instead: that
hand-off is *left*, and the machine goes on answering until an agent takes it.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from app.domain.translation import translatable

HandoffState = Literal["waiting", "taken", "left", "closed"]
HandoffReason = Literal["button", "keyword", "refused", "thumbs", "support", "api"]
"""button, keyword, api: the customer asked for it. refused, thumbs, support: by rule (`app.support.rules`)."""
REASONS: dict[HandoffReason, str] = {
    "button": translatable("Asked for a person"),
    "keyword": translatable("Wrote that they want a person"),
    "refused": translatable("Two questions without an answer"),
    "thumbs": translatable("Two answers judged bad"),
    "support": translatable("Two answers that the documents hardly support"),
    "api": translatable("Sent by a program"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """A hand-off. agent: the account that took it, or how customers are told of it; "" before that. email: where the
    customer wants to be answered, "" if not said. place: in the queue, from 1; 0 if it is not waiting. messages: how
    many the conversation has. fresh: nothing was asked since it was closed.
    """

    id: int
    conversation_id: str
    state: HandoffState
    reason: HandoffReason
    requested: datetime
    taken: datetime | None = None
    closed: datetime | None = None
    agent: str = ""
    email: str = ""
    place: int = 0
    messages: int = 0
    fresh: bool = False

    @property
    def is_with_person(self) -> bool:
        """Whether the machine keeps silent."""
        return self.state in ("waiting", "taken")
