"""A document's title when its author gave none, and a limit for the one the author gave."""

import re
from pathlib import Path

from retrieval.documents.document import Block
from retrieval.text.characters import readable

_MAX_CHARACTERS = 200


def choose_title(given: str, blocks: tuple[Block, ...], path: Path) -> str:
    """The given title, else the first heading, else the file name made readable; one line, never empty."""
    first_heading = next((block.text for block in blocks if block.kind == "heading"), "")
    for candidate in (given, first_heading, _from_name(path)):
        title = " ".join(readable(candidate).split())
        if title:
            return title if len(title) <= _MAX_CHARACTERS else title[: _MAX_CHARACTERS - 1] + "…"
    return "Untitled"


def _from_name(path: Path) -> str:
    words = re.sub(r"[\s._-]+", " ", path.stem).strip()
    return words[:1].upper() + words[1:]
