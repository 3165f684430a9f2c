"""The error of the product for a mistake or a condition that a person can fix.

The message is one clear line that names the thing and the fix. `code` is for programs: short, in kebab-case, printed by
`--json` and the HTTP API. Broken invariants are assertions. `retrieval` and `cache` have their own errors.
"""

from typing import Final

_AWAY: Final = frozenset(("database-lost", "database-unreachable", "database-login", "database-missing"))


class DeskError(Exception):
    """An error that the user or the operator can fix. `str(error)` is the line to show. wait_s: seconds until the next
    try, if known.
    """

    def __init__(self, message: str, *, code: str = "error", wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.code, self.wait_s = code, wait_s

    @property
    def is_away(self) -> bool:
        """Return whether the database is unreachable. `app.storage.database` logs when that begins and ends."""
        return self.code in _AWAY

    @property
    def is_of_database(self) -> bool:
        return self.code.startswith(("database-", "disk-"))
