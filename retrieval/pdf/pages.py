"""The pages of a PDF as lines of text and tables in reading order.

pdfminer.six finds the columns, pdfplumber the tables with ruling lines. Only the text layer is read: no OCR. `blocks`
decides what the lines mean.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeAlias

import pdfplumber
from pdfminer.layout import LTChar, LTTextBox, LTTextLine
from pdfminer.pdfdocument import PDFDocument, PDFEncryptionError, PDFPasswordIncorrect
from pdfminer.pdfpage import PDFPage
from pdfminer.pdftypes import dict_value, int_value, resolve1
from pdfplumber.page import Page as PlumberPage
from pdfplumber.utils.exceptions import PdfminerException

from retrieval.errors import UnreadableDocument
from retrieval.parsing.containers import parsing

MAX_PAGES = 2000

_MOST_RULES = 2000  # a page with more ruling lines is a drawing; the search for tables would take long
_SMALLEST_TABLE = 2  # rows and columns
# Ligatures, and the bullets of the fonts Symbol and Wingdings.
_CHARACTERS = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
    | {"\x7f": "•", "\uf0b7": "•", "\uf0a7": "▪", "\uf0a8": "•", "\uf076": "•", "\uf0d8": "•", "\uf0fc": "•"}
)
_UNMAPPED_BULLET = re.compile(r"\A\s*\(cid:\d+\)(?=\s)")
_UNMAPPED = re.compile(r"\(cid:\d+\)")  # a glyph whose character the file does not give
_Box: TypeAlias = tuple[float, float, float, float]  # x0, top, x1, bottom


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of text."""

    text: str
    box: int  # number of its text box
    size: float  # of the letters, in points
    left: float  # in points
    right: float
    top: float  # from the page's top, as a share of its height
    bottom: float


@dataclass(frozen=True, slots=True)
class Table:
    """A table's cells, row by row; a cell may have several lines."""

    rows: list[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page. has_drawing: it is not blank: it has text, a scan or a picture."""

    number: int
    items: tuple[Line | Table, ...]
    has_drawing: bool
    is_damaged: bool = False


def pdf_pages(data: bytes, path: Path) -> Iterator[Page]:
    """The pages one by one. Raises UnreadableDocument for damaged, encrypted and endless files."""
    with parsing(path):
        try:
            pdf = pdfplumber.open(io.BytesIO(data), laparams={})
        except PdfminerException as error:
            if error.args and isinstance(error.args[0], PDFPasswordIncorrect | PDFEncryptionError):
                raise UnreadableDocument(path, "encrypted: save it without a password") from None
            raise
        with pdf:
            _check_number_of_pages(pdf.doc, path)
            for number, page in enumerate(pdf.pages, start=1):
                yield _page(page, number)
                page.close()  # else all pages stay in memory


def _check_number_of_pages(document: PDFDocument, path: Path) -> None:
    """Check the number that the file claims, which is fast, then count: pages can be listed more often than claimed."""
    root = dict_value(document.catalog.get("Pages", {}))
    claimed = resolve1(root.get("Count"))
    if isinstance(claimed, int) and int_value(claimed) > MAX_PAGES:
        raise UnreadableDocument(path, f"claims {claimed:,} pages; the limit is {MAX_PAGES:,}")
    for number, _ in enumerate(PDFPage.create_pages(document), start=1):
        if number > MAX_PAGES:
            raise UnreadableDocument(path, f"more than {MAX_PAGES:,} pages")


def _page(page: PlumberPage, number: int) -> Page:
    try:
        layout = page.layout
        tables = _tables(page)
        items = tuple(_items(page, tables))
    except (RecursionError, MemoryError):
        raise
    except Exception:  # as in `parsing`: one bad page must not cost the others
        return Page(number=number, items=(), has_drawing=True, is_damaged=True)
    return Page(number=number, items=items, has_drawing=bool(len(layout)))


def _tables(page: PlumberPage) -> list[tuple[_Box, Table]]:
    if not 0 < len(page.rects) + len(page.lines) + len(page.curves) <= _MOST_RULES:
        return []
    found = []
    for table in page.find_tables():
        rows = [[_clean(cell or "") for cell in row] for row in table.extract()]
        widest = max((sum(map(bool, row)) for row in rows), default=0)
        if sum(map(any, rows)) >= _SMALLEST_TABLE and widest >= _SMALLEST_TABLE:
            found.append((table.bbox, Table(rows)))
    return found


def _items(page: PlumberPage, tables: list[tuple[_Box, Table]]) -> Iterator[Line | Table]:
    """The lines in pdfminer's order, each table at the place of its first line."""
    waiting = list(tables)
    boxes = [box for box in page.layout if isinstance(box, LTTextBox)]
    lines = [(number, line) for number, box in enumerate(boxes) for line in box if isinstance(line, LTTextLine)]
    for number, line in lines:
        top, bottom = page.height - line.y1, page.height - line.y0
        x, y = (line.x0 + line.x1) / 2, (top + bottom) / 2
        around = next((t for t in tables if t[0][0] <= x <= t[0][2] and t[0][1] <= y <= t[0][3]), None)
        if around is not None:
            if around in waiting:
                waiting.remove(around)
                yield around[1]
        elif text := _clean(line.get_text()):
            sizes = [character.size for character in line if isinstance(character, LTChar)]
            yield Line(
                text=text,
                box=number,
                size=round(2 * median(sizes)) / 2 if sizes else 0.0,
                left=line.x0,
                right=line.x1,
                top=top / page.height,
                bottom=bottom / page.height,
            )


def _clean(text: str) -> str:
    return _UNMAPPED.sub("", _UNMAPPED_BULLET.sub("•", text)).translate(_CHARACTERS).strip()
