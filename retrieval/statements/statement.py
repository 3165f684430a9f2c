"""A statement: the smallest part of a passage that can be an answer by itself."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from retrieval.text.terms import CHINESE_JAPANESE

Kind: TypeAlias = Literal["sentence", "item", "list", "row", "procedure"]

_WORD = re.compile(rf"[{CHINESE_JAPANESE}]{{1,2}}|[^\W{CHINESE_JAPANESE}]+")


@dataclass(frozen=True, slots=True)
class Statement:
    """Text that a customer can read without the passage around it.

    text: with the line or heading that governs it, and a full stop; the steps of a procedure on lines of their own.
    start, end: the characters of the passage it stands for, without the governing line.
    """

    text: str
    start: int
    end: int
    kind: Kind


def num_words(text: str) -> int:
    """Words of a text; two Chinese or Japanese characters count as one, which is about how long their words are."""
    return len(_WORD.findall(text))
