"""From a file to a document: the table of formats and the one way in.

A format is one function in its own file and one line in `SUPPORTED`. Nothing here executes or fetches what a
document contains, but a hostile file can take all the time and memory there is: `reading` sets limits.
"""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from retrieval.documents.document import Document
from retrieval.errors import UnreadableDocument
from retrieval.loaders.delimited import load_delimited
from retrieval.loaders.docx import load_docx
from retrieval.loaders.html import load_html
from retrieval.loaders.json_records import load_json, load_json_lines
from retrieval.loaders.markdown import load_markdown
from retrieval.loaders.pdf import load_pdf
from retrieval.loaders.plain_text import load_text
from retrieval.loaders.pptx import load_pptx
from retrieval.loaders.rst import load_rst
from retrieval.loaders.spreadsheet import load_spreadsheet

Loader: TypeAlias = Callable[[bytes, Path], Document]

SUPPORTED: dict[str, Loader] = {
    ".csv": load_delimited,
    ".docx": load_docx,
    ".htm": load_html,
    ".html": load_html,
    ".json": load_json,
    ".jsonl": load_json_lines,
    ".markdown": load_markdown,
    ".md": load_markdown,
    ".ndjson": load_json_lines,
    ".ods": load_spreadsheet,
    ".pdf": load_pdf,
    ".pptx": load_pptx,
    ".psv": load_delimited,
    ".rst": load_rst,
    ".tab": load_delimited,
    ".tsv": load_delimited,
    ".txt": load_text,
    ".xls": load_spreadsheet,
    ".xlsx": load_spreadsheet,
}

_CURES = {".doc": ".docx", ".odp": ".pptx", ".odt": ".docx", ".ppt": ".pptx", ".rtf": ".docx"}

MAX_BYTES = 20 * 2**20


def load(path: Path, *, max_bytes: int = MAX_BYTES) -> Document:
    """Read one file.

    Raises UnreadableDocument, whose `reason` is one line, for anything that cannot become a document: a type
    not in SUPPORTED, more than `max_bytes`, binary content, no text, or a file that cannot be opened.
    """
    loader = SUPPORTED.get(path.suffix.lower())
    if loader is None:
        cure = _CURES.get(path.suffix.lower())
        if cure:
            raise UnreadableDocument(path, f"{path.suffix} files are not supported: save it as {cure}")
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
