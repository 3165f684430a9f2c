"""Names under which encoded modules are kept apart (`cache.memory.keys.PUBLIC_TENANT` is the desk's own).

Who asks, and whose conversations somebody may see.

What the reader of an answer is told about it, beside its text. Stored in English, shown in the page's language.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.domain.words import gettext, translatable

PML_TENANT = "pml"
"""Modules of prompts written in PML are kept apart from the desk's passages: they may hold any text, also that of a
document, so forgetting a document drops all of them."""

OPERATOR = "operator"
"""Owner of the conversations of the command line, and of those from before there were owners."""
COMMAND_LINE = "command line"
"""Who did something, in the audit log, if a command did. No account is called that: names have no spaces."""
SCHEDULE = "the schedule"
"""Who did something, in the audit log, if the desk did when it was due. No account is called that, either."""
Record: TypeAlias = Callable[[str, str, str], None]
"""Writes into the audit log (`app.storage.people`): who, action, subject."""
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


QUOTED = translatable("Quoted from the help pages.")
CUT = translatable("The answer was cut at its length limit.")
STOPPED = translatable("The answer was stopped before its end.")
LATE = translatable("The answer took too long and ends here.")
REPEATED = translatable("The answer began to repeat itself and ends here.")
OLDER_TURNS_LEFT_OUT = translatable(
    "This conversation is longer than the model can read: its oldest questions are left out."
)
NOTICES = (QUOTED, CUT, STOPPED, LATE, REPEATED, OLDER_TURNS_LEFT_OUT)


def notice_words(notice: str) -> str:
    """The notices of an answer, one behind the other as they are stored; what is none of ours stays as it is."""
    for known in NOTICES:
        notice = notice.replace(known, gettext(known))
    return notice
