"""The base class of the tables, and their column types."""

from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import DateTime, Dialect, MetaData, String, Text, TypeDecorator
from sqlalchemy.orm import DeclarativeBase

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
"""The largest id of a row. PostgreSQL refuses to compare larger numbers."""


class UtcDateTime(TypeDecorator[datetime]):
    """A time: aware in Python, UTC without a time zone in the database, because SQLite has none."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC. A time without a time zone is a programming error."""
        assert value is None or value.tzinfo is not None
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Add the time zone."""
        return None if value is None else value.replace(tzinfo=UTC)


class AnyText(TypeDecorator[str]):
    """A text from outside. Characters that a database cannot store are escaped: half of a surrogate pair (from JSON, or
    a file name that is not UTF-8) and NUL, which PostgreSQL refuses.
    """

    impl: type[String] = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escape these characters. Equal texts stay equal, so comparisons work."""
        if value is None:
            return None
        return value.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


class ShortText(AnyText):
    """A text with a maximum length, such as an id. PostgreSQL refuses longer texts."""

    impl = String
    cache_ok = True


class Base(DeclarativeBase):
    """The base class of all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime: UtcDateTime, str: AnyText}  # noqa: RUF012

    def to(self, kind: type[T], **others: Any) -> T:
        """Return a value of this dataclass. Each field is the column of the same name, or is given here."""
        return kind(**{one.name: getattr(self, one.name) for one in fields(kind) if one.name not in others}, **others)
