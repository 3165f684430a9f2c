"""Tables as text: values separated by commas, semicolons, tabs or another usual character.

The delimiter is the one that splits the first rows into as many cells as the header has. csv.Sniffer and clevercsv take
commas inside answers for the delimiter. Every cell is text; nothing is computed.
"""

import contextlib
import csv
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from retrieval.documents.document import Contents
from retrieval.errors import UnreadableDocument
from retrieval.parsing.decoding import decode
from retrieval.parsing.faq import faq_blocks
from retrieval.parsing.rows import table_blocks

_DELIMITERS = ",;\t|^~¦\x1f"  # the likelier first
_PREFERRED = {".tsv": "\t", ".tab": "\t", ".psv": "|"}
_SAMPLE_ROWS = 200
_SAMPLE_CHARACTERS = 256 * 1024
_LARGEST_CELL = 2**20  # characters


def load_delimited(data: bytes, path: Path) -> Contents:
    """Read a table. Raises UnreadableDocument for binary content and for a cell over 1 MB, naming its row."""
    rows = _rows(decode(data, path), path)
    faq = faq_blocks(rows[0], rows[1:]) if rows else None
    blocks, remarks = faq or (table_blocks(rows), [])
    return Contents(blocks=blocks, title="", is_faq=faq is not None, remarks=remarks)


def _rows(text: str, path: Path) -> list[list[str]]:
    csv.field_size_limit(_LARGEST_CELL)
    preferred = _PREFERRED.get(path.suffix.lower(), ",")
    likeliest = preferred + _DELIMITERS.replace(preferred, "")
    sample = text[:_SAMPLE_CHARACTERS]
    delimiter = max(likeliest, key=lambda delimiter: _evenness(sample, delimiter))  # the first of equals
    rows: list[list[str]] = []
    try:
        rows.extend(_reader(text, delimiter))
    except csv.Error as error:
        is_long = "limit" in str(error)
        reason = "has a cell over 1 MB (a quotation mark never closed?)" if is_long else f"is bad: {error}"
        raise UnreadableDocument(path, f"row {len(rows) + 1} {reason}") from None
    return rows


def _reader(text: str, delimiter: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter != "\t")


def _evenness(sample: str, delimiter: str) -> float:
    """The share of rows with as many cells as the header, 0 if that has only one cell."""
    widths: list[int] = []
    with contextlib.suppress(csv.Error):  # the sample may end inside a cell; all of the text is read later
        widths.extend(len(row) for row in islice(filter(any, _reader(sample, delimiter)), _SAMPLE_ROWS))
    width = max(widths[:3], default=1)  # captions may stand above the header
    return sum(other == width for other in widths) / len(widths) if width > 1 else 0.0
