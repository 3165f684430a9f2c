"""Spreadsheets: Excel (.xlsx, .xls) and OpenDocument (.ods); each sheet is a section.

Reads values as last computed, also hidden ones; no formulas, formats, comments or charts. A damaged file can make the
parser ask for too much memory, which ends the process: see `retrieval.reading`.
"""

import datetime
import io
from pathlib import Path

from python_calamine import CalamineSheet, CalamineWorkbook, PasswordError, SheetTypeEnum

from retrieval.documents.document import Block, Contents
from retrieval.errors import UnreadableDocument
from retrieval.parsing.containers import check_container, parsing
from retrieval.parsing.faq import faq_blocks
from retrieval.parsing.rows import table_blocks


def load_spreadsheet(data: bytes, path: Path) -> Contents:
    """Read a workbook. Raises UnreadableDocument for a damaged or encrypted one."""
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
        found, left_out = faq or (table_blocks(rows), [])
        blocks += found
        remarks += left_out if is_alone else [f"sheet {name}: {remark}" for remark in left_out]
        is_faq |= faq is not None
    return Contents(blocks=blocks, title="", is_faq=is_faq, remarks=remarks)


def _sheets(data: bytes, path: Path) -> list[tuple[str, list[list[str]]]]:
    with parsing(path):
        try:
            workbook = CalamineWorkbook.from_filelike(io.BytesIO(data))
            worksheets = {sheet.name for sheet in workbook.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet}
            return [
                (name, _rows(workbook.get_sheet_by_name(name))) for name in workbook.sheet_names if name in worksheets
            ]
        except PasswordError:
            raise UnreadableDocument(path, "encrypted: save it without a password") from None


def _rows(sheet: CalamineSheet) -> list[list[str]]:
    """All rows of the sheet; empty rows have no cells, because a sheet can claim a million of them."""
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
