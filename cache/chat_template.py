"""The strings a model's own chat template puts between system text, user text and answers.

They are found by rendering one conversation with marker texts and cutting at the markers, so any template works
that neither rewrites nor drops the content. A model without a template gets plain headings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Messages = list[dict[str, str]]

SYSTEM, USER, ANSWER, NEXT = "wd-mark-system", "wd-mark-user", "wd-mark-answer", "wd-mark-next"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """Structural strings of a conversation: open system to_user question to_answer answer to_next question ..."""

    open: str
    to_user: str
    to_answer: str
    to_next: str


PLAIN = ChatTemplate(open="", to_user="\n\n", to_answer="\nAnswer:", to_next="\n\n")


def derive_template(render: Callable[[Messages], str]) -> ChatTemplate:
    """Cut a rendered conversation at its markers.

    render: messages to text, with the generation prompt at the end; may raise ValueError for a role it refuses.
    Raises ValueError if a marker does not survive rendering.
    """
    turns = [
        {"role": "user", "content": USER},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": NEXT},
    ]
    try:
        text = render([{"role": "system", "content": SYSTEM}, *turns])
        head, rest = cut(text, SYSTEM)
    except ValueError:  # no system role: the system text opens the first user turn
        head, rest = cut(render(turns), USER)
        rest = "\n\n" + USER + rest
    to_user, rest = cut(rest, USER)
    _, rest = cut(rest, ANSWER)
    to_next, to_answer = cut(rest, NEXT)
    return ChatTemplate(open=head, to_user=to_user, to_answer=to_answer, to_next=to_next)


def cut(text: str, marker: str) -> tuple[str, str]:
    """What stands before and behind the marker; raises ValueError if it is not there exactly once."""
    if text.count(marker) != 1:
        raise ValueError(f"the chat template does not keep its content: {marker!r} is not in it once")
    before, after = text.split(marker)
    return before, after
