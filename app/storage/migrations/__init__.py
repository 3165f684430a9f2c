"""The database's revisions, one file each, as Alembic reads them. A released file is never changed."""
