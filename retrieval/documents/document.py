"""Documents as plain-text blocks, and the passages that are cut from them.

Values only: nothing here reads files. No markup is left at this point except list markers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Literal, TypeAlias

BlockKind: TypeAlias = Literal["heading", "text", "list", "table", "code"]


def content_hash(*parts: bytes | memoryview) -> str:
    """The identity of some content, whole or in parts: "b2:" and the 256-bit BLAKE2b digest in hexadecimal."""
    digest = blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    return "b2:" + digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One structural piece of a document as plain text.

    A list has one item per line, with "- " or "1. " and two spaces per level. A table has one row per line, written
    "header: value; header: value": it can be cut at any row, and a small language model need not count columns.
    """

    kind: BlockKind
    text: str
    level: int = 0  # 1 to 6 for a heading, 0 for everything else


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a loader finds in a file."""

    blocks: Sequence[Block]
    title: str | None = None  # the author's; None for the first heading, "" for the file's name
    is_faq: bool = False  # each heading over a text is one question, and sections are never joined
    remarks: Sequence[str] = ()  # one line each: what was left out although the file was read
    url: str = ""  # where the page stands for everybody, if the file says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file, read: its `Contents` with a title."""

    path: Path
    title: str
    blocks: tuple[Block, ...]
    content_hash: str  # of its bytes: a file saved unchanged is the same document
    is_faq: bool = False
    remarks: tuple[str, ...] = ()
    url: str = ""


def with_headings(heading_path: tuple[str, ...], text: str) -> str:
    """A text below its headings: what embedders and readers see."""
    return " > ".join(heading_path) + "\n" + text


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of a document, small enough to be retrieved and put into a prompt."""

    text: str
    heading_path: tuple[str, ...]  # from the document's title down to the section
    ordinal: int  # the place in the document, from 0
    content_hash: str = field(init=False)  # not of the ordinal: a passage that moved is the same passage

    def __post_init__(self) -> None:
        identity = json.dumps([*self.heading_path, self.text], ensure_ascii=True).encode("ascii")
        object.__setattr__(self, "content_hash", content_hash(identity))
