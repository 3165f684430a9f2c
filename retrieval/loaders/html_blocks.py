"""Turns a parsed HTML tree into blocks, for all formats that are converted to HTML.

The caller chooses the root and the elements to skip. Links keep their text, images are dropped. Nesting may have any
depth, because the walk has its own stack. A table of data becomes lines of `header: value; header: value`, with
spanning cells repeated. Tables that only arrange a page are not data.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, repeat

from bs4 import Tag
from bs4.builder import HTMLTreeBuilder
from bs4.element import CData, NavigableString, PageElement

from retrieval.documents import Block, BlockKind
from retrieval.loaders.tables import one_line, read_table
from retrieval.text.terms import readable

_MAX_SPAN = 50  # a hostile page could declare millions of cells
_PAGE_PARTS = frozenset(("table", "h1", "h2", "h3", "h4", "h5", "h6"))


def is_data(table: Tag) -> bool:
    waiting = list(table.contents)  # find() would search to the deepest element, for every nested table
    while waiting:
        node = waiting.pop()
        if isinstance(node, Tag):
            if node.name in _PAGE_PARTS:
                return False
            waiting.extend(node.contents)
    return True


def table_lines(table: Tag, text_of: Callable[[Tag], str]) -> list[str]:
    """Return the captions, one line per row, and the notes. text_of: returns a cell's text in one line."""
    caption = table.find("caption")
    lines = [text_of(caption)] if isinstance(caption, Tag) else []
    rows = [row for row in table.find_all("tr") if row.find(["td", "th"])]
    grid = table_grid(rows, text_of)
    marked = [not row.find("td") or (row.parent is not None and row.parent.name == "thead") for row in rows]
    headers = marked.index(False) if False in marked else 0
    read = read_table(grid, headers, are_pairs=True)
    lines += [*read.captions, *read.lines, *read.notes]
    return [line for line in lines if line]


def table_grid(rows: list[Tag], text_of: Callable[[Tag], str]) -> list[list[str]]:
    """Return the cells' texts row by row. The text of a spanning cell is repeated in every place it covers."""
    places: list[dict[int, str]] = [{} for _ in rows]  # for each row, column: text
    for number, row in enumerate(rows):
        column = 0
        for cell in row.find_all(["td", "th"]):
            while column in places[number]:
                column += 1
            width, height = (min(max(_number(cell, name), 1), _MAX_SPAN) for name in ("colspan", "rowspan"))
            text = text_of(cell)
            for covered in places[number : number + height]:
                for offset in range(width):
                    covered.setdefault(column + offset, text)
    return [[place.get(column, "") for column in range(max(place) + 1)] for place in places]


def _number(tag: Tag, name: str) -> int:
    value = str(tag.get(name))
    return int(value) if re.fullmatch("[0-9]{1,1000}", value) else 1  # int() refuses thousands of digits


HEADINGS = {"h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6}
_NEVER_TEXT = frozenset(
    "audio canvas head iframe noscript object script select style svg template textarea title video".split()  # noqa: SIM905
)
_PARAGRAPH_BREAKS = HTMLTreeBuilder.DEFAULT_BLOCK_ELEMENTS | frozenset(
    ("body", "caption", "center", "details", "legend", "summary", "tbody", "td", "th", "thead", "tr")
)
_MAX_INDENT = 6  # list levels; deeper lists appear at this level


def blocks_of(root: Tag, leave_out: Callable[[Tag], bool] = lambda tag: False) -> tuple[Block, ...]:
    """Return the blocks below `root` in reading order, without the elements for which `leave_out` is true."""
    writer = _HtmlBlockWriter()
    waiting: list[tuple[PageElement, bool]] = [(child, True) for child in reversed(root.contents)]
    while waiting:
        node, entering = waiting.pop()
        if not isinstance(node, Tag):
            if type(node) in (NavigableString, CData):  # not comments, declarations, instructions
                writer.text(str(node))
        elif not entering:
            writer.leave(node)
        elif node.name in _NEVER_TEXT or (not writer.headings and _is_control(node)) or leave_out(node):
            pass
        else:
            writer.enter(node)
            waiting.append((node, False))
            if not (node.name == "table" and is_data(node)):
                waiting.extend((child, True) for child in reversed(node.contents))
    writer.end_of_paragraph()
    writer.end_of_list()
    return tuple(writer.blocks)


def _is_control(tag: Tag) -> bool:
    """Return whether a tag is a button like "Menu". A button is not a control if it is the title of a part it opens."""
    if tag.name != "button":
        return False
    is_opener = bool(tag.get("aria-controls") or tag.get("aria-expanded") or tag.get("data-target"))
    text = one_line(tag.get_text(" "))
    return not text.endswith(("?", "？")) and not (is_opener and len(text) >= _SHORTEST_TITLE)


_SHORTEST_TITLE = 16  # characters


@dataclass(slots=True)
class _List:
    markers: Iterator[str]  # of the items
    depth: int  # 0 for an outermost list
    is_layout: bool = False  # it contains whole sections: no markers, the contents are ordinary blocks


@dataclass(slots=True)
class _Item:
    marker: str
    text: str = ""


@dataclass(slots=True)
class _HtmlBlockWriter:
    blocks: list[Block] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)  # text of the current paragraph
    lists: list[_List] = field(default_factory=list)  # open lists, outermost first
    items: list[_Item] = field(default_factory=list)  # lines of the current list
    headings: int = 0  # open heading or summary elements
    preformatted: int = 0

    def text(self, text: str) -> None:
        text = readable(text)
        self.pieces.append(text if self.preformatted else re.sub(r"\s+", " ", text))

    def enter(self, tag: Tag) -> None:
        if tag.name == "br":
            self.pieces.append("\n")
        if tag.name == "button" and not self.headings:
            self.end_of_paragraph()
        if tag.name not in _PARAGRAPH_BREAKS:
            return
        self.end_of_paragraph()
        if tag.name in HEADINGS:
            self.end_of_list()
            for open_list in self.lists:
                open_list.is_layout = True
        if tag.name in HEADINGS or tag.name == "summary":
            self.headings += 1
        elif tag.name == "pre":
            self.preformatted += 1
        elif tag.name in ("ul", "ol", "dl"):
            depth = self.lists[-1].depth + 1 if self._in_list() else 0
            self.lists.append(
                _List(map("{}. ".format, count(_number(tag, "start"))) if tag.name == "ol" else repeat("- "), depth)
            )
        elif tag.name in ("li", "dt") and self.lists:
            marker = next(self.lists[-1].markers)
            if self._in_list():
                self._add_item(self.lists[-1].depth, marker)
        elif tag.name == "table" and is_data(tag):
            self._put("table", "\n".join(table_lines(tag, _one_line)))

    def leave(self, tag: Tag) -> None:
        if tag.name == "button" and not self.headings:
            self.end_of_paragraph()
        if tag.name not in _PARAGRAPH_BREAKS:
            return
        if tag.name in HEADINGS:
            self.headings -= 1
            self.end_of_paragraph("heading", HEADINGS[tag.name])
        elif tag.name == "pre":
            self.end_of_paragraph("code")
            self.preformatted -= 1
        elif tag.name == "dt":
            self.end_of_paragraph(ending=":")
        else:
            self.end_of_paragraph()
            if tag.name == "summary":
                self.headings -= 1
            elif tag.name in ("ul", "ol", "dl"):
                self.lists.pop()
                if self._in_list():  # the following text belongs to the outer item
                    self._add_item(self.lists[-1].depth + 1)
                else:
                    self.end_of_list()

    def end_of_paragraph(self, kind: BlockKind = "text", level: int = 0, ending: str = "") -> None:
        text = "".join(self.pieces)
        self.pieces.clear()
        if self.preformatted:
            text = "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")
        else:
            text = re.sub(r"\s*\n\s*", "\n", re.sub(r" +", " ", text)).strip()
        if level:
            text = text.replace("\n", " ")
        if ending and text and not text.endswith(ending):
            text += ending
        if text.strip():
            self._put(kind, text, level)

    def end_of_list(self) -> None:
        lines = [item.marker + item.text for item in self.items if item.text]
        self.items.clear()
        if lines:
            self.blocks.append(Block(kind="list", text="\n".join(lines)))

    def _in_list(self) -> bool:
        return bool(self.lists) and not self.lists[-1].is_layout

    def _add_item(self, depth: int, marker: str = "") -> None:
        self.items.append(_Item("  " * min(depth, _MAX_INDENT) + marker))

    def _put(self, kind: BlockKind, text: str, level: int = 0) -> None:
        if not text:
            return
        if kind == "heading" or not self._in_list():
            self.blocks.append(Block(kind=kind, text=text, level=level))
        elif self.items and self.items[-1].text:
            self.items[-1].text += ("\n" if kind in ("code", "table") else " ") + text
        else:
            self.items = self.items or [_Item("")]
            self.items[-1].text = text


def _one_line(cell: Tag) -> str:
    lines = [line.strip() for block in blocks_of(cell) for line in block.text.split("\n")]
    return ", ".join(line.removeprefix("- ") for line in lines)
