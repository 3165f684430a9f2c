"""Types of columns: times in UTC, and texts that every database can store."""

from datetime import UTC, datetime

import sqlalchemy as sa


class UtcDateTime(sa.TypeDecorator[datetime]):
    """A column of times. In Python they have a time zone; the database stores UTC, because SQLite has no time zones."""

    impl = sa.DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        assert value is None or value.tzinfo is not None, "a time without a time zone"
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class AnyText(sa.TypeDecorator[str]):
    """A column of texts. Characters that a database cannot store are escaped: half of a surrogate pair (from JSON, or
    a file name that is not UTF-8) and NUL, which PostgreSQL refuses.
    """

    impl: type[sa.String] = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        return value.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


class ShortText(AnyText):
    """A column of texts with a maximum length, such as ids. PostgreSQL refuses longer texts."""

    impl = sa.String
    cache_ok = True
