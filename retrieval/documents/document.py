"""What loaders give and the splitter takes: documents as plain-text blocks, and the passages cut from them.

Values only. Nothing here reads files, and no markup survives to this point except list markers.
"""

import json
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

    A list has one item a line, with "- " or "1. " and two spaces a level. A table has one row a line, written
    "header: value; header: value": every line then says what its numbers mean, so it can be cut at any row
    without repeating a header, and a small language model need not count columns.
    """

    kind: BlockKind
    text: str
    level: int = 0  # 1 to 6 for a heading, 0 for everything else


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file, read. `content_hash` is that of its bytes, so a file saved unchanged is the same.

    In a table of questions and answers (`is_faq`) every heading over a text is one question, and sections are
    never joined. `remarks` say, one line each, what was left out although the document was read.
    """

    path: Path
    title: str
    blocks: tuple[Block, ...]
    content_hash: str
    is_faq: bool = False
    remarks: tuple[str, ...] = ()


def with_headings(heading_path: tuple[str, ...], text: str) -> str:
    """A text below the headings it stands under, which is how embedders and readers should see it."""
    return " > ".join(heading_path) + "\n" + text


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of a document small enough to be retrieved and put into a prompt.

    `heading_path` runs from the document's title down to the section. `content_hash` covers the path and the
    text but not `ordinal`, the place in the document (from 0): a passage that only moved is the same.
    """

    text: str
    heading_path: tuple[str, ...]
    ordinal: int
    content_hash: str = field(init=False)

    def __post_init__(self) -> None:
        identity = json.dumps([*self.heading_path, self.text], ensure_ascii=True).encode("ascii")
        object.__setattr__(self, "content_hash", content_hash(identity))
