"""The one error of the product: a mistake or a condition a person can do something about.

The message is one clear line that names the thing and the cure. `code` is for programs: short, in kebab-case,
printed by `--json` and the HTTP API. Broken invariants are assertions and do not appear here; `retrieval` and
`cache` raise errors of their own.
"""

from typing import Final

_AWAY: Final = frozenset(("database-lost", "database-unreachable", "database-login", "database-missing"))


class DeskError(Exception):
    """Something the user, or whoever runs the desk, can put right. `str(error)` is the line to show."""

    def __init__(self, message: str, *, code: str = "error") -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_away(self) -> bool:
        """Whether the database is not there now. It says so itself, when that begins and when it is over
        (`app.storage.database`): nobody else needs to log it.
        """
        return self.code in _AWAY

    @property
    def is_of_database(self) -> bool:
        """Whether the database could not do its work; another try may succeed."""
        return self.code.startswith(("database-", "disk-"))
