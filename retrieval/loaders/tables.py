"""Turns each row of a table into a line that can be read alone: `header: value; header: value`.

A loader fills the places that a merged cell covers with its text, and gives the number of header rows if its format
marks them. Here the table is divided into captions, header rows, sections, rows and notes:

    caption     a row of one cell above the header
    header      one row, or several: "Opening hours" above "Weekdays" and "Saturday" gives "Opening hours, Saturday"
    section     a row of one cell between others: "Zone 2: European Union" begins every row below it
    note        a row of one cell below all others
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

from retrieval.documents import Block
from retrieval.text.terms import readable

_NUMBER = re.compile(r"[-+(]?[^\w\s]?\s?\d[\d.,:/%\s-]*\W*")
_UNIT = re.compile(r"[(\[].*[)\]]")
_LONGEST_NAME = 60  # characters; a longer cell in the first row is data
_LONGEST_SECTION = 80
_MOST_HEADER_ROWS = 3
_MOST_COVERED = 200_000  # places that merged cells of a sheet cover; a hostile file could name millions
_NAME_AND_VALUE = 2  # columns: one row of one cell may be a row whose value is missing
_SENTENCE_END = (".", "?", "!", "。", "？", "！")


class Table(NamedTuple):
    """The parts of a table as text."""

    captions: list[str]
    lines: list[str]  # one for each row
    notes: list[str]

    def blocks(self) -> list[Block]:
        lines = [Block(kind="table", text="\n".join(self.lines))] if self.lines else []
        captions, notes = ([Block(kind="text", text=text) for text in texts] for texts in (self.captions, self.notes))
        return [*captions, *lines, *notes]


Area: TypeAlias = tuple[int, int, int, int]
"""First row, first column, last row, last column."""


@dataclass(slots=True, kw_only=True)
class Sheet:
    """A sheet as it is in its file. Rows and columns are counted from 0."""

    name: str
    cells: dict[tuple[int, int], str] = field(default_factory=dict)  # not empty, by row and column
    merged: list[Area] = field(default_factory=list)
    hidden_rows: set[int] = field(default_factory=set)
    hidden_columns: set[int] = field(default_factory=set)
    is_hidden: bool = False

    def rows(self) -> list[list[str]]:
        """Return all rows. Empty and hidden rows have no cells, so that row numbers do not change."""
        last_row, last_column = (max((place[n] for place in self.cells), default=-1) for n in (0, 1))
        budget = _MOST_COVERED
        filled = dict(self.cells)
        for top, left, bottom, right in self.merged:
            width, height = min(right, last_column) - left + 1, min(bottom, last_row) - top + 1
            budget -= max(width, 0) * max(height, 0)
            if budget < 0 or (top, left) not in self.cells:
                continue
            places = product(range(top, top + height), range(left, left + width))
            filled |= dict.fromkeys(places, self.cells[top, left])
        rows: list[list[str]] = [[] for _ in range(last_row + 1)]
        for (row, column), text in sorted(filled.items()):
            if row not in self.hidden_rows and column not in self.hidden_columns:
                rows[row] += [""] * (column - len(rows[row])) + [text]
        return rows

    def remarks(self) -> list[str]:
        """Return remarks about hidden parts that are skipped although they have text."""
        if self.is_hidden:
            return [f"hidden sheet {self.name} skipped"]
        hidden = [
            (len(hidden & {place[axis] for place in self.cells}), name)
            for axis, hidden, name in ((0, self.hidden_rows, "row"), (1, self.hidden_columns, "column"))
        ]
        skipped = " and ".join(f"{number} hidden {name}{'s'[: number > 1]}" for number, name in hidden if number)
        return [f"{skipped} skipped"] if skipped else []


def one_line(cell: str) -> str:
    return " ".join(readable(cell).split())


def row_line(header: Sequence[str], values: Sequence[str]) -> str:
    names = [*header, *[""] * (len(values) - len(header))]
    cells = zip(names, values, strict=False)
    return "; ".join(f"{name}: {value}" if name else value for name, value in cells if value)


def table_blocks(rows: Iterable[Sequence[str]]) -> list[Block]:
    """Return the blocks of a table whose format does not mark the header."""
    return read_table([[one_line(cell) for cell in row] for row in rows]).blocks()


def read_table(rows: Sequence[Sequence[str]], headers: int | None = None, *, are_pairs: bool = False) -> Table:
    """Return the captions, lines and notes of a table of one-line cells. headers: number of header rows; None: judge by
    the cells. are_pairs: two columns without a header are names and values.
    """
    captions, body = parted(rows) if headers is None else ([], without_empty(rows))
    headers = header_rows(body) if headers is None else headers
    while headers and _single(body[0]):
        captions.append(_single(body.pop(0)))
        headers -= 1
    names, body = _names(body[:headers]), body[headers:]
    are_pairs &= not headers and bool(body) and len(body[0]) == _NAME_AND_VALUE
    # Rows of one cell are sections if the first row is one. Else they may be rows whose values are missing.
    singles = sum(map(bool, map(_single, body[:-1])))
    is_sectioned = singles > 0 and bool(_single(body[0])) and (singles > 1 or len(body[0]) > _NAME_AND_VALUE)
    end = len(body)
    while end > 1 and (text := _single(body[end - 1])) and (is_sectioned or all(body[end - 1]) or _is_note(text)):
        end -= 1
    lines: list[str] = []
    section = ""
    for row in body[:end]:
        text = _single(row) if is_sectioned or all(row) else ""
        if text and not _is_note(text) and not _NUMBER.fullmatch(text):
            section = text
        else:
            line = ": ".join(filter(None, row)) if are_pairs else row_line(names, row)
            lines.append(text if text and all(row) else "; ".join(filter(None, [section, line])))
    return Table(captions, lines, [_single(row) for row in body[end:]])


def _is_note(text: str) -> bool:
    return len(text) > _LONGEST_SECTION or text.endswith(_SENTENCE_END) or text.startswith(("*", "†", "¹", "注", "※"))


def _single(row: Sequence[str]) -> str:
    """Return the text of a row that is one cell across all columns, or whose first cell alone has text, else ""."""
    is_single = len(row) > 1 and len({cell for cell in row if cell}) == 1 and bool(row[0])
    return row[0] if is_single and (all(row) or not any(row[1:])) else ""


def _names(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the columns' names: the different texts of all header rows, from the top."""
    above: list[list[str]] = []
    for row in rows[:-1]:
        filled = list(row)
        for place in range(1, len(filled)):  # a name above several columns, without a merged cell
            filled[place] = filled[place] or (filled[place - 1] if rows[-1][place] else "")
        above.append(filled)
    return [
        ", ".join(dict.fromkeys(filter(None, column))).replace(", (", " (").replace(", [", " [")
        for column in zip(*above, *rows[-1:], strict=True)
    ]


def header_rows(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of header rows, judged by the cells. A second one has units, or names below a wide name."""
    if len(rows) < 2 or not is_header(rows[0]):
        return 0
    number = 1
    while number < min(len(rows) - 1, _MOST_HEADER_ROWS) and _continues(rows[number - 1], rows[number]):
        number += 1
    return number


def _continues(above: Sequence[str], row: Sequence[str]) -> bool:
    filled = [cell for cell in row if cell]
    if not filled or _single(row) or any(_NUMBER.fullmatch(cell) or cell.endswith(_SENTENCE_END) for cell in filled):
        return False
    if all(_UNIT.fullmatch(cell) for cell in filled):
        return True
    wide = {n for n, (left, right) in enumerate(pairwise(above)) if left and right in (left, "") and row[n + 1]}
    below = wide | {n + 1 for n in wide}
    others = [place for place in range(len(row)) if place not in below]
    are_names = bool(wide) and len({row[place] for place in below}) > 1 and max(map(len, filled)) <= _LONGEST_NAME
    return are_names and all(row[place] in ("", above[place]) for place in others)


def parted(rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the captions above the table, and the table without empty rows and columns."""
    table = without_empty(rows)
    captions = 0
    while captions < len(table) - 1 and len(table[0]) > 1 and len({cell for cell in table[captions] if cell}) == 1:
        captions += 1
    if captions == len(table) - 1:  # only such rows: a list, not captions
        captions = 0
    return [next(filter(None, row)) for row in table[:captions]], without_empty(table[captions:])


def without_empty(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    width = max(map(len, rows), default=0)
    full = [[*row, *[""] * (width - len(row))] for row in rows if any(row)]
    used = [column for column in range(width) if any(row[column] for row in full)]
    return [[row[column] for column in used] for row in full]


def is_header(row: Sequence[str]) -> bool:
    """Return whether a first row looks like column names: most cells are short texts, neither numbers nor sentences."""
    names = [
        cell
        for cell in row
        if cell and len(cell) <= _LONGEST_NAME and not _NUMBER.fullmatch(cell) and not cell.endswith(_SENTENCE_END)
    ]
    return 2 * len(names) > len(row)
