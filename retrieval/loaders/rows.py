"""Rows of cells as text, for the tables of all formats.

Each row becomes a line that can be read alone: `header: value; header: value`. Loaders find the cells, and the header
if the format marks it. In a table of questions and answers, each pair becomes a section with the question as heading.
Such tables are recognised by the usual column names in several languages.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from retrieval.documents.document import Block
from retrieval.text.terms import readable

_NUMBER = re.compile(r"[-+(]?[^\w\s]?\s?\d[\d.,:/%\s-]*\W*")
_LONGEST_NAME = 60  # characters; a longer cell in the first row is data
_SENTENCE_END = (".", "?", "!", "。", "？", "！")


def row_line(header: Sequence[str], values: Sequence[str]) -> str:
    """Return the line of one row. A value without a name is written alone, empty values are skipped."""
    names = [*header, *[""] * (len(values) - len(header))]
    cells = zip(names, values, strict=False)
    return "; ".join(f"{name}: {value}" if name else value for name, value in cells if value)


def table_blocks(rows: Iterable[Sequence[str]]) -> list[Block]:
    """Return the blocks of a table whose format does not mark the header.

    A single cell in a row above the header is a caption. The first row is the header if its cells look like names.
    """
    captions, table = parted([[one_line(cell) for cell in row] for row in rows])
    blocks = [Block(kind="text", text=caption) for caption in captions]
    lines = row_lines(table)
    return [*blocks, Block(kind="table", text="\n".join(lines))] if lines else blocks


def row_lines(table: Sequence[Sequence[str]]) -> list[str]:
    header: Sequence[str] = table[0] if len(table) > 1 and is_header(table[0]) else ()
    return [row_line(header, row) for row in (table[1:] if header else table)]


def parted(rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the captions above the table, and the table without empty rows and columns."""
    table = without_empty(rows)
    captions = 0
    while captions < len(table) - 1 and len(table[0]) > 1 and sum(map(bool, table[captions])) == 1:
        captions += 1
    if captions == len(table) - 1:  # only such rows: a list, not captions
        captions = 0
    return ["".join(row) for row in table[:captions]], without_empty(table[captions:])


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


def one_line(cell: str) -> str:
    return " ".join(readable(cell).split())


_QUESTION = frozenset(
    "question questions q query faq frage fragen pregunta domanda pergunta 问题 標準問 标准问 問題 质问 質問".split()  # noqa: SIM905
)
_ANSWER = frozenset(
    "answer answers a response reply antwort antworten respuesta réponse risposta resposta 答案 回答 答复 答え".split()  # noqa: SIM905
)
_CATEGORY = frozenset(("category", "topic", "section", "kategorie", "分类", "类别", "分類", "カテゴリ"))
_NAMED_ROWS = 10  # maximum row numbers in a remark


def faq_blocks(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, first: int = 2, level: int = 1, row_name: str = "row"
) -> tuple[list[Block], list[str]] | None:
    """Return (blocks, remarks), or None if the header names no question and answer.

    first: number of the first of `rows`, for the remarks. level: of the headings. row_name: for the remarks.
    """
    names = [unicodedata.normalize("NFKC", name).strip(" \t\n:*").casefold() for name in header]
    question_at, answer_at, category_at = (
        next((place for place, name in enumerate(names) if name in known), None)
        for known in (_QUESTION, _ANSWER, _CATEGORY)
    )
    if question_at is None or answer_at is None:
        return None
    others = [place for place in range(len(header)) if place not in (question_at, answer_at, category_at)]
    blocks: list[Block] = []
    skipped: list[int] = []
    open_category = ""
    for number, row in enumerate(rows, first):
        cells = [*row, *[""] * (len(header) - len(row))]
        question, answer = one_line(cells[question_at]), readable(cells[answer_at]).strip()
        if not question or not answer:
            if any(cells):
                skipped.append(number)
            continue
        category = "" if category_at is None else one_line(cells[category_at])
        if category and category != open_category:
            blocks.append(Block(kind="heading", text=category, level=level))
        open_category = category
        details = [row_line([one_line(header[place])], [one_line(cells[place])]) for place in others]
        blocks.append(Block(kind="heading", text=question, level=level + 1 if category else level))
        blocks.append(Block(kind="text", text="\n".join([answer, *filter(None, details)])))
    return blocks, _remarks(skipped, row_name)


def _remarks(skipped: list[int], row_name: str) -> list[str]:
    if len(skipped) == 1:
        return [f"{row_name} {skipped[0]} skipped: no question or no answer"]
    numbers = ", ".join(map(str, skipped[:_NAMED_ROWS])) + (", …" if len(skipped) > _NAMED_ROWS else "")
    return [f"{len(skipped)} {row_name}s skipped, without question or answer: {numbers}"] if skipped else []
