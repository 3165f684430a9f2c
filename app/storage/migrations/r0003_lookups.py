"""Look-ups: a column of messages, and tables of open look-ups and of calls."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add a column to messages, and two tables."""
    op.add_column("messages", sa.Column("lookup", sa.JSON(none_as_null=True), nullable=True))
    op.create_table(
        "lookup_states",
        sa.Column("conversation_id", sa.String(32), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("expires", sa.DateTime(), nullable=False),
        sa.Column("trail", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name="fk_lookup_states_conversation_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("conversation_id", name="pk_lookup_states"),
    )
    op.create_index("ix_lookup_states_expires", "lookup_states", ["expires"])
    op.create_index("ix_lookup_states_trail", "lookup_states", ["trail"])
    op.create_table(
        "lookup_calls",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("event", sa.String(16), nullable=False),
        sa.Column("ms", sa.Double(), nullable=False),
        sa.Column("visitor", sa.String(64), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_lookup_calls"),
    )
    op.create_index("ix_lookup_calls_name_created", "lookup_calls", ["name", "created"])
