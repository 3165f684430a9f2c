"""The behaviour of the chat page: each method takes plain values and returns the parts of the page to redraw.

The browser sends the conversation's id with every call, so two readers never share state. The server only stores the
running answer of each browser session, so that Stop and switching can end it.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Literal

from app.access.limits import QuestionLimits
from app.desk.service import AnswerStream, Service
from app.domain.answers import Answer, Turn
from app.domain.callers import LONGEST_LINE, check_length
from app.domain.errors import DeskError
from app.domain.logs import in_request
from app.domain.progress import in_own_thread
from app.domain.settings import Settings
from app.domain.words import utc_now
from app.web.rendering import ENGLISH, error_words, render

YIELD_S = 0.04
SHOWN_TURNS = 40  # maximum messages of a conversation on its page, the latest
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatView:
    """Parts of the page to redraw; None leaves a part unchanged. conversation_id "" is a new conversation. editing: the
    question in the box replaces the last one.
    """

    conversation_id: str | None = None
    transcript: str | None = None
    live: str | None = None
    conversations: str | None = None
    box: str | None = None
    answering: bool | None = None
    editing: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The customer at a page. owner: the owner of the conversations (`app.domain.callers`). session: one browser tab.
    address: the browser's IP address. language: of the page's own texts (`app.web.rendering`). user: the customer's id
    on the company's site.
    """

    owner: str
    session: str
    address: str = ""
    language: str = ENGLISH
    user: str = ""


@dataclass(slots=True, eq=False)
class _Run:
    """A running answer. left: its reader opened another conversation, so it must not redraw the page."""

    stream: AnswerStream[Answer] | None = None
    stopped: bool = False
    left: bool = False


class ChatFlow:
    """The handlers of one chat page. Safe to call from several threads."""

    def __init__(
        self,
        desk: Service,
        limits: QuestionLimits,
        settings: Settings,
        *,
        now: Callable[[], datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk, self._limits, self._settings = desk, limits, settings
        self._now, self._clock = now, clock
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()

    def arrive(self, conversation_id: str, reader: Reader) -> ChatView:
        """Show a conversation after the page is loaded, like `open`. A running question of the page continues."""
        with self._lock:
            is_asking = reader.session in self._runs
        return ChatView() if is_asking else self.open(conversation_id, reader)

    def open(self, conversation_id: str, reader: Reader) -> ChatView:
        """Show a conversation. If it does not exist, or the id is "", show a new one."""
        self._end(reader.session, left=True)
        shown = _or_failure(reader, lambda: replace(self._whole(conversation_id, reader), editing=False))
        return replace(shown, answering=False)

    def ask(
        self, question: str, conversation_id: str, reader: Reader, *, replaces_last: bool = False
    ) -> Generator[ChatView]:
        """Ask, and draw the answer while it grows. Closing the iterator (the browser left) cancels the answer.
        replaces_last: replace the last question and its answer once the new answer is stored.
        """
        try:
            check_length(question, self._settings.max_question_chars)
        except DeskError as error:
            yield ChatView(live=_failure("", error, reader), box=question, answering=False)
            return
        question, session = question.strip(), reader.session
        run = _Run()
        with self._lock:  # a second question waits for the first
            accepted = bool(question) and self._runs.setdefault(session, run) is run
        if not accepted:
            yield ChatView()
            return
        replaced = ""
        try:
            with self._limits.asking(reader.owner, reader.address):
                if replaces_last and conversation_id:
                    replaced = self._desk.last_question(conversation_id, reader.owner)
                    turns = self._turns(conversation_id, reader)
                    at = next((place for place, turn in enumerate(turns) if turn.message_id == replaced), len(turns))
                    turns = [*turns[:at], *(turn for turn in turns[at + 1 :] if turn.role != "assistant")]
                    yield ChatView(transcript=self._transcript(turns, reader), editing=False)
                yield from self._draw(question, conversation_id, reader, run, replaced)
            if run.left and session not in self._runs:
                yield ChatView(live="")  # a piece may have been in transit when the reader left
        except Exception as error:  # outermost: every failure becomes one line in the chat
            if not run.left:
                shown = "" if not conversation_id else self._as_it_was(conversation_id, reader) if replaced else None
                live, editing = _failure(question, error, reader), bool(replaced) or None
                yield ChatView(transcript=shown, live=live, box=question, answering=False, editing=editing)
        finally:
            with self._lock:
                if self._runs.get(session) is run:
                    del self._runs[session]
                run.stopped, stream = True, run.stream
            if stream is not None:
                stream.cancel()

    def _as_it_was(self, conversation_id: str, reader: Reader) -> str | None:
        with suppress(DeskError):  # the part that failed before may still fail
            return self._transcript(self._turns(conversation_id, reader), reader)
        return None

    def _draw(
        self, question: str, conversation_id: str, reader: Reader, run: _Run, replaced: str
    ) -> Generator[ChatView]:
        first = None if conversation_id else ""  # a new conversation: remove the empty state
        handed = self._desk.to_person(question, conversation_id or None, reader.owner)
        if handed is not None:
            yield replace(self._whole(handed.conversation_id, reader), box="")
            return
        live = partial(render, "chat/live.html", language=reader.language, question=question)
        asked = partial(
            self._desk.ask,
            question,
            owner=reader.owner,
            conversation_id=conversation_id or None,
            user=reader.user,
            address=reader.address,
        )
        asking = self._begin(partial(asked, replaces=replaced), run)
        yield ChatView(transcript=first, live=live(text=""), box="", answering=True)
        stream = asking.result()
        text, drawn_at = "", float("-inf")
        for piece in stream:
            text += piece
            if not run.left and self._clock() - drawn_at >= YIELD_S:
                yield ChatView(live=live(text=text))
                drawn_at = self._clock()
        if run.left:
            return
        conversation_id = stream.answer.conversation_id
        self._desk.hand_off_by_rule(conversation_id, reader.owner)
        yield self._whole(conversation_id, reader)

    def _begin(self, ask: Callable[[], AnswerStream[Answer]], run: _Run) -> Future[AnswerStream[Answer]]:
        """Ask in a separate thread: the search runs while the page draws the question. If the reader has left by then,
        the answer is cancelled.
        """

        def work() -> AnswerStream[Answer]:
            stream = ask()
            with self._lock:
                run.stream, ended = stream, run.stopped
            if ended:
                stream.cancel()
            return stream

        return in_own_thread(in_request(work))

    def retry(self, conversation_id: str, reader: Reader) -> Generator[ChatView]:
        try:
            question = self._last_question(conversation_id, reader)
        except Exception as error:
            yield ChatView(live=_failure("", error, reader))
            return
        yield from self.ask(question, conversation_id, reader, replaces_last=True)

    def edit(self, conversation_id: str, reader: Reader) -> ChatView:
        return _or_failure(reader, lambda: ChatView(box=self._last_question(conversation_id, reader), editing=True))

    def _last_question(self, conversation_id: str, reader: Reader) -> str:
        turns = self._turns(conversation_id, reader)
        return next((turn.text for turn in reversed(turns) if turn.role == "user"), "")

    def stop(self, reader: Reader) -> None:
        """End the running answer; its text so far stays."""
        self._end(reader.session, left=False)

    def feedback(self, message_id: str, value: str, reason: str, reader: Reader) -> None:
        """Rate an answer. value: up, down, or anything else to remove the rating."""
        verdicts: dict[str, Literal["up", "down"]] = {"up": "up", "down": "down"}
        self._desk.feedback(message_id, verdicts.get(value), reason[:500], owner=reader.owner)

    def delete(self, conversation_id: str, open_id: str, reader: Reader) -> ChatView:
        """Delete a conversation, and offer to restore it; if it was open, show a new one."""
        is_open = conversation_id == open_id

        def work() -> ChatView:
            self._desk.delete_conversation(conversation_id, reader.owner)
            listed = self._listed("" if is_open else open_id, reader, deleted=conversation_id)
            return replace(self.open("", reader) if is_open else ChatView(), conversations=listed)

        if is_open:
            self._end(reader.session, left=True)
        return _or_failure(reader, work)

    def restore(self, conversation_id: str, reader: Reader) -> ChatView:
        def work() -> ChatView:
            self._desk.restore_conversation(conversation_id, reader.owner)
            return self.open(conversation_id, reader)

        return _or_failure(reader, work)

    def rename(self, conversation_id: str, title: str, open_id: str, reader: Reader) -> ChatView:
        def work() -> ChatView:
            check_length(title, LONGEST_LINE, "title")
            if title.strip():
                self._desk.rename_conversation(conversation_id, title, reader.owner)
            return ChatView(conversations=self._listed(open_id, reader))

        return _or_failure(reader, work)

    def find(self, query: str, open_id: str, reader: Reader) -> ChatView:
        query = query[:LONGEST_LINE].strip()
        return _or_failure(reader, lambda: ChatView(conversations=self._listed(open_id, reader, query=query)))

    def _empty(self, reader: Reader) -> str:
        return render(
            "chat/empty.html",
            language=reader.language,
            examples=self._desk.examples(),
            ready=self._desk.is_ready(),
            greeting=self._settings.greeting,
        )

    def look(self, conversation_id: str, reader: Reader) -> ChatView:
        """Redraw a new conversation: more example questions appear while documents are read."""
        with self._lock:
            is_asking = reader.session in self._runs
        return ChatView() if conversation_id or is_asking else ChatView(transcript=self._empty(reader))

    def reading(self, reader: Reader) -> str:
        """Return the line with the number of files read; "" unless an ingestion adds most of the documents."""
        read = self._desk.documents_read()
        return render("chat/reading.html", language=reader.language, read=read) if read and read.is_most else ""

    def _whole(self, conversation_id: str, reader: Reader) -> ChatView:
        """Return a stored conversation, or a new one."""
        turns = self._turns(conversation_id, reader) if conversation_id else []
        shown_id = conversation_id if turns else ""
        return ChatView(
            conversation_id=shown_id,
            transcript=self._transcript(turns, reader) if turns else self._empty(reader),
            live="",
            conversations=self._listed(shown_id, reader),
            answering=False,
        )

    def _turns(self, conversation_id: str, reader: Reader) -> list[Turn]:
        return self._desk.turns(conversation_id, reader.owner, SHOWN_TURNS + 1)

    def _transcript(self, turns: Sequence[Turn], reader: Reader) -> str:
        return render(
            "chat/transcript.html",
            language=reader.language,
            turns=turns[-SHOWN_TURNS:],
            has_older=len(turns) > SHOWN_TURNS,
            contacts=self._desk.contacts(),
            technical=self._settings.show_technical,
        )

    def _listed(self, open_id: str, reader: Reader, *, query: str = "", deleted: str = "") -> str:
        summaries = self._desk.conversations(reader.owner, query=query)
        shown = {"summaries": summaries, "open_id": open_id, "query": query, "deleted": deleted, "now": self._now()}
        return render("chat/conversations.html", language=reader.language, **shown)

    def _end(self, session: str, *, left: bool) -> None:
        with self._lock:
            run = self._runs.pop(session, None) if left else self._runs.get(session)
            if run is None:
                return
            run.stopped, run.left = True, run.left or left
            stream = run.stream
        if stream is not None:
            stream.cancel()


def _or_failure(reader: Reader, work: Callable[[], ChatView]) -> ChatView:
    try:
        return work()
    except Exception as error:
        return ChatView(live=_failure("", error, reader))


def _failure(question: str, error: Exception, reader: Reader) -> str:
    if not isinstance(error, DeskError):
        log.error("the chat page failed", exc_info=error)
    elif not error.is_away:
        log.warning("the chat page shows an error (%s): %s", error.code, error)
    return render("chat/error.html", language=reader.language, question=question, message=error_words(error))
