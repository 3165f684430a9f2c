"""All tables of the database: documents, conversations with their answers and hand-offs, and accounts. Times are UTC. A
changed table needs a revision (`migrations`).

A citation stores the quoted text and has no foreign key to a passage. So an old answer does not change when documents
change.
"""

from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from app.domain.callers import OPERATOR
from app.storage.columns import AnyText, ShortText, UtcDateTime

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
LARGEST_NUMBER: Final = 2**31 - 1
"""Maximum id of a row. PostgreSQL refuses to compare larger numbers."""


def _partial(name: str, *columns: str, where: str, unique: bool = False) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, sqlite_where=sa.text(where))


class Base(DeclarativeBase):
    """The base class of all tables."""

    metadata = sa.MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime: UtcDateTime, str: AnyText}  # noqa: RUF012

    def to(self, kind: type[T], **others: Any) -> T:
        """Return the row as a value of a dataclass. others: fields that are not columns of the same name."""
        return kind(**{one.name: getattr(self, one.name) for one in fields(kind) if one.name not in others}, **others)


class DocumentRow(Base):
    """An ingested file. path: its absolute path, or the name under which it was ingested. collection: "" for none.
    url: its public address, "" if unknown. remarks: see `NewDocument`.
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
    remarks: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))


class PassageRow(Base):
    """A part of a document. id: its number in the vector index, never reused (therefore autoincrement)."""

    __tablename__ = "passages"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(primary_key=True)
    document_id: Mapped[int] = mapped_column(sa.ForeignKey(DocumentRow.id, ondelete="CASCADE"), index=True)
    ordinal: Mapped[int]
    heading_path: Mapped[list[str]] = mapped_column(sa.JSON)
    text: Mapped[str]
    content_hash: Mapped[str]
    num_tokens: Mapped[int]
    embedding: Mapped[bytes] = mapped_column(sa.LargeBinary)  # float32, little-endian
    module_key: Mapped[str | None] = mapped_column(index=True)


class PassageStatementsRow(Base):
    """The statements of a passage with their vectors. encoder: its name, and the version of the cutting rules."""

    __tablename__ = "passage_statements"

    passage_id: Mapped[int] = mapped_column(sa.ForeignKey(PassageRow.id, ondelete="CASCADE"), primary_key=True)
    encoder: Mapped[str]
    vectors: Mapped[bytes] = mapped_column(sa.LargeBinary)


class StagedEmbeddingRow(Base):
    """The vectors of a passage that is not stored yet, so that an interrupted ingest does not compute them again."""

    __tablename__ = "staged_embeddings"

    content_hash: Mapped[str] = mapped_column(primary_key=True)
    embedding: Mapped[bytes] = mapped_column(sa.LargeBinary)


class PassageNeighbourRow(Base):
    """A neighbour of a passage. rank: 0 for the closest. An index finds passages by neighbour."""

    __tablename__ = "passage_neighbours"

    passage_id: Mapped[int] = mapped_column(sa.ForeignKey(PassageRow.id, ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True)
    neighbour_id: Mapped[int] = mapped_column(sa.ForeignKey(PassageRow.id, ondelete="CASCADE"), index=True)


class ForgottenRow(Base):
    """A deleted document and the time of its deletion: see `history`."""

    __tablename__ = "forgotten_documents"

    path: Mapped[str] = mapped_column(primary_key=True)
    forgotten: Mapped[datetime]


class SyncedFolderRow(Base):
    """A folder or website that is read periodically: see `faq`. site: the fields of a website's options. last_result:
    the fields of the last result.
    """

    __tablename__ = "synced_folders"

    id: Mapped[int] = mapped_column(primary_key=True)
    folder: Mapped[str] = mapped_column(unique=True)
    collection: Mapped[str]
    every_minutes: Mapped[int]
    next_run: Mapped[datetime]
    site: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    last_run: Mapped[datetime | None]
    last_result: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))


class FaqRow(Base):
    """A question that an agent answered, with other wordings of it. author: the account that changed it last. hits:
    number of customers' questions that it answered. vectors: of the question and its wordings, float32, little-endian.
    """

    __tablename__ = "faq"

    id: Mapped[int] = mapped_column(primary_key=True)
    question: Mapped[str]
    answer: Mapped[str]
    wordings: Mapped[list[str]] = mapped_column(sa.JSON)
    author: Mapped[str]
    created: Mapped[datetime]
    updated: Mapped[datetime]
    hits: Mapped[int] = mapped_column(server_default="0")
    last_hit: Mapped[datetime | None]
    embedder: Mapped[str]
    vectors: Mapped[bytes] = mapped_column(sa.LargeBinary)


class FactRow(Base):
    """A property of the stored data, for example the embedder of the vectors."""

    __tablename__ = "facts"

    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


class ConversationRow(Base):
    """The questions of a customer and their answers. owner: see `app.domain.callers`. deleted: the time when it was
    hidden; the conversation is removed soon after (`conversation_care`).
    """

    __tablename__ = "conversations"
    __table_args__ = (sa.Index(None, "owner", "updated"),)

    id: Mapped[str] = mapped_column(ShortText(32), primary_key=True)
    title: Mapped[str]
    created: Mapped[datetime]
    updated: Mapped[datetime] = mapped_column(index=True)
    owner: Mapped[str] = mapped_column(ShortText(128), server_default=OPERATOR)
    deleted: Mapped[datetime | None] = mapped_column(index=True)

    @classmethod
    def of(cls, owner: str) -> sa.ColumnElement[bool]:
        return sa.and_(cls.owner == owner, cls.deleted.is_(None))


class MessageRow(Base):
    """A question or an answer. position: in the conversation, from 0. role: user, assistant or agent. author: the
    account of an agent. handoff_id: the hand-off during which a customer or an agent wrote it.

    tokens: the generated token ids, for the prompt of the next turn; None if the text was changed later. model: the
    fingerprint of the model with these token ids. lookup: the fields of `LookUpTurn`. question_id, finish_reason,
    policy, exact, grounding, quoted, notice, outcome and lookup belong to answers.
    """

    __tablename__ = "messages"
    __table_args__ = (
        sa.UniqueConstraint("conversation_id", "position"),
        sa.Index(None, "role", "created", "outcome"),  # the dashboard's time axis, without the texts
        _partial("ix_messages_checked", "created", "grounding", where="grounding IS NOT NULL"),
    )

    id: Mapped[str] = mapped_column(ShortText(32), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(sa.ForeignKey(ConversationRow.id, ondelete="CASCADE"))
    position: Mapped[int]
    role: Mapped[str] = mapped_column(ShortText(16))
    question_id: Mapped[str | None] = mapped_column(sa.ForeignKey("messages.id", ondelete="CASCADE"), index=True)
    text: Mapped[str]
    tokens: Mapped[list[int] | None] = mapped_column(sa.JSON(none_as_null=True))
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
    lookup: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))

    citations: "Mapped[list[CitationRow]]" = relationship(order_by="CitationRow.rank", lazy="raise")
    modules: "Mapped[list[ModuleUseRow]]" = relationship(order_by="ModuleUseRow.rank", lazy="raise")
    timings: "Mapped[TimingsRow | None]" = relationship(lazy="raise")
    usage: "Mapped[UsageRow | None]" = relationship(lazy="raise")
    feedback: "Mapped[FeedbackRow | None]" = relationship(lazy="raise")


def _message_id() -> Mapped[str]:
    return mapped_column(sa.ForeignKey(MessageRow.id, ondelete="CASCADE"), primary_key=True)


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
    see_also: Mapped[bool] = mapped_column(server_default=sa.false())
    url: Mapped[str] = mapped_column(server_default="")
    marks: Mapped[list[list[int]]] = mapped_column(sa.JSON, server_default="[]")


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
    """Prompt tokens of an answer by source: prompt_tokens = computed + session + prefix + module."""

    __tablename__ = "message_usage"

    message_id: Mapped[str] = _message_id()
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    computed: Mapped[int]
    session: Mapped[int]
    prefix: Mapped[int]
    module: Mapped[int]


class ModuleUseRow(Base):
    """A prompt module of an answer. id: the module's key. created: as in the message, so that
    the latest misses are found without reading messages.
    """

    __tablename__ = "message_modules"
    __table_args__ = (_partial("ix_message_modules_misses", "created", where="miss_reason IS NOT NULL"),)

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
    took it. position: the last message's at the time of closing.
    """

    __tablename__ = "handoffs"
    __table_args__ = (
        _partial("ix_handoffs_open", "conversation_id", where="state <> 'closed'", unique=True),
        sa.Index(None, "state", "requested"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    conversation_id: Mapped[str] = mapped_column(sa.ForeignKey(ConversationRow.id, ondelete="CASCADE"), index=True)
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
    __table_args__ = (sa.Index(None, "state", "due"),)

    id: Mapped[str] = mapped_column(ShortText(32), primary_key=True)
    handoff_id: Mapped[int] = mapped_column(sa.ForeignKey(HandoffRow.id, ondelete="CASCADE"), index=True)
    event: Mapped[str] = mapped_column(ShortText(32))
    created: Mapped[datetime]
    state: Mapped[str] = mapped_column(ShortText(16))
    tries: Mapped[int]
    due: Mapped[datetime]
    problem: Mapped[str]


class LookUpStateRow(Base):
    """The open look-up of a conversation. state: the fields of `app.lookups.dialogue.Open`. trail: a hash of the
    conversation's messages, for programs that send all of them each time.
    """

    __tablename__ = "lookup_states"

    conversation_id: Mapped[str] = mapped_column(
        sa.ForeignKey(ConversationRow.id, ondelete="CASCADE"), primary_key=True
    )
    state: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    expires: Mapped[datetime] = mapped_column(index=True)
    trail: Mapped[str] = mapped_column(ShortText(64), index=True)


class LookUpCallRow(Base):
    """An event of a look-up. event: asked, found, not_found, failed or cancelled. visitor, address: hashes, deleted
    after an hour. ms: duration of the call.
    """

    __tablename__ = "lookup_calls"
    __table_args__ = (sa.Index(None, "name", "created"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    created: Mapped[datetime]
    name: Mapped[str] = mapped_column(ShortText(40))
    event: Mapped[str] = mapped_column(ShortText(16))
    ms: Mapped[float]
    visitor: Mapped[str] = mapped_column(ShortText(64))
    address: Mapped[str] = mapped_column(ShortText(64))


class SavingsRow(Base):
    """An answer that was computed again without reuse: see `app.domain.statistics.SavingsSample`."""

    __tablename__ = "savings"

    id: Mapped[int] = mapped_column(primary_key=True)
    created: Mapped[datetime] = mapped_column(index=True)
    question_id: Mapped[str | None] = mapped_column(sa.ForeignKey(MessageRow.id, ondelete="SET NULL"), index=True)
    policy: Mapped[str] = mapped_column(ShortText(16))
    prompt_tokens: Mapped[int]
    computed_tokens: Mapped[int]
    first_token_ms: Mapped[float]
    without_reuse_ms: Mapped[float]
    likeness: Mapped[float | None]


class TallyRow(Base):
    """The count of an event within a span of time, in seconds since 1970: see `statistics`. width_s: 0 for all time.
    amount: tokens or milliseconds, if the event has any.
    """

    __tablename__ = "tallies"
    __table_args__ = ({"sqlite_with_rowid": False},)

    width_s: Mapped[int] = mapped_column(primary_key=True)
    start: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    label: Mapped[str] = mapped_column(primary_key=True)
    times: Mapped[int] = mapped_column(sa.BigInteger)
    amount: Mapped[float]


class ModuleTallyRow(Base):
    """The uses of a module: already encoded (hits) or computed (misses). last_used: seconds since 1970."""

    __tablename__ = "module_tallies"
    __table_args__ = ({"sqlite_with_rowid": False},)

    key: Mapped[str] = mapped_column(primary_key=True)
    hits: Mapped[int]
    misses: Mapped[int]
    last_used: Mapped[int] = mapped_column(sa.BigInteger)


class AccountRow(Base):
    """An account of an agent or an admin (role)."""

    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    role: Mapped[str] = mapped_column(ShortText(16))
    password_hash: Mapped[str]
    created: Mapped[datetime]


class SessionRow(Base):
    """The session of a signed-in account. token_hash: see `people`."""

    __tablename__ = "sessions"

    token_hash: Mapped[str] = mapped_column(ShortText(64), primary_key=True)
    account_id: Mapped[int] = mapped_column(sa.ForeignKey(AccountRow.id, ondelete="CASCADE"), index=True)
    created: Mapped[datetime]
    expires: Mapped[datetime] = mapped_column(index=True)


class ApiKeyRow(Base):
    """An API key. id: part of the owner of its conversations. token_hash: SHA-256 of the key. shown: its first
    characters. scopes: separated by spaces. revoked: the time of its revocation.
    """

    __tablename__ = "api_keys"
    __table_args__ = (_partial("uq_api_keys_name_in_use", "name", where="revoked IS NULL", unique=True),)

    id: Mapped[str] = mapped_column(ShortText(16), primary_key=True)
    name: Mapped[str]
    token_hash: Mapped[str] = mapped_column(ShortText(64), unique=True)
    shown: Mapped[str] = mapped_column(ShortText(16))
    scopes: Mapped[str]
    per_minute: Mapped[int]
    created: Mapped[datetime]
    last_used: Mapped[datetime | None]
    revoked: Mapped[datetime | None]


class AuditRow(Base):
    """An action of an agent, an admin or a program: see `people`."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)
    created: Mapped[datetime] = mapped_column(index=True)
    who: Mapped[str]
    action: Mapped[str] = mapped_column(ShortText(32))
    subject: Mapped[str]


class DeskRow(Base):
    """A server that uses this database: see `document_change`. generation: the latest one that it has applied."""

    __tablename__ = "desks"

    id: Mapped[str] = mapped_column(ShortText(32), primary_key=True)
    seen: Mapped[datetime]
    generation: Mapped[int] = mapped_column(sa.BigInteger)


def copy_conditions_for_postgresql() -> None:
    """Copy the conditions of partial indexes to PostgreSQL. Called only if PostgreSQL is used, because its dialect
    takes a twentieth of a second to import.
    """
    for index in (index for table in Base.metadata.tables.values() for index in table.indexes):
        index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"].get("where")
