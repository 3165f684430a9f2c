"""Prompts for a server with its own tokenizer: token ids that are pieces of text.

An id contains the bytes of a text piece that is as long as a typical token. So a plan of such ids has the whole text of
the prompt, and its length estimates the server's number of tokens. For English, the estimate is more often too high
than too low. Ids below 0 are borders between messages; only structural strings make them.
"""

import re
from collections.abc import Sequence
from itertools import groupby

from cache.prompt.parts import RoleName, Text
from cache.prompt.plan import Plan
from cache.prompt.tokenizer import ChatTemplate, RoleStrings

BORDERS: dict[str, RoleName] = {"<system>": "system", "<user>": "user", "<assistant>": "assistant"}
"""Role of the message that begins after each structural string."""
IDS: dict[str, int] = {border: -number for number, border in enumerate(BORDERS, start=1)}
ROLE_OF: dict[int, RoleName] = {IDS[border]: role for border, role in BORDERS.items()}
STOP = -1 - len(BORDERS)  # ends an answer; not in a prompt
TEMPLATE = ChatTemplate(
    open="<system>",
    to_user="<user>",
    to_answer="<assistant>",
    to_next="<user>",
    roles={
        "system": RoleStrings("<system>", "", ""),
        "user": RoleStrings("<user>", "<assistant>"),
        "assistant": RoleStrings("", ""),
    },
)
_PIECE = re.compile(r" ?[A-Za-z]{1,5}|[ \t]{1,4}|[\r\n]{1,2}|(?s:.)")
_BORDER = re.compile("|".join(map(re.escape, BORDERS)))
_FULL = b"\x01"  # put before the bytes of a piece, so that leading zero bytes are not lost and no id is 0


class TextTokenizer:
    """A `ChatTokenizer` whose ids contain their text."""

    def __init__(self) -> None:
        self.template = TEMPLATE
        self.filler = _id_of("\n")
        self.sink_prefix: tuple[int, ...] = ()

    def encode(self, run: Sequence[Text]) -> list[int]:
        """Return ids of the joined text of a run. Only structural pieces give borders."""
        ids: list[int] = []
        for structural, pieces in groupby(run, key=lambda piece: piece.structural):
            text = "".join(piece.text for piece in pieces)
            at = 0
            for border in _BORDER.finditer(text) if structural else ():
                ids += _ids_of(text[at : border.start()])
                ids.append(IDS[border.group()])
                at = border.end()
            ids += _ids_of(text[at:])
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(_bytes_of(token) for token in tokens if token > 0).decode()


def messages_of(plan: Plan, tokenizer: TextTokenizer) -> list[dict[str, str]]:
    """Return the prompt as OpenAI messages with role and content. The last border is the start of the answer; it makes
    no message.
    """
    messages: list[dict[str, str]] = []
    role: RoleName = "user"
    tokens = [token for span in plan.spans for token in span.tokens]
    for is_border, group in groupby(tokens, key=lambda token: token < 0):
        if is_border:
            role = ROLE_OF[list(group)[-1]]
        else:
            messages.append({"role": role, "content": tokenizer.decode(list(group))})
    return messages


def _ids_of(text: str) -> list[int]:
    return [_id_of(piece) for piece in _PIECE.findall(text)]


def _id_of(piece: str) -> int:
    return int.from_bytes(_FULL + piece.encode(errors="replace"))


def _bytes_of(token: int) -> bytes:
    return token.to_bytes((token.bit_length() + 7) // 8)[1:]
