"""What a conversation's prompt is made of: pieces of text, and modules that have text only.

No tokenizer, no tensors. Modules that hold other modules, unions and parameters belong to PML (`cache.pml.nodes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RoleName = Literal["system", "user", "assistant"]
ROLES: tuple[RoleName, ...] = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A piece of text. Neighbouring pieces of one owner are one run, which is tokenised on its own.

    structural: True only for strings of the model's own chat template, in which special tokens are recognised.
        Everything that comes from documents, users or settings is literal.
    tokens: the exact token ids when they are known already (an answer the model generated); then `text` is only
        for people.
    """

    text: str
    structural: bool = False
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModule:
    """A reusable piece of a conversation's prompt, encoded as a whole.

    after: the module that stands before this one while it is encoded (the conditioning prefix). Its rows are not kept
        here.
    left_context: modules whose texts are read between `after` and this one while it is encoded, in this order. They
        are not part of the prompt.
    """

    name: str
    pieces: tuple[Text, ...] = ()
    after: TextModule | None = None
    left_context: tuple[TextModule, ...] = ()
