"""Who asks, and whose conversations somebody may see."""

from dataclasses import dataclass
from typing import Literal

OPERATOR = "operator"
"""Owner of the conversations of the command line, and of those from before there were owners."""
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


NOBODY = Caller()


def is_customer(owner: str) -> bool:
    """Whether conversations are of a visitor, known to the company or not: neither the operator's nor a program's."""
    return owner.startswith(("v-", "u-"))
