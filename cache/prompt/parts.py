"""The parts of a conversation's prompt: pieces of text, and modules with text only.

Out of scope: modules with nested modules, unions and parameters (`cache.pml.nodes`).
"""

from dataclasses import dataclass
from typing import Literal

RoleName = Literal["system", "user", "assistant"]
ROLES: tuple[RoleName, ...] = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A piece of text. Neighbouring pieces are tokenised together, as one run. structural: True only for strings of the
    chat template; only there, control tokens are recognised. tokens: the exact ids if known, for example of a generated
    answer; then `text` is only for people.
    """

    text: str
    structural: bool = False
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModule:
    """A reusable piece of a conversation's prompt, encoded as a whole. after: the conditioning prefix, a module that is
    before this one during encoding. left_context: modules whose texts are between these two during encoding; they are
    not part of the prompt.
    """

    name: str
    pieces: tuple[Text, ...] = ()
    after: "TextModule | None" = None
    left_context: "tuple[TextModule, ...]" = ()
