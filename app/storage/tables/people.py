"""Tables of accounts, sign-ins, API keys, the audit log, and the servers of the database."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from app.storage.tables.base import Base, ShortText

_IN_USE = text("revoked IS NULL")


class AccountRow(Base):
    """An account of an agent or an admin (role)."""

    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    role: Mapped[str] = mapped_column(ShortText(16))
    password_hash: Mapped[str]
    created: Mapped[datetime]


class SessionRow(Base):
    """A sign-in. token_hash: see `people`."""

    __tablename__ = "sessions"

    token_hash: Mapped[str] = mapped_column(ShortText(64), primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey(AccountRow.id, ondelete="CASCADE"), index=True)
    created: Mapped[datetime]
    expires: Mapped[datetime] = mapped_column(index=True)


class ApiKeyRow(Base):
    """An API key. id: part of the owner of its conversations. token_hash: SHA-256 of the key. shown: its first
    characters. scopes: separated by spaces. revoked: the time since which it is refused.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        Index("uq_api_keys_name_in_use", "name", unique=True, sqlite_where=_IN_USE, postgresql_where=_IN_USE),
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


class AuditRow(Base):
    """An action of an agent, an admin or a program: see `people`."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)
    created: Mapped[datetime] = mapped_column(index=True)
    who: Mapped[str]
    action: Mapped[str] = mapped_column(ShortText(32))
    subject: Mapped[str]


class DeskRow(Base):
    """A server that uses this database: see `document_change`. generation: of the documents, which it has applied."""

    __tablename__ = "desks"

    id: Mapped[str] = mapped_column(ShortText(32), primary_key=True)
    seen: Mapped[datetime]
    generation: Mapped[int] = mapped_column(BigInteger)
