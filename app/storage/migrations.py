"""The database's history: numbered functions, each run once and recorded by name. Read downwards.

A function that was released is never changed; it writes the tables as they were then, which is why it does
not use `tables`. A change of `tables` is a new function at the end, and the schema test says so if it is
missing. There is no way back down: a database from a newer Warmdesk is refused.

On SQLite a function may add tables, columns and indexes. It must not drop a table in order to recreate it:
foreign keys are on, and its children's rows would be deleted with it.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    insert,
    inspect,
    select,
    text,
)

from app.domain.errors import DeskError
from app.storage.first_tallies import count_recorded

Migration = Callable[[Connection], None]

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
_APPLIED = Table(
    "migrations",
    MetaData(naming_convention=NAMING),
    Column("name", Text, primary_key=True),
    Column("applied", DateTime),
)


def m001_first_tables(connection: Connection) -> None:
    """Documents, passages, conversations, messages and what belongs to them, facts."""
    meta = MetaData(naming_convention=NAMING)
    required = partial(Column, nullable=False)

    def message_id() -> Column[str]:
        return Column("message_id", String(32), ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True)

    Table(
        "documents",
        meta,
        Column("id", Integer, primary_key=True),
        required("path", Text, unique=True),
        required("title", Text),
        required("content_hash", Text),
        required("loaded_at", DateTime),
        required("num_passages", Integer),
        sqlite_autoincrement=True,
    )
    Table(
        "passages",
        meta,
        Column("id", Integer, primary_key=True),
        required("document_id", Integer, ForeignKey("documents.id", ondelete="CASCADE"), index=True),
        required("ordinal", Integer),
        required("heading_path", JSON),
        required("text", Text),
        required("content_hash", Text),
        required("num_tokens", Integer),
        required("embedding", LargeBinary),
        Column("module_key", Text, index=True),
        sqlite_autoincrement=True,
    )
    Table(
        "conversations",
        meta,
        Column("id", String(32), primary_key=True),
        required("title", Text),
        required("created", DateTime),
        required("updated", DateTime, index=True),
    )
    Table(
        "messages",
        meta,
        Column("id", String(32), primary_key=True),
        required("conversation_id", String(32), ForeignKey("conversations.id", ondelete="CASCADE")),
        required("position", Integer),
        required("role", String(16)),
        Column("question_id", String(32), ForeignKey("messages.id", ondelete="CASCADE"), index=True),
        required("text", Text),
        Column("tokens", JSON(none_as_null=True)),
        required("created", DateTime),
        required("refused", Boolean),
        Column("finish_reason", Text),
        Column("policy", Text),
        Column("exact", Boolean),
        Column("notice", Text),
        UniqueConstraint("conversation_id", "position"),
        Index(None, "role", "created", "refused"),
    )
    Table(
        "message_citations",
        meta,
        message_id(),
        Column("rank", Integer, primary_key=True),
        required("document", Text, index=True),
        required("title", Text),
        required("passage", Text),
        required("quote", Text),
        required("score", Double),
        Column("passage_id", Integer),
    )
    Table(
        "message_timings",
        meta,
        message_id(),
        *(required(name, Double) for name in ("queue", "retrieve", "load", "prefill")),
        required("ttft", Double, index=True),
        required("total", Double),
    )
    Table(
        "message_usage",
        meta,
        message_id(),
        *(required(name, Integer) for name in ("prompt_tokens", "completion_tokens", "computed")),
        *(required(name, Integer) for name in ("session", "prefix", "module")),
    )
    Table(
        "message_modules",
        meta,
        message_id(),
        Column("rank", Integer, primary_key=True),
        *(required(name, Text) for name in ("key", "name", "document", "passage")),
        Column("passage_id", Integer),
        required("tokens", Integer),
        required("position", Integer),
        required("source", Text),
        Column("miss_reason", Text),
        required("created", DateTime),
        Index(None, "key", "miss_reason", "created"),
        Index(
            "ix_message_modules_misses",
            "created",
            sqlite_where=text("miss_reason IS NOT NULL"),
            postgresql_where=text("miss_reason IS NOT NULL"),
        ),
    )
    Table(
        "feedback",
        meta,
        message_id(),
        required("value", String(16)),
        required("reason", Text),
        required("created", DateTime),
    )
    Table("facts", meta, Column("key", Text, primary_key=True), required("value", Text))
    meta.create_all(connection, checkfirst=False)  # another program's table of that name is an error


def m002_passage_neighbours(connection: Connection) -> None:
    """Which passages each passage is encoded behind."""
    meta = MetaData(naming_convention=NAMING)
    Table("passages", meta, Column("id", Integer, primary_key=True))  # there already; named for the foreign keys

    def passage_id() -> ForeignKey:
        return ForeignKey("passages.id", ondelete="CASCADE")

    neighbours = Table(
        "passage_neighbours",
        meta,
        Column("passage_id", Integer, passage_id(), primary_key=True),
        Column("rank", Integer, primary_key=True),
        Column("neighbour_id", Integer, passage_id(), nullable=False, index=True),
    )
    neighbours.create(connection)


def m003_grounding(connection: Connection) -> None:
    """How well answers keep to their passages."""
    number = Double().compile(dialect=connection.dialect)
    connection.execute(text(f"ALTER TABLE messages ADD COLUMN grounding {number}"))
    connection.execute(text("ALTER TABLE messages ADD COLUMN quoted BOOLEAN"))


def m004_collections(connection: Connection) -> None:
    """What a document belongs to, and vectors that are not in use yet."""
    connection.execute(text("ALTER TABLE documents ADD COLUMN collection TEXT DEFAULT '' NOT NULL"))
    connection.execute(text("CREATE INDEX ix_documents_collection ON documents (collection)"))
    meta = MetaData(naming_convention=NAMING)
    staged = Table(
        "staged_embeddings",
        meta,
        Column("content_hash", Text, primary_key=True),
        Column("embedding", LargeBinary, nullable=False),
    )
    staged.create(connection)


def m005_sessions(connection: Connection) -> None:
    """Who is signed in to the admin area."""
    sessions = Table(
        "sessions",
        MetaData(naming_convention=NAMING),
        Column("token_hash", String(64), primary_key=True),
        Column("created", DateTime, nullable=False),
        Column("expires", DateTime, nullable=False, index=True),
    )
    sessions.create(connection)


def m006_outcomes(connection: Connection) -> None:
    """How each answer ended, in place of whether it was refused."""
    for statement in (
        "ALTER TABLE messages ADD COLUMN outcome VARCHAR(16)",
        "UPDATE messages SET outcome = CASE WHEN refused THEN 'nothing' ELSE 'answered' END WHERE role = 'assistant'",
        "DROP INDEX ix_messages_role_created_refused",
        "ALTER TABLE messages DROP COLUMN refused",
        "CREATE INDEX ix_messages_role_created_outcome ON messages (role, created, outcome)",
    ):
        connection.execute(text(statement))


def m007_passage_statements(connection: Connection) -> None:
    """The vectors of the passages' statements; passages that have none yet are read when they are found."""
    meta = MetaData(naming_convention=NAMING)
    Table("passages", meta, Column("id", Integer, primary_key=True))
    read = Table(
        "passage_statements",
        meta,
        Column("passage_id", ForeignKey("passages.id", ondelete="CASCADE"), primary_key=True),
        Column("encoder", Text, nullable=False),
        Column("vectors", LargeBinary, nullable=False),
    )
    read.create(connection)


def m008_see_also(connection: Connection) -> None:
    """Which pages an answer names without saying anything of them."""
    no = false().compile(dialect=connection.dialect)  # SQLite writes 0, PostgreSQL takes only false
    connection.execute(text(f"ALTER TABLE message_citations ADD COLUMN see_also BOOLEAN DEFAULT {no} NOT NULL"))


def m009_owners(connection: Connection) -> None:
    """Whose each conversation is; those there are belong to the operator."""
    connection.execute(text("ALTER TABLE conversations ADD COLUMN owner VARCHAR(128) DEFAULT 'operator' NOT NULL"))
    connection.execute(text("CREATE INDEX ix_conversations_owner_updated ON conversations (owner, updated)"))


def m010_accounts(connection: Connection) -> None:
    """Several people who look after the desk. Sign-ins from before belong to nobody and end."""
    connection.execute(text("DROP TABLE sessions"))
    meta = MetaData(naming_convention=NAMING)
    required = partial(Column, nullable=False)
    Table(
        "accounts",
        meta,
        Column("id", Integer, primary_key=True),
        required("name", Text, unique=True),
        required("role", String(16)),
        required("password_hash", Text),
        required("created", DateTime),
    )
    Table(
        "sessions",
        meta,
        Column("token_hash", String(64), primary_key=True),
        required("account_id", Integer, ForeignKey("accounts.id", ondelete="CASCADE"), index=True),
        required("created", DateTime),
        required("expires", DateTime, index=True),
    )
    meta.create_all(connection)


def m011_api_keys(connection: Connection) -> None:
    """Keys with which programs reach the API."""
    required = partial(Column, nullable=False)
    in_use = text("revoked IS NULL")
    keys = Table(
        "api_keys",
        MetaData(naming_convention=NAMING),
        Column("id", String(16), primary_key=True),
        required("name", Text),
        required("token_hash", String(64), unique=True),
        required("shown", String(16)),
        required("scopes", Text),
        required("per_minute", Integer),
        required("created", DateTime),
        Column("last_used", DateTime),
        Column("revoked", DateTime),
        Index("uq_api_keys_name_in_use", "name", unique=True, sqlite_where=in_use, postgresql_where=in_use),
    )
    keys.create(connection)


def m012_tallies(connection: Connection) -> None:
    """What the dashboard counts, in place of two indexes that made counting less slow."""
    meta = MetaData(naming_convention=NAMING)
    required = partial(Column, nullable=False)
    Table(
        "tallies",
        meta,
        Column("width_s", Integer, primary_key=True),
        Column("start", BigInteger, primary_key=True),
        Column("subject", Text, primary_key=True),
        Column("label", Text, primary_key=True),
        required("times", BigInteger),
        required("amount", Double),
        sqlite_with_rowid=False,
    )
    Table(
        "module_tallies",
        meta,
        Column("key", Text, primary_key=True),
        required("hits", Integer),
        required("misses", Integer),
        required("last_used", BigInteger),
        sqlite_with_rowid=False,
    )
    meta.create_all(connection, checkfirst=False)
    count_recorded(connection)
    for statement in (
        "DROP INDEX ix_message_modules_key_miss_reason_created",
        "DROP INDEX ix_message_timings_ttft",
        "CREATE INDEX ix_messages_checked ON messages (created, grounding) WHERE grounding IS NOT NULL",
    ):
        connection.execute(text(statement))


def m013_forgotten_documents(connection: Connection) -> None:
    """When documents were forgotten. Of those forgotten before, only those are known that an answer had cited."""
    forgotten = Table(
        "forgotten_documents",
        MetaData(naming_convention=NAMING),
        Column("path", Text, primary_key=True),
        Column("forgotten", DateTime, nullable=False),
    )
    forgotten.create(connection)
    removed = text("SELECT DISTINCT document FROM message_citations WHERE quote = '(removed)'")
    now = datetime.now(UTC).replace(tzinfo=None)
    if rows := [{"path": path, "forgotten": now} for path in connection.execute(removed).scalars()]:
        connection.execute(insert(forgotten), rows)


def m014_handoffs(connection: Connection) -> None:
    """Conversations that go to a person, who wrote an agent's message, and what the webhook is still to be told."""
    meta = MetaData(naming_convention=NAMING)
    required = partial(Column, nullable=False)
    is_open = text("state <> 'closed'")
    Table("conversations", meta, Column("id", String(32), primary_key=True))
    handoffs = Table(
        "handoffs",
        meta,
        Column("id", Integer, primary_key=True),
        required("conversation_id", String(32), ForeignKey("conversations.id", ondelete="CASCADE"), index=True),
        required("state", String(16)),
        required("reason", String(16)),
        required("requested", DateTime),
        Column("taken", DateTime),
        Column("closed", DateTime),
        required("agent", Text),
        required("email", Text),
        Column("position", Integer),
        Index("ix_handoffs_open", "conversation_id", unique=True, sqlite_where=is_open, postgresql_where=is_open),
        Index(None, "state", "requested"),
    )
    deliveries = Table(
        "deliveries",
        meta,
        Column("id", String(32), primary_key=True),
        required("handoff_id", Integer, ForeignKey("handoffs.id", ondelete="CASCADE"), index=True),
        required("event", String(32)),
        required("created", DateTime),
        required("state", String(16)),
        required("tries", Integer),
        required("due", DateTime),
        required("problem", Text),
        Index(None, "state", "due"),
    )
    meta.create_all(connection, [handoffs, deliveries])
    connection.execute(text("ALTER TABLE messages ADD COLUMN author TEXT"))
    connection.execute(text("ALTER TABLE messages ADD COLUMN handoff_id INTEGER"))


def m015_faq(connection: Connection) -> None:
    """Questions that agents answered themselves."""
    required = partial(Column, nullable=False)
    faq = Table(
        "faq",
        MetaData(naming_convention=NAMING),
        Column("id", Integer, primary_key=True),
        *(required(name, Text) for name in ("question", "answer")),
        required("wordings", JSON),
        required("author", Text),
        *(required(name, DateTime) for name in ("created", "updated")),
        required("hits", Integer, server_default="0"),
        Column("last_hit", DateTime),
        required("embedder", Text),
        required("vectors", LargeBinary),
    )
    faq.create(connection)


def m018_deleted(connection: Connection) -> None:
    """Deleted conversations that can still be brought back: since when each is hidden."""
    moment = DateTime().compile(dialect=connection.dialect)  # DATETIME on SQLite, TIMESTAMP on PostgreSQL
    connection.execute(text(f"ALTER TABLE conversations ADD COLUMN deleted {moment}"))
    connection.execute(text("CREATE INDEX ix_conversations_deleted ON conversations (deleted)"))


def m019_sources(connection: Connection) -> None:
    """Where pages stand for everybody, and which parts of a passage an answer says."""
    for statement in (
        "ALTER TABLE documents ADD COLUMN url TEXT DEFAULT '' NOT NULL",
        "ALTER TABLE message_citations ADD COLUMN url TEXT DEFAULT '' NOT NULL",
        "ALTER TABLE message_citations ADD COLUMN marks JSON DEFAULT '[]' NOT NULL",
    ):
        connection.execute(text(statement))


def m021_audit(connection: Connection) -> None:
    """Who did what."""
    required = partial(Column, nullable=False)
    audit = Table(
        "audit",
        MetaData(naming_convention=NAMING),
        Column("id", Integer, primary_key=True),
        required("created", DateTime, index=True),
        required("who", Text),
        required("action", String(32)),
        required("subject", Text),
    )
    audit.create(connection)


def m022_savings(connection: Connection) -> None:
    """Answers that were computed a second time without reuse."""
    required = partial(Column, nullable=False)
    question = ForeignKey("messages.id", ondelete="SET NULL")
    meta = MetaData(naming_convention=NAMING)
    Table("messages", meta, Column("id", String(32), primary_key=True))
    savings = Table(
        "savings",
        meta,
        Column("id", Integer, primary_key=True),
        required("created", DateTime, index=True),
        Column("question_id", String(32), question, index=True),
        required("policy", String(16)),
        required("prompt_tokens", Integer),
        required("computed_tokens", Integer),
        required("first_token_ms", Double),
        required("without_reuse_ms", Double),
        Column("likeness", Double),
    )
    savings.create(connection)


def m023_synced_folders(connection: Connection) -> None:
    """Folders that are read again and again."""
    required = partial(Column, nullable=False)
    folders = Table(
        "synced_folders",
        MetaData(naming_convention=NAMING),
        Column("id", Integer, primary_key=True),
        required("folder", Text, unique=True),
        required("collection", Text),
        required("every_minutes", Integer),
        required("next_run", DateTime),
        Column("last_run", DateTime),
        Column("last_result", JSON),
    )
    folders.create(connection)


def m024_answer_models(connection: Connection) -> None:
    """Which model made an answer's tokens: another one has others."""
    connection.execute(text("ALTER TABLE messages ADD COLUMN model TEXT"))


def m025_desks(connection: Connection) -> None:
    """The desks that share a database."""
    desks = Table(
        "desks",
        MetaData(naming_convention=NAMING),
        Column("id", String(32), primary_key=True),
        Column("seen", DateTime, nullable=False),
        Column("generation", BigInteger, nullable=False),
    )
    desks.create(connection)


MIGRATIONS: tuple[Migration, ...] = (
    m001_first_tables,
    m002_passage_neighbours,
    m003_grounding,
    m004_collections,
    m005_sessions,
    m006_outcomes,
    m007_passage_statements,
    m008_see_also,
    m009_owners,
    m010_accounts,
    m011_api_keys,
    m012_tallies,
    m013_forgotten_documents,
    m014_handoffs,
    m015_faq,
    m018_deleted,
    m019_sources,
    m021_audit,
    m022_savings,
    m023_synced_folders,
    m024_answer_models,
    m025_desks,
)


def migrate(connection: Connection, name: str, migrations: Sequence[Migration] = MIGRATIONS) -> list[str]:
    """Run what is missing, within the caller's transaction; gives the names of what was run.

    name: what to call the database in a message. Raises DeskError (code "database-newer").
    """
    missing = missing_migrations(connection, name, migrations)
    _APPLIED.create(connection, checkfirst=True)
    for migration in missing:
        migration(connection)
        now = datetime.now(UTC).replace(tzinfo=None)
        connection.execute(insert(_APPLIED).values(name=migration.__name__, applied=now))
    return [migration.__name__ for migration in missing]


def missing_migrations(
    connection: Connection, name: str, migrations: Sequence[Migration] = MIGRATIONS
) -> list[Migration]:
    """What has not run yet; all of them in a database that is new. Changes nothing; raises as `migrate`."""
    applied = set[str]()
    if inspect(connection).has_table(_APPLIED.name):
        applied = set(connection.execute(select(_APPLIED.c.name)).scalars())
    if unknown := sorted(applied - {migration.__name__ for migration in migrations}):
        raise DeskError(
            f"{name} was written by a newer Warmdesk ({unknown[-1]}): update this one, or use another --data-dir",
            code="database-newer",
        )
    return [migration for migration in migrations if migration.__name__ not in applied]
