"""Spreadsheets: each sheet is a section, each row a line. Values are read as they are displayed and as last computed.

Hidden sheets, rows and columns are not for customers. They are skipped and named in a remark, as are formulas whose
value was never stored. A merged cell counts in each place that it covers. Out of scope: comments, charts, pivot tables.
A damaged file can make a parser request too much memory, which ends the process (see `retrieval.reading`).
"""

import datetime
import io
import re
import warnings
import zipfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import openpyxl
import ssf
import xlrd
from openpyxl.cell.cell import ERROR_CODES

from retrieval.documents import Block, Contents
from retrieval.errors import UnreadableDocument
from retrieval.loaders.decoding import check_container, parsing
from retrieval.loaders.opendocument import open_document_sheets
from retrieval.loaders.records import faq_blocks
from retrieval.loaders.tables import Sheet, table_blocks


def load_spreadsheet(data: bytes, path: Path) -> Contents:
    suffix = path.suffix.lower()
    if suffix != ".xls":
        check_container(data, path)
    with parsing(path):
        match suffix:
            case ".xls":
                sheets = _old_workbook(data, path)
            case ".ods":
                sheets = open_document_sheets(data)
            case _:
                sheets = _workbook(data)
    remarks = [remark for sheet in sheets if sheet.is_hidden and sheet.cells for remark in sheet.remarks()]
    shown = [(sheet, rows) for sheet in sheets if not sheet.is_hidden and any(map(any, rows := sheet.rows()))]
    if suffix == ".xlsx" and (number := _formulas_without_value(data)):
        formulas = "1 formula has" if number == 1 else f"{number:,} formulas have"
        remarks.append(f"{formulas} no stored value: open and save the file in a spreadsheet program")
    blocks: list[Block] = []
    is_faq = False
    is_alone = len(shown) == 1
    for sheet, rows in shown:
        if not is_alone:
            blocks.append(Block(kind="heading", text=sheet.name, level=1))
        start = next(number for number, row in enumerate(rows) if any(row))
        faq = faq_blocks(rows[start], rows[start + 1 :], first=start + 2, level=1 if is_alone else 2)
        found, skipped = faq or (table_blocks(rows), [])
        blocks += found
        skipped = [*sheet.remarks(), *skipped]
        remarks += skipped if is_alone else [f"sheet {sheet.name}: {remark}" for remark in skipped]
        is_faq |= faq is not None
    return Contents(blocks=blocks, title="", is_faq=is_faq, remarks=remarks)


def _workbook(data: bytes) -> list[Sheet]:
    sheets = []
    for source in openpyxl.load_workbook(io.BytesIO(data), data_only=True).worksheets:
        # Only stored cells. Iterating the sheet would return all places up to the last cell, perhaps millions.
        cells = {(row - 1, column - 1): cell for (row, column), cell in source._cells.items()}
        sheet = Sheet(name=source.title, is_hidden=source.sheet_state != "visible")
        sheet.cells = _texts((place, cell.value, cell.number_format) for place, cell in cells.items())
        sheet.merged = [
            (r.min_row - 1, r.min_col - 1, r.max_row - 1, r.max_col - 1) for r in source.merged_cells.ranges
        ]
        sheet.hidden_rows = {number - 1 for number, row in source.row_dimensions.items() if row.hidden}
        for column in source.column_dimensions.values():  # each stands for a range of columns
            if column.hidden:
                sheet.hidden_columns.update(range(column.min - 1, column.max))
        sheets.append(sheet)
    return sheets


_NO_VALUE = re.compile(rb"<f\b[^>]*(?:/>|>[^<]*</f>)\s*(?:<v\s*/>|<v></v>)?\s*</c>")


def _formulas_without_value(data: bytes) -> int:
    archive = zipfile.ZipFile(io.BytesIO(data))  # checked before
    names = [name for name in archive.namelist() if name.startswith("xl/worksheets/")]
    return sum(len(_NO_VALUE.findall(archive.read(name))) for name in names)


def _old_workbook(data: bytes, path: Path) -> list[Sheet]:
    if not data.startswith(b"\xd0\xcf\x11\xe0"):  # xlrd would read it as a workbook from before 1995
        raise UnreadableDocument(path, "damaged, or not a .xls file")
    try:
        book = xlrd.open_workbook(file_contents=data, formatting_info=True, logfile=io.StringIO())
    except xlrd.XLRDError as error:
        if "encrypted" in str(error):
            raise UnreadableDocument(path, "encrypted: save it without a password") from None
        raise
    return [_old_sheet(book, source) for source in book.sheets()]


def _old_sheet(book: Any, source: Any) -> Sheet:  # xlrd has no types
    sheet = Sheet(name=source.name, is_hidden=source.visibility != 0)
    values = []
    for row in range(source.nrows):
        for column, cell in enumerate(source.row(row)):
            value = cell.value
            if cell.ctype == xlrd.XL_CELL_DATE:
                value = xlrd.xldate.xldate_as_datetime(value, book.datemode)
            elif cell.ctype == xlrd.XL_CELL_BOOLEAN:
                value = bool(value)
            elif cell.ctype == xlrd.XL_CELL_ERROR:
                value = None
            form = book.format_map.get(book.xf_list[cell.xf_index].format_key)
            values.append(((row, column), value, form.format_str if form else "General"))
    sheet.cells = _texts(values)
    sheet.merged = [(top, left, bottom - 1, right - 1) for top, bottom, left, right in source.merged_cells]
    sheet.hidden_rows = {number for number, row in source.rowinfo_map.items() if row.hidden}
    sheet.hidden_columns = {number for number, column in source.colinfo_map.items() if column.hidden}
    return sheet


def _texts(cells: Iterable[tuple[tuple[int, int], object, str]]) -> dict[tuple[int, int], str]:
    texts = ((place, displayed(value, number_format)) for place, value, number_format in cells)
    return {place: text for place, text in texts if text}


# Without locales: it does not support the installed version of babel.
_FORMATTER = ssf.SSF(locale_support=False)
_DAY_IN_NUMBERS = re.compile(r"[dmy/. -]+")  # 03/05/2026 is another day in another country
_NOT_SHOWN = re.compile(r"\[[^\]]*\]|;@|\\")  # a language, the format of texts, a mark before a literal character


def displayed(value: object, number_format: str) -> str:
    """Return a value as a spreadsheet program shows it. Dates that contain only numbers are written in ISO 8601."""
    if value is None or value in ERROR_CODES:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float) and number_format != "General":
        return _formatted(value, number_format) or _plain(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time | datetime.timedelta):
        days = _NOT_SHOWN.sub("", number_format.lower()).partition("h")[0].strip()
        is_numeric = days and "mmm" not in days and _DAY_IN_NUMBERS.fullmatch(days)
        return (not is_numeric and _formatted(value, number_format)) or _iso(value)
    return _plain(value)


@lru_cache(maxsize=10_000)  # a column repeats its values, and each takes a tenth of a millisecond
def _formatted(value: Any, number_format: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it warns of a damaged format, and then writes something
        try:
            return " ".join(str(_FORMATTER.format(number_format, value)).split())
        except Exception:  # as in `parsing`: a damaged format does not lose the value
            return ""


def _plain(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) and abs(value) < 1e15 else str(value)


def _iso(value: object) -> str:
    """Return a date or time without needless zeros. A duration is returned unchanged."""
    text = str(value)
    if isinstance(value, datetime.timedelta):
        return text
    text = text.partition(".")[0].removesuffix(" 00:00:00")
    return text.removesuffix(":00") if text.count(":") > 1 else text
