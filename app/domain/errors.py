"""The one error of the product: a mistake or a condition a person can do something about.

The message is one clear line that names the thing and the cure. `code` is for programs: short, in kebab-case,
printed by `--json` and the HTTP API. Broken invariants are assertions and do not appear here; `retrieval` and
`cache` raise errors of their own.
"""


class DeskError(Exception):
    """Something the user, or whoever runs the desk, can put right. `str(error)` is the line to show."""

    def __init__(self, message: str, *, code: str = "error") -> None:
        super().__init__(message)
        self.code = code
