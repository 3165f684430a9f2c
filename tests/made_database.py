"""A SQLite database with all tables, as a desk makes it at its first start: a copy of one that each test process makes
once. How it is made is tested in `test_app_migrations`. And a revision that is yet to come.
"""

import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

from app.storage import migrate
from app.storage.database import open_database, sqlite_file

LATER = "later"  # name of the revision that is yet to come


@cache
def _made() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "made.sqlite3")
        open_database(f"sqlite:///{file}").close()
        return file.read_bytes()


def put_database(url: str) -> None:
    """Put it where this URL points, unless there is one, or the URL is of another kind."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        file.write_bytes(_made())


def add_revision(
    patch: pytest.MonkeyPatch, folder: Path, upgrade: str = "op.execute('CREATE TABLE later (a INTEGER)')"
) -> None:
    """Let there be one more revision, whose `upgrade` has this body. A folder is made beside that of the test."""
    latest, revisions = migrate.revisions()[-1].revision, folder.with_name(f"{folder.name}-revisions")
    shutil.copytree(migrate.REVISIONS, revisions)
    lines = "".join(f"    {line}\n" for line in upgrade.splitlines())
    (revisions / "later.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n\n"
        f"revision = {LATER!r}\ndown_revision = {latest!r}\n\n\ndef upgrade() -> None:\n{lines}"
    )
    patch.setattr(migrate, "REVISIONS", revisions)
