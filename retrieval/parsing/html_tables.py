"""An HTML table as lines of text that can each be read alone: `header: value; header: value`, with spans filled in.

Not for tables that only arrange a page: the caller asks `is_data` first.
"""

from collections.abc import Callable

from bs4 import Tag

from retrieval.parsing.rows import row_line

_MAX_SPAN = 50  # a hostile page could ask for millions of cells
_PAGE_PARTS = frozenset(("table", "h1", "h2", "h3", "h4", "h5", "h6"))


def is_data(table: Tag) -> bool:
    """Whether the table holds data, and does not just arrange parts of a page."""
    waiting = list(table.contents)  # find() would go to the deepest element first, for every nested table
    while waiting:
        node = waiting.pop()
        if isinstance(node, Tag):
            if node.name in _PAGE_PARTS:
                return False
            waiting.extend(node.contents)
    return True


def table_lines(table: Tag, text_of: Callable[[Tag], str]) -> list[str]:
    """The caption, if any, then one line per row. text_of: gives a cell's text in one line."""
    caption = table.find("caption")
    lines = [text_of(caption)] if isinstance(caption, Tag) else []
    rows = [row for row in table.find_all("tr") if row.find(["td", "th"])]
    grid = _grid(rows, text_of)
    if len(rows) > 1 and (not rows[0].find("td") or (rows[0].parent and rows[0].parent.name == "thead")):
        lines += [_line(grid[0], values) for values in grid[1:]]
    elif grid and max(map(len, grid)) == 2:
        lines += [": ".join(filter(None, values)) for values in grid]
    else:
        lines += [_line([], values) for values in grid]
    return [line for line in lines if line]


def _grid(rows: list[Tag], text_of: Callable[[Tag], str]) -> list[list[str]]:
    """The cells' texts row by row, with those of spanning cells repeated in every place they cover."""
    places: list[dict[int, str]] = [{} for _ in rows]  # for each row, column: text
    for number, row in enumerate(rows):
        column = 0
        for cell in row.find_all(["td", "th"]):
            while column in places[number]:
                column += 1
            text, width = text_of(cell), _span(cell, "colspan")
            for covered in places[number : number + _span(cell, "rowspan")]:
                for offset in range(width):
                    covered.setdefault(column + offset, text)
    return [[place.get(column, "") for column in range(max(place) + 1)] for place in places]


def _span(cell: Tag, name: str) -> int:
    value = str(cell.get(name, "1"))
    return min(max(int(value), 1), _MAX_SPAN) if value.isascii() and value.isdigit() else 1


def _line(header: list[str], values: list[str]) -> str:
    is_heading = len(set(values)) == 1  # one cell across the whole row
    return values[0] if is_heading else row_line(header, values)
