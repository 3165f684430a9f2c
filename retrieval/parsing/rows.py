"""Rows of cells as lines of text that can each be read alone: `header: value; header: value`.

For the tables of all formats. The loaders find the cells, and the header where the format marks it.
"""

import re
from collections.abc import Iterable, Sequence

from retrieval.documents.document import Block
from retrieval.text.characters import readable

_NUMBER = re.compile(r"[-+(]?[^\w\s]?\s?\d[\d.,:/%\s-]*\W*")
_LONGEST_NAME = 60  # characters; a longer cell of the first row is data
_SENTENCE_END = (".", "?", "!", "。", "？", "！")


def row_line(header: Sequence[str], values: Sequence[str]) -> str:
    """One row. A value without a name is written alone; empty values are left out."""
    names = [*header, *[""] * (len(values) - len(header))]
    cells = zip(names, values, strict=False)
    return "; ".join(f"{name}: {value}" if name else value for name, value in cells if value)


def table_blocks(rows: Iterable[Sequence[str]]) -> list[Block]:
    """The blocks of a table whose format does not say which row is the header.

    A cell alone in its row above the header is a caption. The first row is the header if it looks like names.
    """
    captions, table = parted([[one_line(cell) for cell in row] for row in rows])
    blocks = [Block(kind="text", text=caption) for caption in captions]
    lines = row_lines(table)
    return [*blocks, Block(kind="table", text="\n".join(lines))] if lines else blocks


def row_lines(table: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table that has no empty rows or columns."""
    header: Sequence[str] = table[0] if len(table) > 1 and is_header(table[0]) else ()
    return [row_line(header, row) for row in (table[1:] if header else table)]


def parted(rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """(captions above the table, the table), without empty rows and columns."""
    table = without_empty(rows)
    captions = 0
    while captions < len(table) - 1 and len(table[0]) > 1 and sum(map(bool, table[captions])) == 1:
        captions += 1
    if captions == len(table) - 1:  # nothing but such rows: a list, not captions
        captions = 0
    return ["".join(row) for row in table[:captions]], without_empty(table[captions:])


def without_empty(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows, equally long, without empty rows and columns."""
    width = max(map(len, rows), default=0)
    full = [[*row, *[""] * (width - len(row))] for row in rows if any(row)]
    used = [column for column in range(width) if any(row[column] for row in full)]
    return [[row[column] for column in used] for row in full]


def is_header(row: Sequence[str]) -> bool:
    """Whether a first row looks like column names: most cells are short texts, neither numbers nor sentences."""
    names = [
        cell
        for cell in row
        if cell and len(cell) <= _LONGEST_NAME and not _NUMBER.fullmatch(cell) and not cell.endswith(_SENTENCE_END)
    ]
    return 2 * len(names) > len(row)


def one_line(cell: str) -> str:
    """A cell's text without line breaks."""
    return " ".join(readable(cell).split())
