"""Small documents of every binary format, made in memory, for the tests that read them."""

import io
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
import pytest
import xlwt
from pypdf import PdfReader, PdfWriter
from reportlab.pdfgen.canvas import Canvas

from retrieval.documents import Document
from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import load

Cells = Sequence[Sequence[Any]]


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def reason(path: Path, **options: int) -> str:
    """Why a file cannot be read, in one line."""
    with pytest.raises(UnreadableDocument) as caught:
        load(path, **options)
    assert caught.value.path == path
    assert "\n" not in str(caught.value)
    return caught.value.reason


def shown(document: Document) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in document.blocks]


def saved(thing: Any) -> bytes:
    """What a library's `save` writes."""
    buffer = io.BytesIO()
    thing.save(buffer)
    return buffer.getvalue()


def word(*, heading: str = "Returns", table: Cells = ()) -> bytes:
    document = docx.Document()
    document.add_heading(heading, level=1)
    document.add_paragraph("You have 30 days.")
    document.add_paragraph("Keep the box", style="List Bullet")
    document.add_paragraph("Keep the bill", style="List Bullet")
    if table:
        made = document.add_table(rows=len(table), cols=len(table[0]))
        for row, values in zip(made.rows, table, strict=True):
            for cell, value in zip(row.cells, values, strict=True):
                cell.text = value
    return saved(document)


def workbook(**sheets: Cells) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    return saved(book)


def old_workbook(rows: Cells) -> bytes:
    book = xlwt.Workbook()
    sheet = book.add_sheet("Sheet1")
    for number, row in enumerate(rows):
        for column, value in enumerate(row):
            sheet.write(number, column, value)
    return saved(book)


def open_document_sheet(rows: Cells) -> bytes:
    cells = "".join(
        "<table:table-row>"
        + "".join(f"<table:table-cell office:value-type='string'><text:p>{v}</text:p></table:table-cell>" for v in row)
        + "</table:table-row>"
        for row in rows
    )
    space = "urn:oasis:names:tc:opendocument:xmlns:"
    content = (
        f"<office:document-content xmlns:office='{space}office:1.0' xmlns:table='{space}table:1.0' "
        f"xmlns:text='{space}text:1.0'><office:body><office:spreadsheet><table:table table:name='One'>"
        f"{cells}</table:table></office:spreadsheet></office:body></office:document-content>"
    )
    manifest = f"<manifest:manifest xmlns:manifest='{space}manifest:1.0'/>"
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    return zipped({"mimetype": kind, "content.xml": content, "META-INF/manifest.xml": manifest})


def open_document_text(body: str, styles: str = "") -> bytes:
    space = "urn:oasis:names:tc:opendocument:xmlns:"
    names = " ".join(f"xmlns:{name}='{space}{name}:1.0'" for name in ("office", "style", "table", "text"))
    content = (
        f"<office:document-content {names}><office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:text>{body}</office:text></office:body></office:document-content>"
    )
    return zipped({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": content})


def book(*chapters: str, title: str = "Manual") -> bytes:
    """An EPUB whose spine has the chapters in reverse order of the manifest."""
    items = "".join(f"<item id='c{n}' href='text%20{n}.xhtml' media-type='application/xhtml+xml'/>" for n in range(9))
    spine = "".join(f"<itemref idref='c{number}'/>" for number in reversed(range(len(chapters))))
    package = (
        "<package xmlns='http://www.idpf.org/2007/opf'><metadata xmlns:dc='http://purl.org/dc/elements/1.1/'>"
        f"<dc:title>{title}</dc:title></metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    container = "<container><rootfiles><rootfile full-path='OEBPS/package.opf'/></rootfiles></container>"
    pages = {f"OEBPS/text {n}.xhtml": f"<html><body>{chapter}</body></html>" for n, chapter in enumerate(chapters)}
    return zipped({"META-INF/container.xml": container, "OEBPS/package.opf": package, **pages})


def slides(*pages: tuple[str, Sequence[str], str]) -> bytes:
    """Of each slide: title, lines, notes."""
    deck = pptx.Presentation()
    for title, lines, notes in pages:
        slide = deck.slides.add_slide(deck.slide_layouts[1 if title else 6])
        if title:
            slide.shapes.title.text = title
            slide.placeholders[1].text_frame.text = "\n".join(lines)
        if notes:
            slide.notes_slide.notes_text_frame.text = notes
    return saved(deck)


def pdf(*pages: Iterable[tuple[float, float, int, str]], title: str = "") -> bytes:
    """Of each page: lines as (x, y from below, size, text)."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=(595, 842))
    canvas.setTitle(title)
    for page in pages:
        for x, y, size, text in page:
            canvas.setFont("Helvetica", size)
            canvas.drawString(x, y, text)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def scanned_pdf(*, pages: int = 1) -> bytes:
    """Pages on which something is drawn, but no text."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer)
    for _ in range(pages):
        canvas.rect(50, 50, 400, 600, fill=1)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def joined_pdf(*files: bytes, password: str = "") -> bytes:
    writer = PdfWriter()
    for file in files:
        writer.append(PdfReader(io.BytesIO(file)))
    if password:
        writer.encrypt(password, algorithm="AES-256")
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def zipped(parts: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def with_parts(data: bytes, parts: dict[str, str | bytes]) -> bytes:
    """The archive with some parts replaced or added."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        all_parts: dict[str, str | bytes] = {name: archive.read(name) for name in archive.namelist()}
    return zipped({**all_parts, **parts})
