"""PDF files with a text layer: pages as lines and tables, then as blocks.

pdfminer.six finds the columns, pdfplumber the tables with ruling lines. Pages without text, mostly scans, need OCR,
which is out of scope. They are counted and named in a remark.

Tables without ruling lines are found by their form: at least three rows of short cells, few of them wrapped. pdfminer
reads such a table column by column, which separates a price from its product. Columns of prose have longer lines, and
wrapped cells start in the middle of a sentence.

A PDF contains the positions of letters, not their meaning, so only clear cases are used: a heading is larger than the
body, a list item starts with a bullet. Running heads, feet and page numbers are dropped.
"""

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import TypeAlias

import pdfplumber
from pdfminer.layout import LTChar, LTTextBox, LTTextLine
from pdfminer.pdfdocument import PDFDocument, PDFEncryptionError, PDFPasswordIncorrect
from pdfminer.pdfpage import PDFPage
from pdfminer.pdftypes import dict_value, int_value, resolve1
from pdfplumber.page import Page as PlumberPage
from pdfplumber.table import Table as PlumberTable
from pdfplumber.utils.exceptions import PdfminerException

from retrieval.documents import Block, BlockKind, Contents
from retrieval.errors import UnreadableDocument
from retrieval.loaders.decoding import parsing
from retrieval.loaders.tables import header_rows, one_line, table_blocks, without_empty
from retrieval.text.terms import readable

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of text and its position on the page."""

    text: str
    box: int  # number of the text box
    size: float  # of the letters, in points
    left: float  # in points
    right: float
    top: float  # from the page's top, as a share of its height
    bottom: float


Table: TypeAlias = list[list[str]]
"""A table's cells, row by row. A cell may have several lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page. has_drawing: it is not blank, but contains text, a scan or a picture."""

    number: int
    items: tuple[Line | Table, ...]
    has_drawing: bool
    is_damaged: bool = False


def load_pdf(data: bytes, path: Path) -> Contents:
    if b"%PDF-" not in data[:1024]:
        raise UnreadableDocument(path, "damaged, or not a .pdf file")
    pages = list(pdf_pages(data, path))
    scanned = [page.number for page in pages if page.has_drawing and not page.items and not page.is_damaged]
    damaged = [page.number for page in pages if page.is_damaged]
    if not any(page.items for page in pages):
        if damaged or not pages:
            raise UnreadableDocument(path, "damaged .pdf file: no page can be read")
        if scanned:
            count = "1 scanned page" if len(scanned) == 1 else f"{len(scanned)} scanned pages"
            raise UnreadableDocument(path, f"no text layer: {count}; run OCR first (for example ocrmypdf)")
    blocks = pdf_blocks(pages)
    remarks = []
    if scanned:
        remarks.append(f"{_numbers(scanned)} skipped: no text layer; run OCR first (for example ocrmypdf)")
    if damaged:
        remarks.append(f"{_numbers(damaged)} skipped: damaged")
    return Contents(blocks=blocks, remarks=remarks)


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


_FEWEST_ROWS = 3
_LONGEST_CELL = 24  # characters, the median of all cells
_MOST_WRAPPED = 0.15  # of the cells
_LARGEST_GAP = 3.0  # between rows, in line heights


def with_grids(items: Sequence[Line | Table]) -> Iterator[Line | Table]:
    """Yield the items of a page. Lines that form a table are replaced by the table, at the place of the first line."""
    grids = list(_grids([item for item in items if isinstance(item, Line)]))
    waiting = list(grids)
    for item in items:
        grid = next((grid for grid in grids if any(item in row for row in grid)), None)
        if grid is None:
            yield item
        elif grid in waiting:
            waiting.remove(grid)
            yield _table(grid)


def _grids(lines: Sequence[Line]) -> Iterator[list[list[Line]]]:
    run: list[list[Line]] = []
    for row in [*_rows(lines), []]:
        above = run[-1][0] if run else None
        if len(row) > 1 and (not above or row[0].top - above.bottom < _LARGEST_GAP * (above.bottom - above.top)):
            run.append(row)
            continue
        if _is_grid(run):
            yield run
        run = [row] if len(row) > 1 else []


def _rows(lines: Sequence[Line]) -> list[list[Line]]:
    rows: list[list[Line]] = []
    for line in sorted(lines, key=lambda line: line.top + line.bottom):
        last = rows[-1][0] if rows else None
        if last and abs(last.top + last.bottom - line.top - line.bottom) < (last.bottom - last.top) / 2:
            rows[-1].append(line)
        else:
            rows.append([line])
    return [sorted(row, key=lambda line: line.left) for row in rows]


def _is_grid(rows: Sequence[Sequence[Line]]) -> bool:
    cells = [line for row in rows for line in row]
    columns = max(map(len, rows), default=0)
    return (
        len(rows) >= _FEWEST_ROWS
        and columns > 1
        and sum(len(row) == columns for row in rows) * 2 > len(rows)
        and median(len(cell.text) for cell in cells) <= _LONGEST_CELL
        and not _is_wrapped([row for row in rows if len(row) == columns])
        and not any(left.right > right.left for row in rows for left, right in pairwise(row))
    )


def _is_wrapped(rows: Sequence[Sequence[Line]]) -> bool:
    """Return whether cells continue in the next row with a small letter. Columns where all cells do so are ignored."""
    small = [[cell.text[0].islower() for cell in column[1:]] for column in zip(*rows, strict=True)]
    if all(all(column) for column in small):
        return True
    return sum(sum(column) for column in small if not all(column)) > _MOST_WRAPPED * sum(map(len, small))


def _table(rows: Sequence[Sequence[Line]]) -> Table:
    width = max(map(len, rows))
    full = [row for row in rows if len(row) == width]
    columns = [(min(row[n].left for row in full), max(row[n].right for row in full)) for n in range(width)]
    table = []
    for row in rows:
        cells = [""] * width
        for line in row:
            place = max(range(width), key=lambda n: _overlap(line, columns[n]))
            cells[place] = f"{cells[place]} {line.text}".strip()
        table.append(cells)
    return table


def _overlap(line: Line, column: tuple[float, float]) -> float:
    """Return the share of the column's width that the line covers. If it covers none, return the negative distance."""
    left, right = column
    return (min(line.right, right) - max(line.left, left)) / max(right - left, 1.0)


_HEADING_FROM = 1.14  # of the body's size
_LONGEST_HEADING = 200
_MARGIN = 0.12  # of the page's height
_NUMBER_MARGIN = 0.2
_REPEATED_FROM = 3  # pages
_PAGE_NUMBER = re.compile(
    r"(?:(?:page|p\.|seite|página|pagina|第)\s*)?[-–—|\s]*(?:\d{1,4}|[ivxlc]{1,6})"
    r"(?:\s*(?:/|of|von|de|sur)\s*\d{1,4})?[-–—|\s]*页?",
    re.IGNORECASE,
)
_BULLET = re.compile(
    r"(?:[•●○■▪◦‣∙·–*-]|o(?=\s{1,3}[A-Z]))\s+|[•●○■▪◦‣∙·]\Z"
)  # some programs put it on a separate line
_SENTENCE_END = re.compile(r"[.!?:;…。！？：；][\"'”’)\]]*$")
_HYPHENATED = re.compile(r"[^\W\d_]+-[^\W\d_]+")
_ENDS_IN_HYPHEN = re.compile(r"([^\W\d_]+)-$")
_WORD = re.compile(r"[^\W\d_]+")
_CJK = r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]"
_BETWEEN_CJK = re.compile(f"(?<={_CJK})\n(?={_CJK})")


def pdf_blocks(pages: Sequence[Page]) -> list[Block]:
    """Return the blocks of all pages as one text. Paragraphs and tables are joined over page breaks."""
    writer = _PdfBlockWriter(pages)
    for page in pages:
        writer.page(page)
    writer.end_of_table()
    return writer.blocks


class _PdfBlockWriter:
    def __init__(self, pages: Sequence[Page]) -> None:
        self.blocks: list[Block] = []
        self.repeated = _repeated(pages)
        lines = [line for page in pages for line in _lines(page) if _repeat_key(line) not in self.repeated]
        weights = Counter[float]()
        for line in lines:
            weights[line.size] += len(line.text)
        self.body = weights.most_common(1)[0][0] if weights else 0.0
        sizes = sorted({line.size for line in lines if self._is_large(line)}, reverse=True)
        self.levels = {size: min(number, 6) for number, size in enumerate(sizes, start=1)}
        # "audio-" above "only" is two words if the text has "audio-only" anywhere else.
        self.hyphenated = {word.casefold() for line in lines for word in _HYPHENATED.findall(line.text)}
        self.rows: Table = []  # of the last table, which the next page may continue

    def page(self, page: Page) -> None:
        numbers = _page_numbers(page)
        items = [
            item
            for item in with_grids(page.items)
            if isinstance(item, list) or (item not in numbers and _repeat_key(item) not in self.repeated)
        ]
        for kind, group in groupby(items, key=self._kind_of):
            lines = []
            for item in group:
                if isinstance(item, list):
                    self._table(item)
                else:
                    lines.append(item)
            if lines:
                self._heading_or_text(kind[0], lines)

    def _is_large(self, line: Line) -> bool:
        return line.size >= self.body * _HEADING_FROM and sum(map(str.isalpha, line.text)) > 1

    def _kind_of(self, item: Line | Table) -> tuple[str, int, float]:
        if isinstance(item, list):
            return ("table", 0, 0.0)
        return ("heading", item.box, item.size) if self._is_large(item) else ("text", item.box, 0.0)

    def _heading_or_text(self, kind: str, lines: list[Line]) -> None:
        self.end_of_table()
        heading = self._joined([line.text for line in lines]) if kind == "heading" else ""
        if 0 < len(heading) <= _LONGEST_HEADING:
            self.blocks.append(Block(kind="heading", text=heading, level=self.levels[lines[0].size]))
            return
        parts: list[tuple[bool, list[str]]] = []  # (is item, its lines)
        for line in lines:
            bullet = _BULLET.match(line.text)
            if bullet or not parts:
                parts.append((bool(bullet), []))
            parts[-1][1].append(line.text[bullet.end() if bullet else 0 :])
        for is_item, texts in parts:
            self._put("list" if is_item else "text", self._joined(texts))

    def _put(self, kind: BlockKind, text: str) -> None:
        if not text:
            return
        last = self.blocks[-1] if self.blocks else None
        goes_on = last is not None and text[:1].islower() and not _SENTENCE_END.search(last.text)
        if last and last.kind in ("text", "list") and kind == "text" and goes_on:
            self.blocks[-1] = Block(kind=last.kind, text=self._joined([last.text, text], keep_lines=True))
        elif last and last.kind == kind == "list":
            self.blocks[-1] = Block(kind="list", text=f"{last.text}\n- {text}")
        else:
            self.blocks.append(Block(kind=kind, text=f"- {text}" if kind == "list" else text))

    def _table(self, table: Table) -> None:
        """Begin a table, or continue the one before the page break if this part has as many columns."""
        rows = without_empty([[one_line(self._joined(cell.split("\n"))) for cell in row] for row in table])
        if self.rows and rows and len(self.rows[0]) == len(rows[0]):
            headers = header_rows(self.rows)
            rows = rows[headers:] if rows[:headers] == self.rows[:headers] else rows
        else:
            self.end_of_table()
        self.rows += rows

    def end_of_table(self) -> None:
        self.blocks += table_blocks(self.rows)
        self.rows = []

    def _joined(self, texts: Sequence[str], keep_lines: bool = False) -> str:
        result = ""
        for text in texts:
            cut_word, rest = _ENDS_IN_HYPHEN.search(result), _WORD.match(text)
            if result.endswith("\u00ad"):
                result = result[:-1] + text
            elif cut_word and rest and rest[0][0].islower():
                whole = f"{cut_word[1]}-{rest[0]}".casefold()
                result = (result if whole in self.hyphenated else result[:-1]) + text
            else:
                result = f"{result}\n{text}" if result else text
        joined = _BETWEEN_CJK.sub("", readable(result))
        if keep_lines:  # of a list; only its last line continues
            head, _, tail = joined.rpartition("\n")
            return f"{head} {tail}" if head else tail
        return " ".join(joined.split())


def _lines(page: Page) -> Iterator[Line]:
    return (item for item in page.items if isinstance(item, Line))


def _repeat_key(line: Line) -> tuple[str, bool] | None:
    """Return a key that is equal for equal running heads or feet: the words without numbers, and the margin."""
    if line.bottom > _MARGIN and line.top < 1 - _MARGIN:
        return None
    return (re.sub(r"\d+", "#", line.text), line.top > 0.5)


def _repeated(pages: Sequence[Page]) -> set[tuple[str, bool] | None]:
    found = Counter(key for page in pages for key in {_repeat_key(line) for line in _lines(page)} if key)
    with_text = sum(bool(page.items) for page in pages)
    return {key for key, number in found.items() if number >= max(_REPEATED_FROM, with_text / 2)}


def _page_numbers(page: Page) -> set[Line]:
    """Return the highest and the lowest line, if they are page numbers near the edge."""
    lines = list(_lines(page))
    if len(lines) < 2:
        return set()
    edges = (min(lines, key=lambda line: line.top), max(lines, key=lambda line: line.bottom))
    return {
        line
        for line in edges
        if (line.bottom < _NUMBER_MARGIN or line.top > 1 - _NUMBER_MARGIN) and _PAGE_NUMBER.fullmatch(line.text)
    }
