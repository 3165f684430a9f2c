"""The line above the box of the chat: who answers this conversation, and the way to a person and back.

Not covered: Gradio (`handoff_part`), the agents' pages (`queue_routes`).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from app.access.limits import QuestionLimits
from app.desk.interface import Desk
from app.domain.errors import DeskError
from app.domain.lengths import LONGEST_LINE, check_length
from app.domain.office_hours import is_open
from app.domain.settings import Settings
from app.domain.translation import gettext, speaking, translatable
from app.web.chat_flow import Reader
from app.web.error_words import error_words
from app.web.languages import translations
from app.web.rendering import render

TALK = translatable("Talk to a person")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffLine:
    """The line. live: a person answers, so the page has to look for news. mark: changes with what is to be shown, and
    with every message.
    """

    conversation_id: str
    html: str
    live: bool
    mark: str


class HandoffView:
    """What the line shows and does. Safe to call from several threads."""

    def __init__(
        self,
        desk: Desk,
        settings: Settings,
        limits: QuestionLimits,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._desk, self._settings, self._limits, self._now = desk, settings, limits, now

    def line(self, conversation_id: str, reader: Reader, problem: str = "") -> HandoffLine:
        """The line of a conversation; "" is a new one. problem: what went wrong, in English. Raises DeskError."""
        handoff = self._desk.handoff(conversation_id, reader.owner) if conversation_id else None
        html = render(
            "chat/handoff.html",
            language=reader.language,
            handoff=handoff,
            offered=self._settings.handoff != "off",
            is_open=is_open(self._settings.office_hours, self._now()),
            contacts=self._contacts(),
            problem=problem,
        )
        live = handoff is not None and handoff.is_with_person
        shown = f"{conversation_id} {0 if handoff is None else handoff.messages} {html}"
        mark = hashlib.sha256(shown.encode()).hexdigest()[:16]
        return HandoffLine(conversation_id=conversation_id, html=html, live=live, mark=mark)

    def act(self, act: str, conversation_id: str, email: str, reader: Reader) -> HandoffLine:
        """What a button asks for: "ask" for a person, with an e-mail address outside of office hours, or "end" it."""
        try:
            with self._limits.asking(reader.owner, reader.address):
                if act == "end":
                    self._desk.end_handoff(conversation_id, reader.owner)
                elif act == "ask":
                    check_length(email, LONGEST_LINE, "e-mail address")
                    conversation_id = self._asked(conversation_id, email.strip(), reader)
        except DeskError as error:
            return self.line(conversation_id, reader, error_words(error))
        return self.line(conversation_id, reader)

    def judged(self, conversation_id: str, reader: Reader) -> None:
        """An answer was judged, which may bring a person. Raises DeskError."""
        if conversation_id:
            self._desk.hand_off_by_rule(conversation_id, reader.owner)

    def _asked(self, conversation_id: str, email: str, reader: Reader) -> str:
        with speaking(translations(reader.language)):
            text = "" if conversation_id else gettext(TALK)  # a conversation begins with something
        handed = self._desk.hand_off(
            "button", owner=reader.owner, conversation_id=conversation_id or None, text=text, email=email
        )
        return handed.conversation_id

    def _contacts(self) -> list[tuple[str, str]]:
        """The contacts as they are shown, and the address of a link or ""."""
        links = self._desk.contacts()
        hours = self._settings.contact_hours
        return [*links.items(), *([(hours, "")] if hours else [])]
