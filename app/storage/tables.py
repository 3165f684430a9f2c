"""The database's tables: what the desk knows (documents, passages) and what was said (conversations, answers).

Citations keep the quoted text and have no foreign key to a passage: an old answer stays as it was when documents
change. Times are UTC. Every change here needs a migration (`migrations`); a test compares the two.

Not covered: queries (`library`, `history`), connections and transactions (`database`).
"""

from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    and_,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from app.domain.callers import OPERATOR

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
IN_USE = text("revoked IS NULL")
LARGEST_NUMBER: Final = 2**31 - 1
"""Of a row. With more PostgreSQL does not even compare."""


class UtcDateTime(TypeDecorator[datetime]):
    """Aware in Python, UTC without a zone in the database (SQLite knows none)."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To the database. A time without a zone is a mistake of ours."""
        assert value is None or value.tzinfo is not None
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """From the database."""
        return None if value is None else value.replace(tzinfo=UTC)


class AnyText(TypeDecorator[str]):
    """Text from outside. Characters that no database stores are written as an escape: half of a surrogate pair (from
    JSON, or a file name that is not UTF-8) and, for PostgreSQL, NUL.
    """

    impl: type[String] = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """To the database. Equal texts stay equal, so that comparisons work."""
        if value is None:
            return None
        return value.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


class ShortText(AnyText):
    """The same with a greatest length, such as an id: PostgreSQL refuses what is longer."""

    impl = String
    cache_ok = True


class Base(DeclarativeBase):
    """Base of every table."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime: UtcDateTime, str: AnyText}  # noqa: RUF012

    def to(self, kind: type[T], **others: Any) -> T:
        """A value of this dataclass: each field has the column of the same name, or what is given here."""
        return kind(**{one.name: getattr(self, one.name) for one in fields(kind) if one.name not in others}, **others)


class DocumentRow(Base):
    """A file that was ingested. path: its absolute path or the name it was ingested under. collection: "" for none.
    url: where everybody can read it, "" if that is not known.
    """

    __tablename__ = "documents"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(unique=True)
    title: Mapped[str]
    content_hash: Mapped[str]
    loaded_at: Mapped[datetime]
    num_passages: Mapped[int]
    collection: Mapped[str] = mapped_column(server_default="", index=True)
    url: Mapped[str] = mapped_column(server_default="")


class PassageRow(Base):
    """A part of a document. id: its number in the vector index, never reused (hence autoincrement)."""

    __tablename__ = "passages"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(primary_key=True)
    document_id: Mapped[int] = mapped_column(ForeignKey(DocumentRow.id, ondelete="CASCADE"), index=True)
    ordinal: Mapped[int]
    heading_path: Mapped[list[str]] = mapped_column(JSON)
    text: Mapped[str]
    content_hash: Mapped[str]
    num_tokens: Mapped[int]
    embedding: Mapped[bytes] = mapped_column(LargeBinary)  # float32, little-endian
    module_key: Mapped[str | None] = mapped_column(index=True)


class PassageStatementsRow(Base):
    """A passage's statements with their vectors. encoder: what read the passage, and by which rules it was cut."""

    __tablename__ = "passage_statements"

    passage_id: Mapped[int] = mapped_column(ForeignKey(PassageRow.id, ondelete="CASCADE"), primary_key=True)
    encoder: Mapped[str]
    vectors: Mapped[bytes] = mapped_column(LargeBinary)


class StagedEmbeddingRow(Base):
    """The vectors of a passage that is not stored yet: after an interruption they are not computed again."""

    __tablename__ = "staged_embeddings"

    content_hash: Mapped[str] = mapped_column(primary_key=True)
    embedding: Mapped[bytes] = mapped_column(LargeBinary)


class PassageNeighbourRow(Base):
    """The neighbours of a passage. rank: 0 for the closest. The index on neighbour_id finds who has it."""

    __tablename__ = "passage_neighbours"

    passage_id: Mapped[int] = mapped_column(ForeignKey(PassageRow.id, ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True)
    neighbour_id: Mapped[int] = mapped_column(ForeignKey(PassageRow.id, ondelete="CASCADE"), index=True)


class ConversationRow(Base):
    """A customer's questions and their answers. owner: see `app.domain.callers`. deleted: since when it is hidden, to
    be removed soon (`conversation_care`).
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
        """The conversations that an owner sees."""
        return and_(cls.owner == owner, cls.deleted.is_(None))


class MessageRow(Base):
    """A question or an answer. position: its place in the conversation, from 0. role: user, assistant or agent; author:
    the account of an agent's message. handoff_id: during which hand-off it was written, so not for the machine.

    tokens: the exact ids that were generated, for the next turn's prompt; None if the text was changed afterwards.
    model: fingerprint of the model whose ids these are; None for answers from before it was recorded.
    question_id, finish_reason, policy, exact, grounding, quoted, notice and outcome belong to answers.
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
    """A passage that an answer cites, with its text. passage: heading path and number, for people."""

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
    """A prompt module of an answer. id: of the module, called key in the database. created repeats the message's, to
    find the latest misses without reading messages.
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


class ForgottenRow(Base):
    """A document that was forgotten, and when: see `forgotten`."""

    __tablename__ = "forgotten_documents"

    path: Mapped[str] = mapped_column(primary_key=True)
    forgotten: Mapped[datetime]


class TallyRow(Base):
    """How often something happened within a span of time, and how much of it: see `tallies`.

    width_s: of the span, in seconds; 0 for all time. start: its beginning, in seconds since 1970. amount: tokens or
    milliseconds, where there are any.
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
    """How often a module was found encoded (hits), and had to be computed (misses). last_used: seconds since 1970."""

    __tablename__ = "module_tallies"
    __table_args__ = ({"sqlite_with_rowid": False},)

    key: Mapped[str] = mapped_column(primary_key=True)
    hits: Mapped[int]
    misses: Mapped[int]
    last_used: Mapped[int] = mapped_column(BigInteger)


class FeedbackRow(Base):
    """What a reader thinks of an answer. value: up or down."""

    __tablename__ = "feedback"

    message_id: Mapped[str] = _message_id()
    value: Mapped[str] = mapped_column(ShortText(16))
    reason: Mapped[str]
    created: Mapped[datetime]


_OPEN = text("state <> 'closed'")


class HandoffRow(Base):
    """A conversation that goes to a person; one at a time is not closed. agent: the account that took it. position:
    of the conversation's last message when it was closed.
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
    """A message to the webhook about a hand-off. state: due, delivered or failed. due: when it is tried (again)."""

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


class FaqRow(Base):
    """A question that an agent answered, with other wordings of it. author: the account that wrote it last. hits: how
    often it answered a customer by itself. vectors: of the question and its wordings, float32, little-endian.
    """

    __tablename__ = "faq"

    id: Mapped[int] = mapped_column(primary_key=True)
    question: Mapped[str]
    answer: Mapped[str]
    wordings: Mapped[list[str]] = mapped_column(JSON)
    author: Mapped[str]
    created: Mapped[datetime]
    updated: Mapped[datetime]
    hits: Mapped[int] = mapped_column(server_default="0")
    last_hit: Mapped[datetime | None]
    embedder: Mapped[str]
    vectors: Mapped[bytes] = mapped_column(LargeBinary)


class AccountRow(Base):
    """Somebody who looks after the desk. role: agent or admin."""

    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    role: Mapped[str] = mapped_column(ShortText(16))
    password_hash: Mapped[str]
    created: Mapped[datetime]


class SessionRow(Base):
    """A sign-in. token_hash: see `sessions`."""

    __tablename__ = "sessions"

    token_hash: Mapped[str] = mapped_column(ShortText(64), primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey(AccountRow.id, ondelete="CASCADE"), index=True)
    created: Mapped[datetime]
    expires: Mapped[datetime] = mapped_column(index=True)


class AuditRow(Base):
    """Something that somebody who looks after the desk did: see `audit`."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)
    created: Mapped[datetime] = mapped_column(index=True)
    who: Mapped[str]
    action: Mapped[str] = mapped_column(ShortText(32))
    subject: Mapped[str]


class SavingsRow(Base):
    """An answer that was computed a second time without reuse: see `app.domain.statistics.SavingsSample`."""

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


class ApiKeyRow(Base):
    """A key with which programs reach the API. id: part of the owner of its conversations. token_hash: SHA-256 of the
    key; shown: how it begins. scopes: separated by spaces. revoked: since when it no longer works.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        Index("uq_api_keys_name_in_use", "name", unique=True, sqlite_where=IN_USE, postgresql_where=IN_USE),
    )

    id: Mapped[str] = mapped_column(ShortText(16), primary_key=True)
    name: Mapped[str]
    token_hash: Mapped[str] = mapped_column(ShortText(64), unique=True)
    shown: Mapped[str] = mapped_column(ShortText(16))
    scopes: Mapped[str]
    per_minute: Mapped[int]
    created: Mapped[datetime]
    last_used: Mapped[datetime | None]
    revoked: Mapped[datetime | None]


class SyncedFolderRow(Base):
    """A folder that is read again and again: see `synced_folders`. last_result: of the last reading, its fields."""

    __tablename__ = "synced_folders"

    id: Mapped[int] = mapped_column(primary_key=True)
    folder: Mapped[str] = mapped_column(unique=True)
    collection: Mapped[str]
    every_minutes: Mapped[int]
    next_run: Mapped[datetime]
    last_run: Mapped[datetime | None]
    last_result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class DeskRow(Base):
    """A desk that is open on this database: see `desks`. generation: of the documents, up to which it follows."""

    __tablename__ = "desks"

    id: Mapped[str] = mapped_column(ShortText(32), primary_key=True)
    seen: Mapped[datetime]
    generation: Mapped[int] = mapped_column(BigInteger)


class FactRow(Base):
    """What the program remembers about its own data, such as the embedder of the stored vectors."""

    __tablename__ = "facts"

    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]
