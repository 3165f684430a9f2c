"""Turns the lines of a PDF into headings, paragraphs, lists and tables, without running heads, feet and page numbers.

A PDF says where letters are, not what they mean, so only clear cases are taken: a heading is larger than the body, a
list item begins with a bullet.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from retrieval.documents.document import Block, BlockKind
from retrieval.parsing.rows import is_header, one_line, row_line, row_lines, without_empty
from retrieval.pdf.grids import with_grids
from retrieval.pdf.pages import Line, Page, Table
from retrieval.text.characters import readable

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
_BULLET = re.compile(r"(?:[•●○■▪◦‣∙·–*-]|o(?=\s{1,3}[A-Z]))\s+|[•●○■▪◦‣∙·]\Z")  # some programs place it on its own
_SENTENCE_END = re.compile(r"[.!?:;…。！？：；][\"'”’)\]]*$")
_HYPHENATED = re.compile(r"[^\W\d_]+-[^\W\d_]+")
_ENDS_IN_HYPHEN = re.compile(r"([^\W\d_]+)-$")
_WORD = re.compile(r"[^\W\d_]+")
_CJK = r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]"
_BETWEEN_CJK = re.compile(f"(?<={_CJK})\n(?={_CJK})")


def pdf_blocks(pages: Sequence[Page]) -> list[Block]:
    """The blocks of all pages as one text: paragraphs and tables are joined over page breaks."""
    writer = _PdfBlockWriter(pages)
    for page in pages:
        writer.page(page)
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
        self.header: Sequence[str] = ()  # of the last table

    def page(self, page: Page) -> None:
        numbers = _page_numbers(page)
        items = [
            item
            for item in with_grids(page.items)
            if isinstance(item, Table) or (item not in numbers and _repeat_key(item) not in self.repeated)
        ]
        for kind, group in groupby(items, key=self._kind_of):
            lines = []
            for item in group:
                if isinstance(item, Table):
                    self._table(item)
                else:
                    lines.append(item)
            if lines:
                self._heading_or_text(kind[0], lines)

    def _is_large(self, line: Line) -> bool:
        return line.size >= self.body * _HEADING_FROM and sum(map(str.isalpha, line.text)) > 1

    def _kind_of(self, item: Line | Table) -> tuple[str, int, float]:
        if isinstance(item, Table):
            return ("table", 0, 0.0)
        return ("heading", item.box, item.size) if self._is_large(item) else ("text", item.box, 0.0)

    def _heading_or_text(self, kind: str, lines: list[Line]) -> None:
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
        rows = without_empty([[one_line(self._joined(cell.split("\n"))) for cell in row] for row in table.rows])
        if not rows:
            return
        follows_table = bool(self.blocks) and self.blocks[-1].kind == "table"
        if follows_table and len(rows[0]) == len(self.header) and rows[0] != self.header:  # after a page break
            lines = [row_line(self.header, row) for row in rows]
        else:
            lines = row_lines(rows)
            self.header = rows[0] if is_header(rows[0]) else ()
        self.blocks.append(Block(kind="table", text="\n".join(lines)))

    def _joined(self, texts: Sequence[str], keep_lines: bool = False) -> str:
        """Lines as running text; a word that was cut at the end of a line is put together again."""
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
        if keep_lines:  # of a list; only its last line goes on
            head, _, tail = joined.rpartition("\n")
            return f"{head} {tail}" if head else tail
        return " ".join(joined.split())


def _lines(page: Page) -> Iterator[Line]:
    return (item for item in page.items if isinstance(item, Line))


def _repeat_key(line: Line) -> tuple[str, bool] | None:
    """The same for two lines that are the same running head or foot: their words without numbers, and the margin."""
    if line.bottom > _MARGIN and line.top < 1 - _MARGIN:
        return None
    return (re.sub(r"\d+", "#", line.text), line.top > 0.5)


def _repeated(pages: Sequence[Page]) -> set[tuple[str, bool] | None]:
    """The keys of running heads and feet: on at least three pages, and on half of those with text."""
    found = Counter(key for page in pages for key in {_repeat_key(line) for line in _lines(page)} if key)
    with_text = sum(bool(page.items) for page in pages)
    return {key for key, number in found.items() if number >= max(_REPEATED_FROM, with_text / 2)}


def _page_numbers(page: Page) -> set[Line]:
    """The highest and the lowest line, if they are page numbers near the edge."""
    lines = list(_lines(page))
    if len(lines) < 2:
        return set()
    edges = (min(lines, key=lambda line: line.top), max(lines, key=lambda line: line.bottom))
    return {
        line
        for line in edges
        if (line.bottom < _NUMBER_MARGIN or line.top > 1 - _NUMBER_MARGIN) and _PAGE_NUMBER.fullmatch(line.text)
    }
