"""Tables of documents, their passages, and what is known about them."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from app.storage.tables.base import Base


class DocumentRow(Base):
    """An ingested file. path: its absolute path, or the name under which it was ingested. collection: "" for none.
    url: its public address, "" if unknown.
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
    """A part of a document. id: its number in the vector index, never reused (therefore autoincrement)."""

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
    """The statements of a passage with their vectors. encoder: the encoder, and the version of the cutting rules."""

    __tablename__ = "passage_statements"

    passage_id: Mapped[int] = mapped_column(ForeignKey(PassageRow.id, ondelete="CASCADE"), primary_key=True)
    encoder: Mapped[str]
    vectors: Mapped[bytes] = mapped_column(LargeBinary)


class StagedEmbeddingRow(Base):
    """The vectors of a passage that is not stored yet, so that an interrupted ingest does not compute them again."""

    __tablename__ = "staged_embeddings"

    content_hash: Mapped[str] = mapped_column(primary_key=True)
    embedding: Mapped[bytes] = mapped_column(LargeBinary)


class PassageNeighbourRow(Base):
    """A neighbour of a passage. rank: 0 for the closest. The index on neighbour_id finds the passages that have it."""

    __tablename__ = "passage_neighbours"

    passage_id: Mapped[int] = mapped_column(ForeignKey(PassageRow.id, ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True)
    neighbour_id: Mapped[int] = mapped_column(ForeignKey(PassageRow.id, ondelete="CASCADE"), index=True)


class ForgottenRow(Base):
    """A deleted document and the time of its deletion: see `forgotten`."""

    __tablename__ = "forgotten_documents"

    path: Mapped[str] = mapped_column(primary_key=True)
    forgotten: Mapped[datetime]


class SyncedFolderRow(Base):
    """A folder that is read periodically: see `faq`. last_result: the fields of the last result."""

    __tablename__ = "synced_folders"

    id: Mapped[int] = mapped_column(primary_key=True)
    folder: Mapped[str] = mapped_column(unique=True)
    collection: Mapped[str]
    every_minutes: Mapped[int]
    next_run: Mapped[datetime]
    last_run: Mapped[datetime | None]
    last_result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class FaqRow(Base):
    """A question that an agent answered, with other wordings of it. author: the account that changed it last. hits:
    number of answers it gave to customers. vectors: of the question and its wordings, float32, little-endian.
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


class FactRow(Base):
    """A fact about the stored data, such as the embedder of the vectors."""

    __tablename__ = "facts"

    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]
