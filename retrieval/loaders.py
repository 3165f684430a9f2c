"""From a file to a document: the table of formats and the one way in.

A format is one function in its own file and one line in `SUPPORTED`. Nothing here executes or fetches what a
document contains.
"""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from retrieval.documents import Document
from retrieval.errors import UnreadableDocument
from retrieval.html import load_html
from retrieval.markdown import load_markdown
from retrieval.text import load_text

Loader: TypeAlias = Callable[[bytes, Path], Document]

SUPPORTED: dict[str, Loader] = {
    ".htm": load_html,
    ".html": load_html,
    ".markdown": load_markdown,
    ".md": load_markdown,
    ".txt": load_text,
}

MAX_BYTES = 20 * 2**20


def load(path: Path, *, max_bytes: int = MAX_BYTES) -> Document:
    """Read one file.

    Raises UnreadableDocument, whose `reason` is one line, for anything that cannot become a document: a type
    not in SUPPORTED, more than `max_bytes`, binary content, no text, or a file that cannot be opened.
    """
    loader = SUPPORTED.get(path.suffix.lower())
    if loader is None:
        kind = f"{path.suffix} files are" if path.suffix else "files without a suffix are"
        raise UnreadableDocument(path, f"{kind} not supported (supported: {' '.join(SUPPORTED)})")
    data = _read(path, max_bytes)
    if not data:
        raise UnreadableDocument(path, "empty file")
    try:
        document = loader(data, path)
    except RecursionError:
        raise UnreadableDocument(path, "nested too deeply") from None
    if not document.blocks:
        raise UnreadableDocument(path, "no text in it")
    return document


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise UnreadableDocument(path, "not a regular file")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise UnreadableDocument(path, "no such file or folder") from None
    except PermissionError:
        raise UnreadableDocument(path, "permission denied") from None
    except (OSError, ValueError) as error:
        raise UnreadableDocument(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > max_bytes:
        raise UnreadableDocument(path, f"file is larger than {max_bytes / 2**20:.3g} MB")
    return data
