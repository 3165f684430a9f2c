"""Hand-offs: the rules that start one, the agents' side and the customer's side.

The same answers never cause two hand-offs. After a hand-off only later answers count, and only once the customer has
asked `PAUSE` more questions, so a conversation does not return to an agent at once. The state of a hand-off is one row
of the database, changed by buttons, phrases and rules. The language model has no part in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from app.domain.answers import Handoff, HandoffReason, HandoffState, Turn
from app.domain.callers import LONGEST_LINE, LONGEST_TEXT, check_length, is_customer
from app.domain.errors import DeskError
from app.domain.setting_types import is_open
from app.domain.settings import Settings
from app.domain.words import utc_now
from app.privacy import redact
from app.replies.replies import heard
from app.storage.database import Database
from app.storage.handoffs import HandoffOfSomebody, Handoffs, Judged
from app.storage.history import History
from app.storage.lookups import LookUpStore
from retrieval.text.terms import language_of

PAUSE = 5  # questions after an agent handed a conversation back before the rules apply again
IN_A_ROW = 2  # this many consecutive answers must be empty or hardly supported, or rated bad
LOW_SUPPORT = 0.5  # answers with less support by the documents count as hardly supported


def due(answers: Sequence[Judged], came_back: bool) -> HandoffReason | None:
    """Return the reason for a hand-off now, or None. answers: see `Handoffs.judged_since`. came_back: an agent has
    handed the conversation back.
    """
    if came_back and len(answers) < PAUSE:
        return None
    last = answers[-IN_A_ROW:]
    if len(last) == IN_A_ROW and all(answer.outcome == "nothing" for answer in last):
        return "refused"
    if sum(answer.feedback == "down" for answer in answers) >= IN_A_ROW:
        return "thumbs"
    hardly = [answer for answer in last if answer.grounding is not None and answer.grounding < LOW_SUPPORT]
    return "support" if len(hardly) == IN_A_ROW else None


MAX_MESSAGE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCase:
    """A hand-off with all messages of its conversation. others: number of the customer's other conversations.
    looked_up: the values of the look-up that was open at the hand-off.
    """

    of: HandoffOfSomebody
    turns: list[Turn]
    others: int
    looked_up: str = ""

    @property
    def last_question(self) -> str:
        """The customer's last message; "" if there is none."""
        return next((turn.text for turn in reversed(self.turns) if turn.role == "user"), "")


class AgentQueue:
    """The agents' access to hand-offs. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, database: Database, settings: Settings, *, now: Callable[[], datetime] = utc_now) -> None:
        self._handoffs = Handoffs(database, announced=settings.handoff_webhook is not None)
        self._history, self._lookups, self._now = History(database), LookUpStore(database), now

    def rows(self) -> list[HandoffOfSomebody]:
        """Return the open hand-offs (`Handoffs.queue`), and record that an agent is present."""
        self._handoffs.watch(self._now())
        return self._handoffs.queue()

    def num_waiting(self) -> int:
        """Return the number of waiting customers, and record that an agent is present."""
        self._handoffs.watch(self._now())
        return self._handoffs.num_waiting()

    def case(self, handoff_id: int, agent: str = "") -> OpenCase:
        """Return a hand-off with its conversation. agent: the reading agent; "" for an admin. Raises DeskError
        "handoff-closed" for a closed hand-off of another agent, because later messages are private.
        """
        self._handoffs.watch(self._now())
        found = self._handoffs.named(handoff_id)
        if agent and found.handoff.state == "closed" and found.handoff.agent != agent:
            raise DeskError("this conversation is with the assistant again", code="handoff-closed")
        conversation, owner = found.handoff.conversation_id, found.owner
        others = self._handoffs.num_others(conversation, owner)
        looked_up = (self._lookups.open(conversation) or {}).get("text", "")
        turns = self._history.turns(conversation, owner)
        return OpenCase(of=found, turns=turns, others=others, looked_up=looked_up)

    def closed(self, agent: str = "") -> list[HandoffOfSomebody]:
        """Return the hand-offs closed within the last day. agent: the account that took them; "" for all."""
        return self._handoffs.closed(self._now() - timedelta(days=1), agent)

    def step_in(self, conversation_id: str, owner: str, agent: str) -> int:
        """Hand a conversation to an agent without a request. Return the number of the hand-off. Raises DeskError
        "handoff-taken" if another agent has the conversation.
        """
        handoff = self._handoffs.request(conversation_id, owner, "waiting", "agent", "", self._now())
        self._handoffs.take(handoff.id, agent, self._now())
        return handoff.id

    def take(self, handoff_id: int, agent: str) -> None:
        self._handoffs.take(handoff_id, agent, self._now())

    def answer(self, handoff_id: int, agent: str, text: str) -> None:
        check_length(text, LONGEST_TEXT, "message")
        text, handoff = text.strip(), self._handoffs.named(handoff_id).handoff
        if handoff.state != "taken" or handoff.agent != agent:
            raise DeskError("take this conversation before you answer", code="not-taken")
        if not 0 < len(text) <= MAX_MESSAGE:
            raise DeskError(f"a message has 1 to {MAX_MESSAGE:,} characters", code="bad-message")
        self._history.record_said(handoff.conversation_id, text, handoff_id, agent)

    def close(self, handoff_id: int) -> None:
        self._handoffs.close(handoff_id, self._now())


WATCHED_FOR = timedelta(minutes=2)
"""A rule hands a conversation off only if an agent looked at the queue within this time."""
MAX_EMAIL = 254


class HandingOff:
    """The customers' access to hand-offs. Safe to use from any thread; may raise DeskError."""

    def __init__(
        self, database: Database, history: History, settings: Settings, *, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._handoffs = Handoffs(database, announced=settings.handoff_webhook is not None)
        self._history, self._settings, self._now = history, settings, now

    def handoff(self, conversation_id: str, owner: str) -> Handoff | None:
        """Return the last hand-off of a conversation, as its customer may see it."""
        found = self._handoffs.latest(conversation_id, owner)
        return None if found is None else self._shown(found)

    def handoffs(self, owner: str) -> list[Handoff]:
        return [self._shown(one) for one in self._handoffs.of_owner(owner)]

    def hand_off(
        self, reason: HandoffReason, *, owner: str, conversation_id: str | None = None, text: str = "", email: str = ""
    ) -> Handoff:
        """Ask for an agent. text: the customer's message; it starts and titles a new conversation. email: for the
        reply; required outside of office hours, when the assistant continues to answer. Raises DeskError.
        """
        if self._settings.handoff == "off":
            raise DeskError("hand-off to a person is disabled (setting handoff = off)", code="handoff-off")
        text = self._checked(text, email)
        state: HandoffState = "waiting" if self._is_open else "left"
        if conversation_id is not None and not self._history.is_there(conversation_id, owner):
            raise DeskError(f"there is no conversation {conversation_id!r}", code="no-such-conversation")
        if state == "left" and not email:
            raise DeskError("no agent is available now: leave an e-mail address", code="outside-hours")
        if conversation_id is None:
            most = self._settings.conversations_kept if is_customer(owner) else None
            title = redact(email) if self._settings.redact else email
            conversation_id = self._history.start_conversation(text or title, owner, most)
        handoff = self._handoffs.request(conversation_id, owner, state, reason, email, self._now())
        if text:
            self._history.record_said(conversation_id, text, handoff.id)
        return self._shown(replace(handoff, messages=handoff.messages + bool(text)))

    def to_person(self, text: str, conversation_id: str | None, owner: str) -> Handoff | None:
        """Store a message if it is for an agent: an agent has the conversation, or the message asks for one. Return
        None otherwise. Raises DeskError.
        """
        check_length(text, self._settings.max_question_chars, "message")
        current = None if conversation_id is None else self._handoffs.latest(conversation_id, owner)
        if current is not None and current.is_with_person:
            self._history.record_said(current.conversation_id, self._checked(text), current.id)
            return self._shown(replace(current, messages=current.messages + 1))
        said = heard(text, language_of(text))
        if self._settings.handoff == "off" or not self._is_open or said is None or said.kind != "human":
            return None
        return self.hand_off("keyword", owner=owner, conversation_id=conversation_id, text=text)

    def hand_off_by_rule(self, conversation_id: str, owner: str) -> Handoff | None:
        """Hand the conversation off if a rule applies and an agent is present; else return None."""
        if self._settings.handoff != "rules" or not self._is_open:
            return None
        current, now = self._handoffs.latest(conversation_id, owner), self._now()
        if current is not None and current.state != "closed":
            return None
        reason = due(*self._handoffs.judged_since(conversation_id))
        if reason is None:
            return None
        watched = self._handoffs.watched()
        if watched is None or now - watched > WATCHED_FOR:
            return None
        return self._shown(self._handoffs.request(conversation_id, owner, "waiting", reason, "", now))

    def end_handoff(self, conversation_id: str, owner: str) -> None:
        """Give the conversation back to the assistant. Does nothing without a hand-off."""
        found = self._handoffs.latest(conversation_id, owner)
        if found is not None:
            self._handoffs.close(found.id, self._now())

    def check_with_machine(self, conversation_id: str | None, owner: str) -> None:
        current = None if conversation_id is None else self._handoffs.latest(conversation_id, owner)
        if current is not None and current.is_with_person:
            raise DeskError("an agent answers this conversation, so the assistant does not", code="with-person")

    @property
    def _is_open(self) -> bool:
        return is_open(self._settings.office_hours, self._now())

    def _shown(self, handoff: Handoff) -> Handoff:
        return handoff if self._settings.show_agent_names else replace(handoff, agent="")

    def _checked(self, text: str, email: str = "") -> str:
        check_length(text, self._settings.max_question_chars, "message")
        check_length(email, LONGEST_LINE, "e-mail address")
        name, _, domain = email.partition("@")
        is_address = name and domain and len(email) <= MAX_EMAIL and email.isprintable() and " " not in email
        if email and not is_address:
            raise DeskError(f"{email[:80]!r} is not an e-mail address", code="bad-email")
        return redact(text) if self._settings.redact else text
