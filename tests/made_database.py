"""A SQLite database with all tables, as a desk makes it at its first start: a copy of one that each test process makes
once. How it is made is tested in `test_app_migrations`.
"""

import tempfile
from functools import cache
from pathlib import Path

from app.storage.database import open_database, sqlite_file


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
