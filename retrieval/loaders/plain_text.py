"""Plain text files: blank lines separate paragraphs.

Lines inside a paragraph stay as they are. A short first line that stands alone is the title. Nothing else is guessed:
no underlined headings, no tables in columns.
"""

import re
from pathlib import Path

from retrieval.documents.document import Block, BlockKind, Contents
from retrieval.parsing.decoding import decode
from retrieval.text.characters import readable

_LONGEST_TITLE = 80
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*•+]|\d{1,3}[.)])[ \t]")


def load_text(data: bytes, path: Path) -> Contents:
    """Read a plain text file. Raises UnreadableDocument for binary content."""
    text = readable(decode(data, path))
    found = re.split(r"\n[ \t]*(?:\n[ \t]*)+", text)
    paragraphs = [paragraph.strip("\n").rstrip() for paragraph in found if paragraph.strip()]
    blocks = [Block(kind=_kind(paragraph), text=paragraph) for paragraph in paragraphs]
    if len(paragraphs) > 1 and _is_title(paragraphs[0]):
        blocks[0] = Block(kind="heading", text=paragraphs[0].strip(), level=1)
    return Contents(blocks=blocks)


def _kind(paragraph: str) -> BlockKind:
    return "list" if all(_LIST_ITEM.match(line) for line in paragraph.split("\n")) else "text"


def _is_title(paragraph: str) -> bool:
    line = paragraph.strip()
    return len(line) <= _LONGEST_TITLE and "\n" not in line and not line.endswith((".", ":", ",", ";", "。", "："))
