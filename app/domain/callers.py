"""Who asks, and whose conversations somebody may see."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

OPERATOR = "operator"
"""Owner of the conversations of the command line, and of those from before there were owners."""
COMMAND_LINE = "command line"
"""Who did something, in the audit log, if a command did. No account is called that: names have no spaces."""
SCHEDULE = "the schedule"
"""Who did something, in the audit log, if the desk did when it was due. No account is called that, either."""
Record: TypeAlias = Callable[[str, str, str], None]
"""Writes into the audit log (`app.storage.audit`): who, action, subject."""
Role = Literal["", "agent", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sends a request. owner: whose conversations it sees, and under which tenant its prompts are kept; "" for
    nobody. name: of the account or the API key, for people. role: of an account. scopes: of an API key.
    """

    owner: str = ""
    name: str = ""
    role: Role = ""
    scopes: frozenset[str] = frozenset()

    @property
    def who(self) -> str:
        """What the audit log calls it; no account can have the name that a key has there."""
        return f"API: {self.name}" if self.scopes else self.name


NOBODY = Caller()


KNOWN = "u-"
"""What the owners begin with whom the company's site signed in."""
CUSTOMERS = ("v-", KNOWN)
"""What the owners begin with that are visitors, known to the company or not: neither the operator nor a program."""


def is_customer(owner: str) -> bool:
    """Whether conversations are a visitor's."""
    return owner.startswith(CUSTOMERS)
