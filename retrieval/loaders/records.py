"""Tables and records: rows of cells as text, delimited text, spreadsheets, JSON.

**Rows** of all formats: each becomes a line that can be read alone, `header: value; header: value`. Loaders find the
cells, and the header if the format marks it. In a table of questions and answers, each pair becomes a section with the
question as heading. Such tables are recognised by the usual column names in several languages.

**Delimited text**: the delimiter is the one that splits the first rows into as many cells as the header has.
csv.Sniffer and clevercsv mistake commas inside answers for the delimiter. Every cell is text.

**Spreadsheets** (Excel and OpenDocument): each sheet is a section. Values are read as last computed, also hidden ones.
Out of scope: formulas, formats, comments, charts. A damaged file can make the parser request too much memory, which
ends the process (see `retrieval.reading`).

**JSON Lines and JSON lists** contain questions with answers, or texts. A text record has its text under one of a few
usual names, and sometimes a title. Other JSON is refused, because it is unknown which values are for readers.
"""

import contextlib
import csv
import datetime
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from python_calamine import CalamineSheet, CalamineWorkbook, PasswordError, SheetTypeEnum

from retrieval.documents import Block, Contents
from retrieval.errors import UnreadableDocument
from retrieval.loaders.decoding import check_container, decode, parsing
from retrieval.text.terms import readable

_NUMBER = re.compile(r"[-+(]?[^\w\s]?\s?\d[\d.,:/%\s-]*\W*")
_LONGEST_NAME = 60  # characters; a longer cell in the first row is data
_SENTENCE_END = (".", "?", "!", "。", "？", "！")


def row_line(header: Sequence[str], values: Sequence[str]) -> str:
    names = [*header, *[""] * (len(values) - len(header))]
    cells = zip(names, values, strict=False)
    return "; ".join(f"{name}: {value}" if name else value for name, value in cells if value)


def table_blocks(rows: Iterable[Sequence[str]]) -> list[Block]:
    """Return the blocks of a table whose format does not mark the header. A single cell in a row above the header is a
    caption. The first row is the header if its cells look like names.
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
    """Return (blocks, remarks), or None if the header names no question and answer. first: number of the first of
    `rows`, for the remarks. level: of the headings. row_name: for the remarks.
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


_DELIMITERS = ",;\t|^~¦\x1f"  # the more likely first
_PREFERRED = {".tsv": "\t", ".tab": "\t", ".psv": "|"}
_SAMPLE_ROWS = 200
_SAMPLE_CHARACTERS = 256 * 1024
_LARGEST_CELL = 2**20  # characters


def load_delimited(data: bytes, path: Path) -> Contents:
    rows = _delimited_rows(decode(data, path), path)
    faq = faq_blocks(rows[0], rows[1:]) if rows else None
    blocks, remarks = faq or (table_blocks(rows), [])
    return Contents(blocks=blocks, title="", is_faq=faq is not None, remarks=remarks)


def _delimited_rows(text: str, path: Path) -> list[list[str]]:
    csv.field_size_limit(_LARGEST_CELL)
    preferred = _PREFERRED.get(path.suffix.lower(), ",")
    candidates = preferred + _DELIMITERS.replace(preferred, "")
    sample = text[:_SAMPLE_CHARACTERS]
    delimiter = max(candidates, key=lambda delimiter: _evenness(sample, delimiter))  # the first of equal ones
    rows: list[list[str]] = []
    try:
        rows.extend(_reader(text, delimiter))
    except csv.Error as error:
        is_long = "limit" in str(error)
        reason = "has a cell over 1 MB (a quotation mark never closed?)" if is_long else f"cannot be read: {error}"
        raise UnreadableDocument(path, f"row {len(rows) + 1} {reason}") from None
    return rows


def _reader(text: str, delimiter: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter != "\t")


def _evenness(sample: str, delimiter: str) -> float:
    """Return the share of rows with as many cells as the header; 0 if the header has only one cell."""
    widths: list[int] = []
    with contextlib.suppress(csv.Error):  # the sample may end inside a cell; the whole text is read later
        widths.extend(len(row) for row in islice(filter(any, _reader(sample, delimiter)), _SAMPLE_ROWS))
    width = max(widths[:3], default=1)  # captions may be above the header
    return sum(other == width for other in widths) / len(widths) if width > 1 else 0.0


def load_spreadsheet(data: bytes, path: Path) -> Contents:
    if path.suffix.lower() != ".xls":
        check_container(data, path)
    sheets = [(name, rows) for name, rows in _sheets(data, path) if any(map(any, rows))]
    blocks: list[Block] = []
    remarks: list[str] = []
    is_faq = False
    is_alone = len(sheets) == 1
    for name, rows in sheets:
        if not is_alone:
            blocks.append(Block(kind="heading", text=name, level=1))
        start = next(number for number, row in enumerate(rows) if any(row))
        faq = faq_blocks(rows[start], rows[start + 1 :], first=start + 2, level=1 if is_alone else 2)
        found, skipped = faq or (table_blocks(rows), [])
        blocks += found
        remarks += skipped if is_alone else [f"sheet {name}: {remark}" for remark in skipped]
        is_faq |= faq is not None
    return Contents(blocks=blocks, title="", is_faq=is_faq, remarks=remarks)


def _sheets(data: bytes, path: Path) -> list[tuple[str, list[list[str]]]]:
    with parsing(path):
        try:
            workbook = CalamineWorkbook.from_filelike(io.BytesIO(data))
            worksheets = {sheet.name for sheet in workbook.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet}
            return [
                (name, _sheet_rows(workbook.get_sheet_by_name(name)))
                for name in workbook.sheet_names
                if name in worksheets
            ]
        except PasswordError:
            raise UnreadableDocument(path, "encrypted: save it without a password") from None


def _sheet_rows(sheet: CalamineSheet) -> list[list[str]]:
    """Return all rows of a sheet. Empty rows have no cells, because a sheet can claim a million of them."""
    return [[_text(cell) for cell in row] if any(cell != "" for cell in row) else [] for row in sheet.iter_rows()]


def _text(cell: object) -> str:
    match cell:
        case bool():
            return "yes" if cell else "no"
        case float() if cell.is_integer() and abs(cell) < 1e15:
            return str(int(cell))
        case datetime.datetime() if cell.time() == datetime.time():
            return cell.date().isoformat()
        case datetime.datetime():
            return cell.isoformat(sep=" ", timespec="seconds")
        case datetime.date() | datetime.time():
            return cell.isoformat()
        case _:
            return str(cell).strip()


_TEXT = ("text", "content", "body", "context")  # the more likely first
_WANTED = "question and answer, or text, content, body or context"


def load_json_lines(data: bytes, path: Path) -> Contents:
    records = []
    for number, line in enumerate(decode(data, path).split("\n"), start=1):
        if line.strip():
            record = _parsed(line, path, line=number)
            if not isinstance(record, dict):
                raise UnreadableDocument(path, f"line {number} is not a JSON object")
            records.append(record)
    return _contents(records, path)


def load_json(data: bytes, path: Path) -> Contents:
    text = decode(data, path)
    items = _parsed(text, path) if text.strip() else []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UnreadableDocument(path, f"not a list of objects with {_WANTED}")
    return _contents(items, path)


def _parsed(text: str, path: Path, line: int | None = None) -> object:
    """Parse a JSON value. line: its number, if the value is one line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UnreadableDocument(path, f"line {line or error.lineno} is not JSON: {error.msg.lower()}") from None
    except ValueError:  # a number of thousands of digits
        where = f"line {line} " if line else ""
        raise UnreadableDocument(path, f"{where}contains a number that is too long") from None


def _contents(records: Sequence[dict[str, object]], path: Path) -> Contents:
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = ([_plain(record.get(name)) for name in names] for record in records)  # only used for questions and answers
    faq = faq_blocks(names, rows, first=1, row_name="record")
    blocks, remarks = faq or _texts(records)
    if records and not faq and not blocks:
        raise UnreadableDocument(path, f"no record has {_WANTED}")
    return Contents(blocks=blocks, title="", is_faq=faq is not None, remarks=remarks)


def _texts(records: Sequence[dict[str, object]]) -> tuple[list[Block], list[str]]:
    blocks: list[Block] = []
    without_text = 0
    for record in records:
        fields = {name.casefold(): _plain(value) for name, value in record.items()}
        text = next((fields[name] for name in _TEXT if fields.get(name)), "")
        title = " ".join(fields.get("title", "").split())
        if not text:
            without_text += 1
            continue
        if title:
            blocks.append(Block(kind="heading", text=title, level=1))
        blocks.append(Block(kind="text", text=text))
    return blocks, [f"{without_text} of {len(records)} records skipped: no text"] if without_text else []


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(_plain(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return readable(str(value)).strip()
