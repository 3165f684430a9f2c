"""Turns pages into blocks. A page has tables and lines with positions. Used for PDF files and scanned pages.

Tables without ruling lines are found by their form: at least three rows of short cells, few of them wrapped. pdfminer
reads such a table column by column, which separates a price from its product. Columns of prose have longer lines, and
wrapped cells start in the middle of a sentence.

Lines are not marked as headings or list items, so only clear cases are recognised: a heading is larger than the body, a
list item starts with a bullet. Running heads, feet and page numbers are dropped.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median
from typing import TypeAlias

from retrieval.documents import Block, BlockKind
from retrieval.loaders.tables import header_rows, one_line, table_blocks, without_empty
from retrieval.text.terms import readable


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
    """A page. has_drawing: it contains text, a scan or a picture."""

    number: int
    items: tuple[Line | Table, ...]
    has_drawing: bool
    is_damaged: bool = False


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
    """Return whether many cells start with a small letter, as in wrapped text. Columns where all do so are ignored."""
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


def blocks_of_pages(pages: Sequence[Page]) -> list[Block]:
    """Return the blocks of all pages as one text. Paragraphs and tables are joined over page breaks."""
    writer = _PageBlockWriter(pages)
    for page in pages:
        writer.page(page)
    writer.end_of_table()
    return writer.blocks


class _PageBlockWriter:
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
