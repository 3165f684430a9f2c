"""A column for the options of synchronised websites."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column of the options."""
    op.add_column("synced_folders", sa.Column("site", sa.JSON(none_as_null=True), nullable=True))
