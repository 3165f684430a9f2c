"""A website's page in the data folder: its address, title and blocks as JSON. Nobody uploads such files."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from retrieval.documents import Block, Contents
from retrieval.errors import UnreadableDocument

STORED = ".webpage"
_PAGE = TypeAdapter(tuple[str, str, tuple[Block, ...]])


def load_stored(data: bytes, path: Path) -> Contents:
    """Read a page that `stored` wrote."""
    try:
        url, title, blocks = _PAGE.validate_json(data)
    except (ValidationError, RecursionError):
        raise UnreadableDocument(path, "no stored page of a website") from None
    return Contents(blocks=blocks, title=title or None, url=url)


def stored(url: str, title: str, blocks: tuple[Block, ...]) -> bytes:
    """Return the bytes of a file that `load_stored` reads."""
    return bytes(_PAGE.dump_json((url, title, blocks)))
