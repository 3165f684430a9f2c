"""From a file to a document: the table of formats, and the one function that reads a file.

A format is one function in a file of its own and one line in `FORMATS`; the upload form and the messages follow the
table. No loader executes or fetches what a document contains. A hostile file can still use up all time and memory:
`retrieval.reading` sets limits.
"""

import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from retrieval.documents.document import Contents, Document, content_hash
from retrieval.errors import UnreadableDocument, file_problem
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
from retrieval.text.characters import readable

Loader: TypeAlias = Callable[[bytes, Path], Contents]
"""The path is for messages and for what its suffix tells; the bytes are the file, not empty."""


class Format(NamedTuple):
    """A document format."""

    name: str  # for people
    suffixes: str  # in lower case, separated by spaces
    loader: Loader


FORMATS = (
    Format("PDF", ".pdf", load_pdf),
    Format("Word", ".docx", load_docx),
    Format("PowerPoint", ".pptx", load_pptx),
    Format("Excel", ".xlsx .xls .ods", load_spreadsheet),
    Format("CSV", ".csv .tsv .tab .psv", load_delimited),
    Format("Markdown", ".md .markdown", load_markdown),
    Format("HTML", ".html .htm", load_html),
    Format("reStructuredText", ".rst", load_rst),
    Format("JSON", ".json", load_json),
    Format("JSON Lines", ".jsonl .ndjson", load_json_lines),
    Format("text", ".txt", load_text),
)
SUPPORTED = dict(sorted({suffix: form.loader for form in FORMATS for suffix in form.suffixes.split()}.items()))
"""Suffix to loader."""

_CURES = {".doc": ".docx", ".odp": ".pptx", ".odt": ".docx", ".ppt": ".pptx", ".rtf": ".docx"}

MAX_BYTES = 20 * 2**20
_LONGEST_TITLE = 200


def load(path: Path, *, max_bytes: int = MAX_BYTES) -> Document:
    """Read one file. Raises UnreadableDocument for anything that cannot become a document: a type not in SUPPORTED,
    more than `max_bytes`, binary content, no text, or a file that cannot be opened.
    """
    suffix = path.suffix.lower()
    if suffix in _CURES:
        raise UnreadableDocument(path, f"{path.suffix} files are not supported: save it as {_CURES[suffix]}")
    if suffix not in SUPPORTED:
        kind = f"{path.suffix} files are" if suffix else "files without a suffix are"
        raise UnreadableDocument(path, f"{kind} not supported (supported: {' '.join(SUPPORTED)})")
    data = read_bytes(path, max_bytes)
    if not data:
        raise UnreadableDocument(path, "empty file")
    try:
        document = document_of(data, path)
    except RecursionError:
        raise UnreadableDocument(path, "nested too deeply") from None
    if not document.blocks:
        raise UnreadableDocument(path, "no text in it")
    return document


def document_of(data: bytes, path: Path) -> Document:
    """The document in a file's bytes; it may have no blocks. Raises UnreadableDocument and RecursionError."""
    contents = SUPPORTED[path.suffix.lower()](data, path)
    return Document(
        path=path,
        title=_title(contents, path),
        blocks=tuple(contents.blocks),
        content_hash=content_hash(data),
        is_faq=contents.is_faq,
        url=contents.url,
        remarks=tuple(contents.remarks),
    )


def _title(contents: Contents, path: Path) -> str:
    """The loader's title, else the first heading, else the file name made readable; one line, never empty."""
    headings = (block.text for block in contents.blocks if block.kind == "heading")
    given = next(headings, "") if contents.title is None else contents.title
    name = re.sub(r"[\s._-]+", " ", path.stem).strip()
    title = " ".join(readable(given).split()) or " ".join(readable(name[:1].upper() + name[1:]).split()) or "Untitled"
    return title if len(title) <= _LONGEST_TITLE else title[: _LONGEST_TITLE - 1] + "…"


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file. Raises UnreadableDocument, also for more than `max_bytes`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise UnreadableDocument(path, "not a regular file")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise UnreadableDocument(path, file_problem(error)) from None
    if len(data) > max_bytes:
        raise UnreadableDocument(path, f"file is larger than {max_bytes / 2**20:.3g} MB")
    return data
