"""The first tables. A new database gets the current ones at once (`app.storage.migrate`), so nothing is to do."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing."""
