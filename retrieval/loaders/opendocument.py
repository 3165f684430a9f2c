"""OpenDocument: texts (.odt) and the sheets of spreadsheets (.ods), from the XML part `content.xml`.

The text of a cell is the text displayed when the spreadsheet was saved. Tracked deletions, comments, footnotes and
pictures are dropped. Source: OpenDocument 1.3, part 3 (OASIS, 2021).
"""

import io
import zipfile
from collections.abc import Iterator
from itertools import count, repeat
from pathlib import Path

from lxml import etree

from retrieval.documents import Block, Contents
from retrieval.loaders.decoding import check_container, parsing
from retrieval.loaders.tables import Sheet, one_line, table_blocks
from retrieval.text.terms import readable

_NAMES = {name: f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0" for name in ("office", "style", "table", "text")}
_MOST_CELLS = 2_000_000  # of a document; a hostile file could repeat one cell a billion times
_MOST_LEVELS = 6


def _tag(name: str) -> str:
    prefix, local = name.split(":")
    return f"{{{_NAMES[prefix]}}}{local}"


_HEADING, _PARAGRAPH, _LIST, _TABLE, _ROW = map(
    _tag, ("text:h", "text:p", "text:list", "table:table", "table:table-row")
)
_CELLS = (_tag("table:table-cell"), _tag("table:covered-table-cell"))
_DROPPED = frozenset(map(_tag, ("office:annotation", "text:note", "text:tracked-changes")))
_NOT_CONTENT = _DROPPED | frozenset(map(_tag, ("text:table-of-content", "text:alphabetical-index", "office:forms")))
_SPACES = {_tag("text:s"): " ", _tag("text:tab"): " ", _tag("text:line-break"): "\n"}


def _content(data: bytes) -> etree._Element:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    return etree.fromstring(zipfile.ZipFile(io.BytesIO(data)).read("content.xml"), parser)


def open_document_sheets(data: bytes) -> list[Sheet]:
    """Return the sheets. data: an archive that `check_container` accepts."""
    content = _content(data)
    hidden = {
        style.get(_tag("style:name"))
        for style in content.iter(_tag("style:style"))
        for properties in style.iter(_tag("style:table-properties"))
        if properties.get(_tag("table:display")) == "false"
    }
    body = content.find(f"{_tag('office:body')}/{_tag('office:spreadsheet')}")
    tables = [] if body is None else body.findall(_TABLE)
    return [_sheet(table, is_hidden=table.get(_tag("table:style-name")) in hidden) for table in tables]


def _sheet(table: etree._Element, *, is_hidden: bool = False) -> Sheet:
    sheet = Sheet(name=table.get(_tag("table:name"), ""), is_hidden=is_hidden)
    column = 0
    for element in table.iter(_tag("table:table-column")):
        number = _number(element, "table:number-columns-repeated")
        if _is_hidden(element):
            sheet.hidden_columns.update(range(column, column + min(number, _MOST_CELLS)))
        column += number
    row = 0
    for element in table.iter(_ROW):
        if next(element.iterancestors(_TABLE)) is not table:  # a table in a cell; its text belongs to the cell
            continue
        number = _number(element, "table:number-rows-repeated")
        cells = list(_cells(element))
        if any(text for _, text, *_ in cells):
            for repeated in range(row, row + number):
                _add(sheet, repeated, cells)
                if _is_hidden(element):
                    sheet.hidden_rows.add(repeated)
        row += number
    return sheet


def _cells(row: etree._Element) -> Iterator[tuple[range, str, int, int]]:
    """Yield (columns, text, rows it spans, columns it spans) for each cell."""
    column = 0
    for cell in row.iterchildren(*_CELLS):
        number = _number(cell, "table:number-columns-repeated")
        text = "" if cell.tag == _CELLS[1] else one_line(" ".join(_paragraphs(cell)))
        height, width = (_number(cell, f"table:number-{axis}-spanned") for axis in ("rows", "columns"))
        yield range(column, column + number), text, height, width
        column += number


def _add(sheet: Sheet, row: int, cells: list[tuple[range, str, int, int]]) -> None:
    for columns, text, height, width in cells:
        if not text:
            continue
        if len(sheet.cells) + len(columns) > _MOST_CELLS:
            raise MemoryError
        sheet.cells |= dict.fromkeys(((row, column) for column in columns), text)
        if (height, width) != (1, 1):
            sheet.merged.append((row, columns[0], row + height - 1, columns[0] + width - 1))


def _number(element: etree._Element, name: str) -> int:
    value = element.get(_tag(name), "1")
    return max(int(value), 1) if value.isascii() and value.isdecimal() and len(value) < 10 else 1


def _is_hidden(element: etree._Element) -> bool:
    return element.get(_tag("table:visibility")) in ("collapse", "filter")


def _paragraphs(element: etree._Element) -> Iterator[str]:
    """Yield the texts of the outermost paragraphs; a text box belongs to its paragraph."""
    for child in element:
        if child.tag in (_PARAGRAPH, _HEADING):
            yield _text(child)
        elif child.tag not in _DROPPED:
            yield from _paragraphs(child)


def _text(paragraph: etree._Element) -> str:
    text = readable("".join(_pieces(paragraph)))
    return "\n".join(filter(None, (" ".join(line.split()) for line in text.split("\n"))))


def _pieces(element: etree._Element) -> Iterator[str]:
    yield _SPACES.get(element.tag, "\n" if element.tag == _PARAGRAPH else "")
    yield element.text or ""
    for child in element:
        if child.tag not in _DROPPED:
            yield from _pieces(child)
        yield child.tail or ""


def load_open_document_text(data: bytes, path: Path) -> Contents:
    check_container(data, path)
    with parsing(path):
        content = _content(data)
        body = content.find(f"{_tag('office:body')}/{_tag('office:text')}")
        blocks = [] if body is None else _Text(content).blocks(body)
        return Contents(blocks=[block for block in blocks if block.text])


class _Text:
    def __init__(self, content: etree._Element) -> None:
        styles = content.iter(_tag("style:style"))
        self._parents = {style.get(_tag("style:name")): style.get(_tag("style:parent-style-name")) for style in styles}
        self._numbered = {  # names and levels of list styles
            (style.get(_tag("style:name")), level.get(_tag("text:level")))
            for style in content.iter(_tag("text:list-style"))
            for level in style.iter(_tag("text:list-level-style-number"))
        }

    def blocks(self, parent: etree._Element) -> Iterator[Block]:
        for element in parent:
            if element.tag == _HEADING:
                level = _number(element, "text:outline-level")
                yield Block(kind="heading", text=one_line(_text(element)), level=min(level, 6))
            elif element.tag == _PARAGRAPH:
                style = element.get(_tag("text:style-name"))
                if "Title" in (style, self._parents.get(style)):
                    yield Block(kind="heading", text=one_line(_text(element)), level=1)
                else:
                    yield Block(kind="text", text=_text(element))
            elif element.tag == _LIST and element.find(f".//{_HEADING}") is None:
                yield Block(kind="list", text="\n".join(self._lines(element)))
            elif element.tag == _TABLE:
                yield from table_blocks(_sheet(element).rows())
            elif element.tag not in _NOT_CONTENT:
                yield from self.blocks(element)

    def _lines(self, parent: etree._Element, level: int = 1, outer: str = "") -> Iterator[str]:
        """Yield the lines of a list. level: from 1. outer: name of the style of the list around it."""
        style = parent.get(_tag("text:style-name"), outer)
        indent = "  " * min(level - 1, _MOST_LEVELS)
        markers = map("{}. ".format, count(1)) if (style, str(level)) in self._numbered else repeat("- ")
        for item in parent.iterchildren(_tag("text:list-item"), _tag("text:list-header")):
            texts = [one_line(_text(child)) for child in item.iterchildren(_PARAGRAPH)]
            if any(texts):
                yield indent + next(markers) + " ".join(filter(None, texts))
            for inner in item.iterchildren(_LIST):
                yield from self._lines(inner, level + 1, style)
