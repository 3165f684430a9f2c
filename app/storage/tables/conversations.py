"""Tables of conversations, their answers and hand-offs, and the counts of them.

A citation keeps the quoted text and has no foreign key to a passage. So an old answer stays as it was when documents
change.
"""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, ColumnElement, ForeignKey, Index, UniqueConstraint, and_, false, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from app.domain.callers import OPERATOR
from app.storage.tables.base import Base, ShortText

_OPEN = text("state <> 'closed'")


class ConversationRow(Base):
    """The questions of a customer and their answers. owner: see `app.domain.callers`. deleted: the time of hiding; the
    conversation is removed soon after (`conversation_care`).
    """

    __tablename__ = "conversations"
    __table_args__ = (Index(None, "owner", "updated"),)

    id: Mapped[str] = mapped_column(ShortText(32), primary_key=True)
    title: Mapped[str]
    created: Mapped[datetime]
    updated: Mapped[datetime] = mapped_column(index=True)
    owner: Mapped[str] = mapped_column(ShortText(128), server_default=OPERATOR)
    deleted: Mapped[datetime | None] = mapped_column(index=True)

    @classmethod
    def of(cls, owner: str) -> ColumnElement[bool]:
        """Return the condition for the conversations that an owner sees."""
        return and_(cls.owner == owner, cls.deleted.is_(None))


class MessageRow(Base):
    """A question or an answer. position: in the conversation, from 0. role: user, assistant or agent. author: the
    account of an agent. handoff_id: the hand-off during which it was written; the assistant does not see it.

    tokens: the generated token ids, for the prompt of the next turn; None if the text was changed later. model: the
    fingerprint of the model with these token ids. question_id, finish_reason, policy, exact, grounding, quoted, notice
    and outcome belong to answers.
    """

    __tablename__ = "messages"
    __table_args__ = (
        UniqueConstraint("conversation_id", "position"),
        Index(None, "role", "created", "outcome"),  # the dashboard's time axis, without the texts
        Index(
            "ix_messages_checked",
            "created",
            "grounding",
            sqlite_where=text("grounding IS NOT NULL"),
            postgresql_where=text("grounding IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(ShortText(32), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey(ConversationRow.id, ondelete="CASCADE"))
    position: Mapped[int]
    role: Mapped[str] = mapped_column(ShortText(16))
    question_id: Mapped[str | None] = mapped_column(ForeignKey("messages.id", ondelete="CASCADE"), index=True)
    text: Mapped[str]
    tokens: Mapped[list[int] | None] = mapped_column(JSON(none_as_null=True))
    created: Mapped[datetime]
    finish_reason: Mapped[str | None]
    policy: Mapped[str | None]
    exact: Mapped[bool | None]
    notice: Mapped[str | None]
    grounding: Mapped[float | None]
    quoted: Mapped[bool | None]
    outcome: Mapped[str | None] = mapped_column(ShortText(16))
    author: Mapped[str | None]
    handoff_id: Mapped[int | None]
    model: Mapped[str | None]

    citations: "Mapped[list[CitationRow]]" = relationship(order_by="CitationRow.rank", lazy="raise")
    modules: "Mapped[list[ModuleUseRow]]" = relationship(order_by="ModuleUseRow.rank", lazy="raise")
    timings: "Mapped[TimingsRow | None]" = relationship(lazy="raise")
    usage: "Mapped[UsageRow | None]" = relationship(lazy="raise")
    feedback: "Mapped[FeedbackRow | None]" = relationship(lazy="raise")


def _message_id() -> Mapped[str]:
    return mapped_column(ForeignKey(MessageRow.id, ondelete="CASCADE"), primary_key=True)


class CitationRow(Base):
    """A passage that an answer cites, with its text. passage: heading path and number, for readers."""

    __tablename__ = "message_citations"

    message_id: Mapped[str] = _message_id()
    rank: Mapped[int] = mapped_column(primary_key=True)
    document: Mapped[str] = mapped_column(index=True)
    title: Mapped[str]
    passage: Mapped[str]
    quote: Mapped[str]
    score: Mapped[float]
    passage_id: Mapped[int | None]
    see_also: Mapped[bool] = mapped_column(server_default=false())
    url: Mapped[str] = mapped_column(server_default="")
    marks: Mapped[list[list[int]]] = mapped_column(JSON, server_default="[]")


class TimingsRow(Base):
    """Milliseconds of each stage of an answer."""

    __tablename__ = "message_timings"

    message_id: Mapped[str] = _message_id()
    queue: Mapped[float]
    retrieve: Mapped[float]
    load: Mapped[float]
    prefill: Mapped[float]
    ttft: Mapped[float]
    total: Mapped[float]


class UsageRow(Base):
    """Where the prompt's tokens came from: prompt_tokens = computed + session + prefix + module."""

    __tablename__ = "message_usage"

    message_id: Mapped[str] = _message_id()
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    computed: Mapped[int]
    session: Mapped[int]
    prefix: Mapped[int]
    module: Mapped[int]


class ModuleUseRow(Base):
    """A prompt module of an answer. id: of the module, called key in the database. created: as in the message, so that
    the latest misses are found without reading messages.
    """

    __tablename__ = "message_modules"
    __table_args__ = (
        Index(
            "ix_message_modules_misses",
            "created",
            sqlite_where=text("miss_reason IS NOT NULL"),
            postgresql_where=text("miss_reason IS NOT NULL"),
        ),
    )

    message_id: Mapped[str] = _message_id()
    rank: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column("key")
    name: Mapped[str]
    document: Mapped[str]
    passage: Mapped[str]
    passage_id: Mapped[int | None]
    tokens: Mapped[int]
    position: Mapped[int]
    source: Mapped[str]
    miss_reason: Mapped[str | None]
    created: Mapped[datetime]


class FeedbackRow(Base):
    """A reader's rating of an answer. value: up or down."""

    __tablename__ = "feedback"

    message_id: Mapped[str] = _message_id()
    value: Mapped[str] = mapped_column(ShortText(16))
    reason: Mapped[str]
    created: Mapped[datetime]


class HandoffRow(Base):
    """A hand-off of a conversation to an agent; a conversation has one open hand-off at most. agent: the account that
    took it. position: of the last message when it was closed.
    """

    __tablename__ = "handoffs"
    __table_args__ = (
        Index("ix_handoffs_open", "conversation_id", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
        Index(None, "state", "requested"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey(ConversationRow.id, ondelete="CASCADE"), index=True)
    state: Mapped[str] = mapped_column(ShortText(16))
    reason: Mapped[str] = mapped_column(ShortText(16))
    requested: Mapped[datetime]
    taken: Mapped[datetime | None]
    closed: Mapped[datetime | None]
    agent: Mapped[str]
    email: Mapped[str]
    position: Mapped[int | None]


class DeliveryRow(Base):
    """A message to the webhook about a hand-off. state: due, delivered or failed. due: the time of the next attempt."""

    __tablename__ = "deliveries"
    __table_args__ = (Index(None, "state", "due"),)

    id: Mapped[str] = mapped_column(ShortText(32), primary_key=True)
    handoff_id: Mapped[int] = mapped_column(ForeignKey(HandoffRow.id, ondelete="CASCADE"), index=True)
    event: Mapped[str] = mapped_column(ShortText(32))
    created: Mapped[datetime]
    state: Mapped[str] = mapped_column(ShortText(16))
    tries: Mapped[int]
    due: Mapped[datetime]
    problem: Mapped[str]


class SavingsRow(Base):
    """An answer that was computed again without reuse: see `app.domain.statistics.SavingsSample`."""

    __tablename__ = "savings"

    id: Mapped[int] = mapped_column(primary_key=True)
    created: Mapped[datetime] = mapped_column(index=True)
    question_id: Mapped[str | None] = mapped_column(ForeignKey(MessageRow.id, ondelete="SET NULL"), index=True)
    policy: Mapped[str] = mapped_column(ShortText(16))
    prompt_tokens: Mapped[int]
    computed_tokens: Mapped[int]
    first_token_ms: Mapped[float]
    without_reuse_ms: Mapped[float]
    likeness: Mapped[float | None]


class TallyRow(Base):
    """The count of an event within a span of time: see `statistics`.

    width_s: length of the span in seconds; 0 for all time. start: of the span, in seconds since 1970. amount: tokens or
    milliseconds, if the event has any.
    """

    __tablename__ = "tallies"
    __table_args__ = ({"sqlite_with_rowid": False},)

    width_s: Mapped[int] = mapped_column(primary_key=True)
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    label: Mapped[str] = mapped_column(primary_key=True)
    times: Mapped[int] = mapped_column(BigInteger)
    amount: Mapped[float]


class ModuleTallyRow(Base):
    """The uses of a module: found encoded (hits) or computed (misses). last_used: seconds since 1970."""

    __tablename__ = "module_tallies"
    __table_args__ = ({"sqlite_with_rowid": False},)

    key: Mapped[str] = mapped_column(primary_key=True)
    hits: Mapped[int]
    misses: Mapped[int]
    last_used: Mapped[int] = mapped_column(BigInteger)
