"""The first tables. A new database gets the present ones at once (`app.storage.migrate`), so there is nothing to do."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing."""
