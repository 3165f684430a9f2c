"""PDF files and pictures: pages as lines and tables, which `layout` turns into blocks.

pdfminer.six finds the columns, pdfplumber the tables with ruling lines. OCR, if installed (the extra `ocr`: rapidocr,
onnxruntime), reads pictures and pages without text, which are mostly scans. Without OCR, a remark names such pages. The
OCR models are part of rapidocr's package, so nothing is downloaded. They read English, Chinese, Japanese and languages
with Latin letters.
"""

import contextlib
import importlib.util
import io
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import pdfplumber
import pypdfium2
from pdfminer.layout import LTChar, LTTextBox, LTTextLine
from pdfminer.pdfdocument import PDFDocument, PDFEncryptionError, PDFPasswordIncorrect
from pdfminer.pdfpage import PDFPage
from pdfminer.pdftypes import dict_value, int_value, resolve1
from pdfplumber.page import Page as PlumberPage
from pdfplumber.table import Table as PlumberTable
from pdfplumber.utils.exceptions import PdfminerException
from PIL import Image

from retrieval.documents import Contents
from retrieval.errors import UnreadableDocument
from retrieval.loaders.decoding import parsing
from retrieval.loaders.layout import Line, Page, Table, blocks_of_pages

_DOTS_PER_POINT = 150 / 72  # of a picture for OCR
MAX_PAGES = 2000
_NAMED_PAGES = 20  # in a message

_MOST_RULES = 2000  # a page with more ruling lines is a drawing, and a search for tables would be slow
_SMALLEST_TABLE = 2  # rows and columns
# Ligatures, and the bullets of the fonts Symbol and Wingdings.
_CHARACTERS = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
    | {"\x7f": "•", "\uf0b7": "•", "\uf0a7": "▪", "\uf0a8": "•", "\uf076": "•", "\uf0d8": "•", "\uf0fc": "•"}
)
_UNMAPPED_BULLET = re.compile(r"\A\s*\(cid:\d+\)(?=\s)")
_UNMAPPED = re.compile(r"\(cid:\d+\)")  # a glyph without a character in the file
_Box: TypeAlias = tuple[float, float, float, float]  # x0, top, x1, bottom


def load_pdf(data: bytes, path: Path) -> Contents:
    if b"%PDF-" not in data[:1024]:
        raise UnreadableDocument(path, "damaged, or not a .pdf file")
    pages = list(pdf_pages(data, path))
    pages = with_scans(data, path, pages) if can_read_scans() else pages
    scanned = [page.number for page in pages if _is_scanned(page)]
    damaged = [page.number for page in pages if page.is_damaged]
    if not any(page.items for page in pages):
        if damaged or not pages:
            raise UnreadableDocument(path, "damaged .pdf file: no page can be read")
        if scanned:
            count = "1 scanned page" if len(scanned) == 1 else f"{len(scanned)} scanned pages"
            raise UnreadableDocument(path, f"no text layer: {count}; {advice()}")
    blocks = blocks_of_pages(pages)
    remarks = []
    if scanned:
        remarks.append(f"{_numbers(scanned)} skipped: no text layer; {advice()}")
    if damaged:
        remarks.append(f"{_numbers(damaged)} skipped: damaged")
    return Contents(blocks=blocks, remarks=remarks)


def _is_scanned(page: Page) -> bool:
    return page.has_drawing and not page.items and not page.is_damaged


def with_scans(data: bytes, path: Path, pages: Sequence[Page]) -> list[Page]:
    """Return the pages, with the lines that OCR finds on scanned pages."""
    if not any(map(_is_scanned, pages)):
        return list(pages)
    with parsing(path), contextlib.closing(pypdfium2.PdfDocument(data)) as pdf:
        end = time.monotonic() + _SECONDS
        return [
            replace(page, items=scan_lines(_picture(pdf[page.number - 1])))
            if _is_scanned(page) and time.monotonic() < end
            else page
            for page in pages
        ]


def _picture(page: pypdfium2.PdfPage) -> Image.Image:
    scale = min(_DOTS_PER_POINT, _LONGEST_SIDE / max(page.get_size()))
    picture: Image.Image = page.render(scale=scale).to_pil()
    return picture


def _numbers(pages: list[int]) -> str:
    named = ", ".join(map(str, pages[:_NAMED_PAGES])) + (", …" if len(pages) > _NAMED_PAGES else "")
    return f"page {named}" if len(pages) == 1 else f"{len(pages)} pages ({named})"


def pdf_pages(data: bytes, path: Path) -> Iterator[Page]:
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
                page.close()  # otherwise all pages stay in memory


def _check_number_of_pages(document: PDFDocument, path: Path) -> None:
    """Check the declared number of pages, which is fast. Then count, because a file can contain more."""
    root = dict_value(document.catalog.get("Pages", {}))
    claimed = resolve1(root.get("Count"))
    if isinstance(claimed, int) and int_value(claimed) > MAX_PAGES:
        raise UnreadableDocument(path, f"declares {claimed:,} pages; the limit is {MAX_PAGES:,}")
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
    except Exception:  # as in `parsing`: a bad page does not affect others
        return Page(number=number, items=(), has_drawing=True, is_damaged=True)
    return Page(number=number, items=items, has_drawing=bool(len(layout)))


def _tables(page: PlumberPage) -> list[tuple[_Box, Table]]:
    if not 0 < len(page.rects) + len(page.lines) + len(page.curves) <= _MOST_RULES:
        return []
    found = []
    for table in page.find_tables():
        rows = _spread(table)
        widest = max((sum(map(bool, row)) for row in rows), default=0)
        if sum(map(any, rows)) >= _SMALLEST_TABLE and widest >= _SMALLEST_TABLE:
            found.append((table.bbox, rows))
    return found


def _spread(table: PlumberTable) -> Table:
    """Return the cells' texts. A merged cell counts in each place it covers."""
    texts = table.extract()
    rows: Table = []
    for number, (row, found) in enumerate(zip(table.rows, texts, strict=True)):
        rows.append([])
        for place, (box, text) in enumerate(zip(row.cells, found, strict=True)):
            x, y = table.columns[place].bbox[0], row.bbox[1]
            left = next((cell for cell in reversed(row.cells[:place]) if cell), None)
            above = next((other.cells[place] for other in reversed(table.rows[:number]) if other.cells[place]), None)
            if box or not ((left and left[2] > x + 1) or (above and above[3] > y + 1)):
                rows[-1].append(_clean(text or ""))
            else:
                rows[-1].append(rows[-1][-1] if left and left[2] > x + 1 else rows[number - 1][place])
    return rows


def _items(page: PlumberPage, tables: list[tuple[_Box, Table]]) -> Iterator[Line | Table]:
    """Yield the lines in pdfminer's order, each table at the place of its first line."""
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


_LONGEST_SIDE = 2000  # pixels; more costs time and reads no better
_MOST_PIXELS = 60_000_000  # of a file; a small file can unpack to many
_LEAST_CONFIDENCE = 0.6
_SECONDS = 40.0  # of one file; less than the limit of `retrieval.reading`
_LARGER = 1.3  # times the median line height: a heading. Boxes of one font differ in height
_FEWEST_LETTERS = 60  # of a picture; fewer are the labels of an illustration
_GAP = 0.9  # between lines of one paragraph, at most, in line heights


def can_read_scans() -> bool:
    return all(importlib.util.find_spec(name) for name in ("rapidocr", "onnxruntime"))


def advice() -> str:
    """Return advice for a scan that was not read."""
    read_first = "run OCR first (for example ocrmypdf)"
    if can_read_scans():
        return f"OCR found no text within {_SECONDS:g} s; {read_first}"
    return f'install "warmdesk[ocr]" or {read_first}'


@cache
def _engine() -> Any:
    from rapidocr import RapidOCR  # 2 s, only for files that need it

    return RapidOCR(params={"Global.log_level": "error", "Global.use_cls": False})


def scan_lines(picture: Image.Image) -> tuple[Line, ...]:
    """Return the lines that OCR finds in a picture, from the top."""
    picture = picture.convert("RGB")
    picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    found = _engine()(picture)
    if found.boxes is None:
        return ()
    boxes = [
        (min(x for x, _ in box), min(y for _, y in box), max(x for x, _ in box), max(y for _, y in box), text.strip())
        for box, text, score in zip(found.boxes.tolist(), found.txts, found.scores, strict=True)
        if score >= _LEAST_CONFIDENCE and text.strip()
    ]
    usual = median([bottom - top for _, top, _, bottom, _ in boxes]) if boxes else 0.0
    lines: list[Line] = []
    number, last = 0, None
    for left, top, right, bottom, text in sorted(boxes, key=lambda box: (box[1], box[0])):
        size = round(bottom - top) if bottom - top > _LARGER * usual else round(usual)
        if last and (top - last > _GAP * usual or size != lines[-1].size):
            number += 1
        last = bottom
        share = picture.height
        lines.append(
            Line(text=text, box=number, size=size, left=left, right=right, top=top / share, bottom=bottom / share)
        )
    return tuple(lines)


def load_picture(data: bytes, path: Path) -> Contents:
    if not can_read_scans():
        raise UnreadableDocument(path, advice())
    with parsing(path), Image.open(io.BytesIO(data)) as picture:
        if picture.width * picture.height > _MOST_PIXELS:
            raise UnreadableDocument(path, f"more than {_MOST_PIXELS // 10**6} million pixels")
        lines = scan_lines(picture)
    if sum(len(line.text) for line in lines) < _FEWEST_LETTERS:
        raise UnreadableDocument(path, "a picture with little or no text")
    page = Page(number=1, items=lines, has_drawing=True)
    return Contents(blocks=blocks_of_pages([page]))
