"""The strings that a model's chat template puts between system text, user text and answers.

They are found by rendering conversations of marker texts and cutting at the markers. So any template works that neither
changes nor drops the content. A model without a template gets plain headings, and no roles in PML.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from cache.prompt.parts import RoleName
from cache.prompt.roles import NO_ROLES, Roles, RoleStrings

Messages = list[dict[str, str]]
Render = Callable[[Messages, bool], str]
"""Messages to text; the flag asks for the beginning of an answer at the end. May raise ValueError for a role."""

SYSTEM, USER, ANSWER, NEXT = "wd-mark-system", "wd-mark-user", "wd-mark-answer", "wd-mark-next"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """Structural strings of a conversation: open system to_user question to_answer answer to_next question ...

    roles: the same strings as PML's turns need them.
    """

    open: str
    to_user: str
    to_answer: str
    to_next: str
    roles: Roles = field(default_factory=lambda: NO_ROLES)


PLAIN = ChatTemplate(open="", to_user="\n\n", to_answer="\nAnswer:", to_next="\n\n")


def derive_template(render: Render) -> ChatTemplate:
    """Cut rendered conversations at their markers. Raises ValueError if a marker does not survive rendering."""
    contents = (("user", USER), ("assistant", ANSWER), ("user", NEXT))
    turns = [{"role": role, "content": content} for role, content in contents]
    head_alone, rest_alone = cut(render(turns, True), USER)
    try:
        head, rest = cut(render([{"role": "system", "content": SYSTEM}, *turns], True), SYSTEM)
        to_user, rest = cut(rest, USER)
        has_system = True
    except ValueError:  # no system role, or not before the first user turn: the system text opens that turn
        has_system = False
        head, to_user, rest = head_alone, "\n\n", rest_alone
    to_past_answer, rest = cut(rest, ANSWER)
    to_next, to_answer = cut(rest, NEXT)
    _, close = cut(render(turns[:2], False), ANSWER)
    answer_open = to_past_answer.removeprefix(to_answer) if to_past_answer.startswith(to_answer) else ""
    user_open = to_next.removeprefix(close) if to_next.startswith(close) else ""
    if has_system and not to_user.endswith(user_open):  # Llama 2: the opening belongs to the turn before
        user_open = ""
    roles: dict[RoleName, RoleStrings] = {
        "user": RoleStrings(user_open, to_answer),
        "assistant": RoleStrings(answer_open, to_next.removesuffix(user_open)),
    }
    if has_system:
        empty = head_alone.removesuffix(user_open)
        roles["system"] = RoleStrings(head, to_user.removesuffix(user_open), empty)
    return ChatTemplate(open=head, to_user=to_user, to_answer=to_answer, to_next=to_next, roles=roles)


def cut(text: str, marker: str) -> tuple[str, str]:
    """The text before and behind a marker. Raises ValueError if the marker is not in it exactly once."""
    if text.count(marker) != 1:
        raise ValueError(f"the chat template does not keep its content: {marker!r} is not in it once")
    before, after = text.split(marker)
    return before, after
