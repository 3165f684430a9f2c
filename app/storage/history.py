"""Stored conversations: questions, answers and everything that is shown with an answer.

A stored answer equals the recorded one. Citations store the quoted text and never change, except that
`forget_document` removes the text of a deleted document. An answer may contain information from a deleted document if
it cites the document, or if its prompt had a passage of the document or such an answer. The time of a deletion is
stored, so answers that end later, or after a restart, are also recognised. All rows of an answer are written in
one transaction. Fields are copied to columns of the same name: a new field of a citation needs only a column.

Only its owner sees a conversation (`app.domain.callers`).
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, starmap
from typing import cast
from uuid import uuid4

from msgspec import convert
from sqlalchemy import ColumnElement, Select, delete, func, or_, select, update
from sqlalchemy.orm import Session, aliased, selectinload

from app.domain.answers import (
    Answer,
    AnswerTimings,
    AnswerUsage,
    Citation,
    ConversationSummary,
    LookUpTurn,
    Mark,
    Outcome,
    Turn,
    Unanswered,
    UsedModule,
    from_documents,
)
from app.domain.callers import OPERATOR
from app.domain.errors import DeskError
from app.domain.words import one_line, utc_now
from app.storage.database import Database
from app.storage.statistics import tally
from app.storage.tables import (
    CitationRow,
    ConversationRow,
    FaqRow,
    FeedbackRow,
    ForgottenRow,
    MessageRow,
    ModuleUseRow,
    TimingsRow,
    UsageRow,
)

NEVER = datetime.min.replace(tzinfo=UTC)


def forgotten_at(session: Session, paths: Collection[str]) -> dict[str, datetime]:
    rows = session.scalars(select(ForgottenRow).where(ForgottenRow.path.in_(sorted(paths))))
    return {row.path: row.forgotten for row in rows}


def documents_of(row: MessageRow) -> set[str]:
    return {one.document for one in row.citations} | {one.document for one in row.modules if one.document}


def resting_on_forgotten(rows: Sequence[MessageRow], forgotten: Mapping[str, datetime]) -> set[str]:
    """Return the ids of answers that may contain information from a deleted document. rows: a conversation's messages,
    in order.
    """
    asked = {row.id: row.created for row in rows}
    found, until = set(), NEVER
    for row in rows:
        question = asked.get(row.question_id or "", row.created)
        until = max([until, *(at for one in documents_of(row) if (at := forgotten.get(one, NEVER)) >= question)])
        if row.role == "assistant" and question <= until:
            found.add(row.id)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDetails:
    """Stored fields of a used module that `UsedModule` does not have. passage: heading path and number, for readers."""

    name: str
    passage: str
    passage_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDetails:
    """Stored fields of an answer that `Answer` does not have. tokens: the generated ids, if known. model: its
    fingerprint. passage_ids, modules: one for each citation or used module, in the answer's order. faq_id: the FAQ pair
    that answered, whose hits are counted. replaces: a question to delete with its answer when this answer is stored.
    """

    question_id: str
    finish_reason: str
    tokens: tuple[int, ...] | None = None
    model: str | None = None
    queue_ms: float = 0.0
    passage_ids: tuple[int | None, ...] = ()
    modules: tuple[ModuleDetails, ...] = ()
    faq_id: int | None = None
    replaces: str = ""


def message_row(answer: Answer, details: AnswerDetails, now: datetime) -> MessageRow:
    citations = zip(answer.citations, details.passage_ids, strict=True)
    modules = zip(answer.modules, details.modules, strict=True)
    return MessageRow(
        id=answer.message_id,
        role="assistant",
        question_id=details.question_id,
        text=answer.answer,
        tokens=None if details.tokens is None else list(details.tokens),
        model=details.model,
        created=now,
        finish_reason=details.finish_reason,
        lookup=None if answer.lookup is None else asdict(answer.lookup),
        **{name: getattr(answer, name) for name in ("outcome", "policy", "exact", "grounding", "quoted", "notice")},
        citations=[
            CitationRow(rank=rank, passage_id=passage_id, **asdict(citation))
            for rank, (citation, passage_id) in enumerate(citations)
        ],
        modules=[
            ModuleUseRow(rank=rank, created=now, **asdict(module), **asdict(more))
            for rank, (module, more) in enumerate(modules)
        ],
        timings=TimingsRow(queue=details.queue_ms, **asdict(answer.timings)),
        usage=UsageRow(**asdict(answer.usage)),
    )


def turn(row: MessageRow, unanswered: Unanswered | None) -> Turn:
    return row.to(
        Turn,
        message_id=row.id,
        author=row.author or "",
        answer=_answer(row) if row.role == "assistant" else None,
        feedback=None if row.feedback is None else row.feedback.value,
        unanswered=unanswered,
        reason="" if row.feedback is None else row.feedback.reason,
    )


def _answer(row: MessageRow) -> Answer:
    if row.usage is None or row.timings is None:  # both are written with the answer
        message = f"the database is damaged (answer {row.id} is incomplete): restore a backup"
        raise DeskError(message, code="database-damaged")
    return row.to(
        Answer,
        message_id=row.id,
        answer=row.text,
        citations=tuple(one.to(Citation, marks=tuple(starmap(Mark, one.marks))) for one in row.citations),
        usage=row.usage.to(AnswerUsage),
        modules=tuple(module.to(UsedModule) for module in row.modules),
        timings=row.timings.to(AnswerTimings),
        quoted=bool(row.quoted),
        lookup=None if row.lookup is None else convert(row.lookup, LookUpTurn),
    )


REMOVED_QUOTE = "(removed)"
_TITLE_CHARS = 80
LONGEST_ANSWER = timedelta(minutes=5)
_MOST_PAST = 400
"""Maximum number of messages in a prompt. More do not fit into the context of a model, even if they are short."""
_REMEMBERED = 1000  # questions that this server remembers as its own
_FORGOTTEN_AT_ONCE = 50
"""Maximum answers in one transaction that removes a document's text. Customers' questions wait for it."""
MAX_QUERY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PastMessage:
    """A message for the next prompt. text: for an answer, only the part from the documents. passage_ids: the passage
    of each module in this answer's prompt, None for other modules. A passage may have been removed since.
    """

    message_id: str = ""
    role: str
    text: str
    tokens: tuple[int, ...] | None = None
    model: str | None = None
    outcome: Outcome | None = None
    passage_ids: tuple[int | None, ...] = ()


def new_id() -> str:
    return uuid4().hex


class History:
    """Stored conversations. Safe to use from any thread; each method is a transaction and may raise DeskError."""

    def __init__(self, database: Database, longest: timedelta = LONGEST_ANSWER) -> None:
        """longest: maximum time that another server of the database needs for an answer."""
        self._database, self._longest = database, longest
        self._asked_here = deque[str](maxlen=_REMEMBERED)
        self._since, self._open = utc_now(), set[str]()  # questions that are being answered
        self._listeners: list[Callable[[Answer, AnswerDetails], None]] = []

    def listen(self, listener: Callable[[Answer, AnswerDetails], None]) -> None:
        self._listeners.append(listener)

    def start_conversation(self, title: str, owner: str = OPERATOR, most: int | None = None) -> str:
        """Start a conversation and return its id. Raises DeskError if the owner has `most` conversations already."""
        now = utc_now()
        row = ConversationRow(id=new_id(), owner=owner, title=shortened(title), created=now, updated=now)
        its = select(func.count()).select_from(ConversationRow).where(ConversationRow.of(owner))
        with self._database.write() as session:
            if most is not None and (session.scalar(its) or 0) >= most:
                raise DeskError(
                    f"you have {most:,} conversations, which is the limit: delete some first", code="too-many"
                )
            session.add(row)
        return row.id

    def conversations(self, owner: str = OPERATOR, limit: int = 50, query: str = "") -> list[ConversationSummary]:
        message = MessageRow
        words = query[:MAX_QUERY].split()
        listed = summaries(ConversationRow.of(owner), *map(holds, words))
        if all(word.isascii() for word in words):
            return [ConversationSummary(**row._mapping) for row in self._database.rows(listed.limit(limit))]
        said = select(func.aggregate_strings(message.text, "\n")).where(message.conversation_id == ConversationRow.id)
        folded = query[:MAX_QUERY].casefold().split()
        with self._database.read() as session:
            rows = session.execute(listed.add_columns(said.scalar_subquery()).execution_options(yield_per=limit))
            found = (
                ConversationSummary(id=id_, title=title, updated=updated, turns=number)
                for id_, title, updated, number, text in rows
                if all(word in f"{title}\n{text}".casefold() for word in folded)
            )
            return list(islice(found, limit))

    def conversation(self, conversation_id: str, owner: str = OPERATOR) -> ConversationSummary | None:
        rows = self._database.rows(summaries(ConversationRow.of(owner), ConversationRow.id == conversation_id))
        return ConversationSummary(**rows[0]._mapping) if rows else None

    def is_there(self, conversation_id: str, owner: str = OPERATOR) -> bool:
        its = (ConversationRow.id == conversation_id, ConversationRow.of(owner))
        return bool(self._database.values(select(ConversationRow.id).where(*its)))

    def turns(self, conversation_id: str, owner: str = OPERATOR, last: int | None = None) -> list[Turn]:
        """Return the messages of a conversation, each answer after its question. last: only the latest N."""
        query = whole(_messages_of(conversation_id, owner, last))
        being_answered = frozenset(self._open)  # before the query: an answer that ends during it is not lost
        rows = self._database.values(query)[::-1]
        done = being_answered.union(row.question_id for row in rows if row.question_id)
        return [turn(row, None if row.id in done else self._unanswered(row)) for row in rows]

    def _unanswered(self, row: MessageRow) -> Unanswered | None:
        """Return why a question has no answer: "lost" if its server stopped, else "failed"; None if one may come."""
        if row.role != "user" or row.handoff_id is not None:
            return None
        if self._database.is_shared and row.id not in self._asked_here:
            return "lost" if utc_now() - row.created >= self._longest else None
        return "lost" if row.created < self._since else "failed"

    def past(self, conversation_id: str, owner: str = OPERATOR, without: str = "") -> list[PastMessage]:
        """Return the latest messages for the next prompt, without unanswered questions and without the messages of
        look-ups. Answers that may contain information from a deleted document are empty. without: a question to skip,
        with its answers.
        """
        parts = (selectinload(MessageRow.citations), selectinload(MessageRow.modules))
        with self._database.read() as session:
            rows = session.scalars(_messages_of(conversation_id, owner, _MOST_PAST).options(*parts)).all()[::-1]
            forgotten = forgotten_at(session, {document for row in rows for document in documents_of(row)})
        out = resting_on_forgotten(rows, forgotten)
        answered = {row.question_id for row in rows}
        looked_up = {id_ for row in rows if row.outcome == "lookup" for id_ in (row.id, row.question_id)}
        return [
            row.to(
                PastMessage,
                message_id=row.id,
                text="" if row.id in out else spoken(row),
                tokens=None if row.tokens is None else tuple(row.tokens),
                passage_ids=tuple(module.passage_id for module in row.modules),
            )
            for row in rows
            if without not in (row.id, row.question_id)
            and row.id not in looked_up
            and (row.role != "user" or row.id in answered or row.handoff_id is not None)
        ]

    def cited_document(self, message_id: str, rank: int, owner: str = OPERATOR) -> str | None:
        cited = (CitationRow.message_id == message_id, CitationRow.rank == rank, ConversationRow.of(owner))
        query = select(CitationRow.document).join(MessageRow, MessageRow.id == CitationRow.message_id)
        return next(iter(self._database.values(query.join(ConversationRow).where(*cited))), None)

    def record_question(self, conversation_id: str, text: str, *, arrived: datetime | None = None) -> str:
        """Append a question and return its id. It counts as running until `ended` is called. arrived: a time before the
        conversation was read for the prompt; default: now. Raises DeskError if the conversation is deleted.
        """
        row = MessageRow(id=new_id(), role="user", text=text, created=arrived or utc_now())
        self._open.add(row.id)
        self._asked_here.append(row.id)
        try:
            with self._database.write() as session:
                _append(session, conversation_id, row)
        except BaseException:
            self.ended(row.id)
            raise
        return row.id

    def ended(self, question_id: str, *, is_withdrawn: bool = False) -> None:
        """Mark a question as finished. is_withdrawn: the question did not replace an earlier one as intended. The
        earlier one stays, and this question is deleted, unless the database is unreachable.
        """
        self._open.discard(question_id)
        if is_withdrawn:
            with suppress(DeskError), self._database.write() as session:
                session.execute(delete(MessageRow).where(MessageRow.id == question_id))

    def record_said(self, conversation_id: str, text: str, handoff_id: int, agent: str = "") -> None:
        """Append a message of a customer or agent during a hand-off. Raises DeskError for a deleted conversation."""
        row = MessageRow(id=new_id(), role="agent" if agent else "user", text=text, created=utc_now())
        row.author, row.handoff_id = agent or None, handoff_id
        with self._database.write() as session:
            _append(session, conversation_id, row)

    def record_answer(self, answer: Answer, details: AnswerDetails) -> None:
        """Append an answer under `answer.message_id` (see `new_id`), unless it is stored already. Raises DeskError if
        the conversation or the question is deleted, ValueError if the details do not fit the answer.
        """
        row = message_row(answer, details, utc_now())
        with self._database.write() as session:
            if session.get(MessageRow, row.id) is not None:  # the connection was lost after the commit
                return
            question = session.get(MessageRow, details.question_id)
            asked = row.created if question is None else question.created
            forgotten = forgotten_at(session, {one.document for one in row.citations})
            gone = [one for one in row.citations if forgotten.get(one.document, NEVER) >= asked]
            for citation in gone:  # deleted while the answer was generated
                citation.quote = REMOVED_QUOTE
            if gone and row.quoted:
                row.text, row.tokens = REMOVED_QUOTE, None
            _append(session, answer.conversation_id, row)
            if details.faq_id is not None:
                hit = {FaqRow.hits: FaqRow.hits + 1, FaqRow.last_hit: row.created}
                session.execute(update(FaqRow).where(FaqRow.id == details.faq_id).values(hit))
            if question is None:  # removed while the answer was generated
                raise DeskError(f"there is no question {details.question_id!r}", code="no-such-message")
            if details.replaces:
                _replace(session, details.replaces, question)
            if answer.outcome != "lookup":
                tally(session, row)
        if details.replaces:
            self._database.flush_log()
        self.ended(details.question_id)
        for listener in self._listeners:
            listener(answer, details)

    def feedback(self, message_id: str, value: str | None, reason: str = "", *, owner: str = OPERATOR) -> None:
        """Store the reader's rating of an answer, "up" or "down"; None deletes the rating. Raises DeskError."""
        if value not in ("up", "down", None):
            raise DeskError(f"feedback is {value!r}: it must be up or down", code="bad-feedback")
        with self._database.write() as session:
            answers = select(MessageRow.id).join(ConversationRow).where(ConversationRow.of(owner))
            if session.scalar(answers.where(MessageRow.id == message_id, MessageRow.role == "assistant")) is None:
                raise DeskError(f"there is no answer {message_id!r}", code="no-such-message")
            if value is None:
                session.execute(delete(FeedbackRow).where(FeedbackRow.message_id == message_id))
            else:
                session.merge(FeedbackRow(message_id=message_id, value=value, reason=reason, created=utc_now()))

    def forget_document(self, path: str) -> None:
        """Remove the text of a document from all stored citations and from answers that quote it. This includes answers
        that are recorded later to earlier questions. Answers in the model's own words stay readable, but later prompts
        do not contain them. Call this before and after `Library.remove`; it can be repeated.
        """
        cited = CitationRow.document == path
        citing = select(CitationRow.message_id).where(cited, CitationRow.quote != REMOVED_QUOTE).distinct()
        with self._database.write() as session:
            newest = session.scalar(select(func.max(MessageRow.created)).where(MessageRow.role == "user"))
            now = max(
                utc_now(), newest or NEVER
            )  # later than all questions, also if the clock of another server is ahead
            session.merge(ForgottenRow(path=path, forgotten=now))
        is_done = False
        while not is_done:
            with self._database.write() as session:
                some = session.scalars(citing.limit(_FORGOTTEN_AT_ONCE)).all()
                quoting = MessageRow.quoted.is_(True) & MessageRow.id.in_(some)
                session.execute(update(MessageRow).where(quoting).values(text=REMOVED_QUOTE, tokens=None))
                its = cited & CitationRow.message_id.in_(some)
                session.execute(update(CitationRow).where(its).values(quote=REMOVED_QUOTE))
            is_done = len(some) < _FORGOTTEN_AT_ONCE
        self._database.flush_log()
        self._database.remove_backups()  # they also contain its text

    def forgotten(self) -> dict[str, datetime]:
        return {row.path: row.forgotten for row in self._database.values(select(ForgottenRow))}

    def quotes_of(self, path: str) -> int:
        its = (CitationRow.document == path, CitationRow.quote != REMOVED_QUOTE)
        return self._database.values(select(func.count()).where(*its))[0]


def conversation_of(session: Session, conversation_id: str, owner: str) -> ConversationRow:
    its = select(ConversationRow).where(ConversationRow.id == conversation_id, ConversationRow.of(owner))
    if (row := session.scalar(its)) is None:
        raise DeskError(f"there is no conversation with the id {conversation_id}", code="no-such-conversation")
    return row


def last_position(session: Session, conversation_id: str) -> int:
    """Return the position of the last message; -1 without messages."""
    last = select(func.max(MessageRow.position)).where(MessageRow.conversation_id == conversation_id)
    position = session.scalar(last)
    return -1 if position is None else position


def _append(session: Session, conversation_id: str, row: MessageRow) -> None:
    conversation = session.get(ConversationRow, conversation_id)
    if conversation is None:
        raise DeskError(f"there is no conversation with the id {conversation_id}", code="no-such-conversation")
    row.conversation_id, row.position = conversation_id, last_position(session, conversation_id) + 1
    conversation.updated = row.created
    conversation.title = conversation.title or shortened(row.text)
    session.add(row)


def _replace(session: Session, id_: str, question: MessageRow) -> None:
    """Delete a question with its answer. If it was the first of its conversation and is the title, the new question
    becomes the title.
    """
    its = MessageRow.conversation_id == question.conversation_id
    if (old := session.scalar(select(MessageRow).where(MessageRow.id == id_, its))) is None:
        return
    conversation = session.get_one(ConversationRow, old.conversation_id)
    is_first = session.scalar(select(func.min(MessageRow.position)).where(its)) == old.position
    if is_first and conversation.title == shortened(old.text):
        conversation.title = shortened(question.text)
    session.execute(delete(MessageRow).where(MessageRow.id == id_))  # its answer goes with it


def latest_messages(*which: ColumnElement[bool]) -> Select[MessageRow]:
    """Return a query for messages, latest first. An answer is next to its question, even if another question was asked
    before the answer ended. which: conditions on messages and conversations.
    """
    question = aliased(MessageRow)
    place = func.coalesce(question.position, MessageRow.position)
    query = select(MessageRow).join(ConversationRow, ConversationRow.id == MessageRow.conversation_id)
    query = query.outerjoin(question, question.id == MessageRow.question_id)
    return query.where(*which).order_by(place.desc(), MessageRow.position.desc())


def whole(query: Select[MessageRow]) -> Select[MessageRow]:
    message = MessageRow
    parts = (message.citations, message.modules, message.timings, message.usage, message.feedback)
    return query.options(*(selectinload(part) for part in parts))


def _messages_of(conversation_id: str, owner: str, last: int | None) -> Select[MessageRow]:
    return latest_messages(MessageRow.conversation_id == conversation_id, ConversationRow.of(owner)).limit(last)


def spoken(row: MessageRow) -> str:
    """Return the text of a message; for an answer, only the part from the documents."""
    return row.text if row.outcome is None else from_documents(row.text, cast("Outcome", row.outcome))


def summaries(*which: ColumnElement[bool]) -> Select[str, str, datetime, int]:
    """Return a query for conversations with messages, the last used first. which: conditions on conversations."""
    table = ConversationRow
    turns = select(func.count()).where(MessageRow.conversation_id == table.id).scalar_subquery()
    listed = select(table.id, table.title, table.updated, turns.label("turns")).where(turns > 0, *which)
    return listed.order_by(table.updated.desc(), table.id)


def holds(word: str) -> ColumnElement[bool]:
    """Return the SQL condition that a conversation may contain a word. SQLite ignores case only for ASCII letters, so
    a wildcard replaces every other letter that has upper and lower case.
    """
    escaped = (f"\\{letter}" if letter in "\\%_" else letter for letter in word)
    pattern = "".join(one if len(one) > 1 or one.isascii() or one.lower() == one.upper() else "_" for one in escaped)
    title, text = (column.ilike(f"%{pattern}%", escape="\\") for column in (ConversationRow.title, MessageRow.text))
    return or_(title, select(MessageRow.id).where(MessageRow.conversation_id == ConversationRow.id, text).exists())


def shortened(title: str) -> str:
    """Return a title, or a question that becomes one, in one line of at most 80 characters."""
    words = one_line(title)
    return words if len(words) <= _TITLE_CHARS else words[: _TITLE_CHARS - 1].rstrip() + "…"
