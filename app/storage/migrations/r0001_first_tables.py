"""The first tables. A new database gets the current tables at once (`app.storage.migrate`): no steps are needed."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing."""
