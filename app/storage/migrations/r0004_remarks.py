"""A column for the skipped contents of a document, so that unchanged files need not be read again."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column. Documents without a value are read once more."""
    op.add_column("documents", sa.Column("remarks", sa.JSON(none_as_null=True), nullable=True))
