"""Tables without ruling lines in a PDF: short texts in rows and columns.

pdfminer reads such a table column by column, which separates a price from its product. Only clear cases count as a
table: three rows or more, short cells, few of them wrapped. Columns of prose have longer lines, and wrapped cells begin
in the middle of a sentence.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from retrieval.pdf.pages import Line, Table

_FEWEST_ROWS = 3
_LONGEST_CELL = 24  # characters, the median of all cells
_MOST_WRAPPED = 0.15  # of the cells
_LARGEST_GAP = 3.0  # between rows, in line heights


def with_grids(items: Sequence[Line | Table]) -> Iterator[Line | Table]:
    """The items of a page, with the lines that form a table replaced by the table, at the place of the first line."""
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
    """Lines at the same height, from left to right."""
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
    """Whether cells continue in the next row: then they begin with a small letter. In a column where all cells do, it
    says nothing.
    """
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
    return Table(table)


def _overlap(line: Line, column: tuple[float, float]) -> float:
    """The share of the column's width that the line covers; negative if it covers none: the distance."""
    left, right = column
    return (min(line.right, right) - max(line.left, left)) / max(right - left, 1.0)
