"""The callers that send requests and own conversations, the limits of their texts, and the notices of answers.

Tenants separate encoded modules; passages belong to `cache.memory.keys.PUBLIC_TENANT`. Notices are stored in English
and shown in the page's language. Every entry point checks lengths before any other work on a text: a request body may
have 1 MB, and 18 MB after normalisation. Routes use the types below; methods of the service begin with `check_length`.
Stored texts often have shorter limits of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator

from app.domain.errors import DeskError
from app.domain.words import gettext, translatable

PML_TENANT = "pml"
"""Tenant of prompts written in PML. They may contain any text, also a document's, so deleting a document drops all of
their modules.
"""

OPERATOR = "operator"
"""Owner of the command line's conversations, and of old conversations that were stored without an owner."""
COMMAND_LINE = "command line"
"""Author in the audit log for a command. Account names have no spaces."""
SCHEDULE = "the schedule"
"""Author in the audit log for scheduled work. Account names have no spaces."""
Record: TypeAlias = Callable[[str, str, str], None]
"""A function that writes to the audit log (`app.storage.people`): who, action, subject."""
Role = Literal["", "agent", "admin"]
ADMIN = "admin"
"""Name of the first account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request. owner: owner of its conversations, and tenant of its prompts; "" for none. name: of the
    account or the API key, for people. role: set for an account. reads_all: the account may also read conversations
    that were not handed off. scopes: set for an API key. user: the identity from the company's site, for look-ups.
    """

    owner: str = ""
    user: str = ""
    name: str = ""
    role: Role = ""
    reads_all: bool = False
    scopes: frozenset[str] = frozenset()

    @property
    def who(self) -> str:
        """The name in the audit log. No account can have a name that begins with "API:"."""
        return f"API: {self.name}" if self.scopes else self.name


NOBODY = Caller()


KNOWN = "u-"  # prefix of owners who are signed in on the company's site
CUSTOMERS = ("v-", KNOWN)
"""Prefixes of owners who are visitors, signed in or not. The operator and programs have other names."""


def is_customer(owner: str) -> bool:
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
    """Return an answer's notices in the page's language. An unknown text stays as it is."""
    for known in NOTICES:
        notice = notice.replace(known, gettext(known))
    return notice


LONGEST_ID = 64
LONGEST_LINE = 4_096
LONGEST_TEXT = 100_000
LONGEST_PAST = 40_000  # characters of a conversation that a program sends along; earlier messages are skipped


def _at_most(most: int) -> AfterValidator:
    """Return a limit on length. Unlike pydantic's own, it accepts lone surrogates, which browsers send."""

    def check(text: str) -> str:
        if len(text) > most:
            raise ValueError(f"a text may have at most {most:,} characters")
        return text

    return AfterValidator(check)


Id: TypeAlias = Annotated[str, _at_most(LONGEST_ID)]  # an id, or a word that a page's script sends
Line: TypeAlias = Annotated[str, _at_most(LONGEST_LINE)]  # a name, a title, a search, an address, a path
LongText: TypeAlias = Annotated[str, _at_most(LONGEST_TEXT)]


def check_length(text: str, most: int, name: str = "question") -> None:
    """Raise DeskError for a text longer than `most`. name: used in the message."""
    if len(text) > most:
        message = f"the {name} has {len(text):,} characters, the limit is {most:,}: shorten it"
        raise DeskError(message, code="question-too-long")
