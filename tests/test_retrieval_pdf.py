"""PDF: text in reading order, headings, tables, and what is said of pages without text."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from made_files import joined_pdf, pdf, put, reason, scanned_pdf, shown
from PIL import Image, ImageDraw, ImageFont
from reportlab.lib.pagesizes import A4
from reportlab.platypus import SimpleDocTemplate, Table, TableStyle

import retrieval.loaders.pdf
from retrieval.documents import Document
from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import load

OCR = 'install "warmdesk[ocr]" or run OCR first (for example ocrmypdf)'


def read(tmp_path: Path, data: bytes) -> Document:
    return load(put(tmp_path / "a.pdf", data))


def reason_of(tmp_path: Path, data: bytes) -> str:
    return reason(put(tmp_path / "a.pdf", data))


def column(x: float, y: float, lines: Iterable[str], size: int = 10) -> list[tuple[float, float, int, str]]:
    return [(x, y - number * (size + 2), size, line) for number, line in enumerate(lines)]


def test_headings_lists_and_paragraphs(tmp_path):
    page = [
        *column(60, 780, ["Returns and refunds"], 20),
        *column(60, 740, ["You may return every article within 30 days of", "delivery. Refunds take five days."]),
        *column(60, 690, ["How to send it"], 15),
        *column(60, 665, ["• Pack the article", "and close the box", "• Print the label"]),
    ]
    document = read(tmp_path, pdf(page))
    assert document.title == "Returns and refunds"
    assert shown(document) == [
        ("heading", "Returns and refunds"),
        ("text", "You may return every article within 30 days of delivery. Refunds take five days."),
        ("heading", "How to send it"),
        ("list", "- Pack the article and close the box\n- Print the label"),
    ]
    assert [block.level for block in document.blocks if block.kind == "heading"] == [1, 2]


def test_columns_are_read_one_after_the_other(tmp_path):
    left = [f"left line {number} with enough words to fill it" for number in range(12)]
    right = [f"right line {number} with enough words to fill it" for number in range(12)]
    pairs = zip(
        [*column(50, 700, left[:5]), *column(50, 600, left[5:])],
        [*column(320, 700, right[:8]), *column(320, 570, right[8:])],
        strict=True,
    )
    text = " ".join(block.text for block in read(tmp_path, pdf([entry for pair in pairs for entry in pair])).blocks)
    assert text == " ".join([*left, *right])


def test_words_cut_at_line_ends_are_joined_unless_the_hyphen_is_theirs(tmp_path):
    lines = ["Your infor-", "mation is safe. This e-", "mail is self-", "explaining, as self-explaining as can be."]
    (block,) = read(tmp_path, pdf(column(60, 700, lines))).blocks
    assert block.text == "Your information is safe. This email is self-explaining, as self-explaining as can be."


def test_text_goes_on_over_page_breaks_without_running_heads_and_page_numbers(tmp_path):
    def page(number: int, text: str) -> list[tuple[float, float, int, str]]:
        return [
            (60, 810, 8, f"Manual of the kettle, chapter {number}"),
            *column(60, 700, [text]),
            (290, 30, 8, f"Page {number} of 4"),
        ]

    texts = ["Fill the kettle with water until the line,", "then switch it on.", "Wait for the click.", "2026"]
    document = read(tmp_path, pdf(*(page(number, text) for number, text in enumerate(texts, start=1))))
    assert [block.text for block in document.blocks] == [
        "Fill the kettle with water until the line, then switch it on.",
        "Wait for the click.",
        "2026",
    ]


def test_bare_page_numbers_are_dropped(tmp_path):
    pages = [[*column(60, 700, [f"Text {number}."]), (290, 130, 10, f"- {number} -")] for number in (1, 2)]
    assert [block.text for block in read(tmp_path, pdf(*pages)).blocks] == ["Text 1.", "Text 2."]


def test_tables_without_lines_keep_their_rows(tmp_path):
    columns = (["Country", "Norway", "Chile", "Japan"], ["Price", "9.50", "22", "30"], ["Days", "3", "7", "9"])
    cells = [entry for number, texts in enumerate(columns) for entry in column(60 + 150 * number, 700, texts)]
    document = read(tmp_path, pdf([*column(60, 780, ["These are the prices of 2026."]), *cells]))
    assert shown(document) == [
        ("text", "These are the prices of 2026."),
        (
            "table",
            "Country: Norway; Price: 9.50; Days: 3\nCountry: Chile; Price: 22; Days: 7\n"
            "Country: Japan; Price: 30; Days: 9",
        ),
    ]


def test_wrapped_texts_beside_each_other_are_no_table(tmp_path):
    columns = (["Pack", "the article", "and close", "the box."], ["Bring it", "to the post", "within", "a week."])
    cells = [entry for number, texts in enumerate(columns) for entry in column(60 + 250 * number, 700, texts)]
    assert [block.text for block in read(tmp_path, pdf(cells)).blocks] == [
        "Pack the article and close the box.",
        "Bring it to the post within a week.",
    ]


def test_tables_with_lines_keep_their_rows(tmp_path):
    rows = [["Country", "Price", "Days"], ["Norway", "9.50", "3"], ["Chile", "22", ""]]
    table = Table(rows, style=TableStyle([("GRID", (0, 0), (-1, -1), 1, "black")]))
    SimpleDocTemplate(str(tmp_path / "a.pdf"), pagesize=A4).build([table])
    assert shown(load(tmp_path / "a.pdf")) == [
        ("table", "Country: Norway; Price: 9.50; Days: 3\nCountry: Chile; Price: 22")
    ]


def test_a_table_goes_on_over_a_page_break(tmp_path):
    rows = [["Country", "Price"], *([f"Country number {number}", str(number)] for number in range(60))]
    table = Table(rows, style=TableStyle([("GRID", (0, 0), (-1, -1), 1, "black")]))
    SimpleDocTemplate(str(tmp_path / "a.pdf"), pagesize=A4).build([table])
    lines = [line for block in load(tmp_path / "a.pdf").blocks for line in block.text.split("\n")]
    assert lines == [f"Country: Country number {number}; Price: {number}" for number in range(60)]


def test_merged_cells_and_sections_of_a_table_over_a_page_break(tmp_path):
    rows = [["Shop", "Hours", ""], ["", "Weekdays", "Saturday"], ["Munster", "", ""]]
    rows += [[f"Shop {number}", "9-17", "closed"] for number in range(60)]
    spans = [("SPAN", (0, 0), (0, 1)), ("SPAN", (1, 0), (2, 0)), ("SPAN", (0, 2), (2, 2))]
    table = Table(rows, style=TableStyle([("GRID", (0, 0), (-1, -1), 1, "black"), *spans]), repeatRows=2)
    SimpleDocTemplate(str(tmp_path / "a.pdf"), pagesize=A4).build([table])
    line = "Munster; Shop: Shop {}; Hours, Weekdays: 9-17; Hours, Saturday: closed"
    assert shown(load(tmp_path / "a.pdf")) == [("table", "\n".join(map(line.format, range(60))))]


def test_scanned_pages_and_pictures_are_read(tmp_path):
    scan = Image.new("RGB", (900, 500), "white")
    for number, (text, size) in enumerate([("Galway depot", 60), *((line, 30) for line in SCANNED)]):
        ImageDraw.Draw(scan).text((120, 150 + 100 * number), text, "black", ImageFont.load_default(size))
    scan.save(tmp_path / "a.pdf")
    document = load(tmp_path / "a.pdf")
    assert shown(document) == [("heading", "Galway depot"), *(("text", line) for line in SCANNED)]
    assert document.remarks == ()
    scan.save(tmp_path / "a.png")
    assert load(tmp_path / "a.png").blocks == document.blocks
    Image.new("RGB", (300, 300), "white").save(tmp_path / "b.png")
    assert reason(tmp_path / "b.png") == "a picture with little or no text"


SCANNED = ["The deposit for the carpet cleaner is 75 euros.", "A late return costs 6 euros a day."]


def test_pages_without_text_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(retrieval.loaders.pdf, "can_read_scans", lambda: False)
    text = pdf(column(60, 700, ["Some text that can be read."]))
    assert reason_of(tmp_path, scanned_pdf(pages=3)) == f"no text layer: 3 scanned pages; {OCR}"
    assert reason_of(tmp_path, scanned_pdf()) == f"no text layer: 1 scanned page; {OCR}"
    mixed = read(tmp_path, joined_pdf(text, scanned_pdf(pages=2), text))
    assert mixed.remarks == (f"2 pages (2, 3) skipped: no text layer; {OCR}",)
    assert read(tmp_path, joined_pdf(text, scanned_pdf())).remarks == (f"page 2 skipped: no text layer; {OCR}",)
    assert read(tmp_path, pdf(column(60, 700, ["Text."]), [])).remarks == ()  # an empty page is no scan
    assert reason_of(tmp_path, pdf([])) == "no text in it"


def test_damaged_and_encrypted_files(tmp_path):
    data = pdf(column(60, 700, ["Some text that can be read."]))
    assert reason_of(tmp_path, joined_pdf(data, password="secret")) == "encrypted: save it without a password"
    assert reason_of(tmp_path, data[:300]).startswith("damaged")
    assert reason_of(tmp_path, b"%PDF-1.7\n") == "damaged, or not a .pdf file"


def test_an_owners_password_does_not_lock_readers_out(tmp_path):
    import io

    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(PdfReader(io.BytesIO(pdf(column(60, 700, ["Some text."])))))
    writer.encrypt("", "owner", algorithm="AES-256")
    writer.write(tmp_path / "a.pdf")
    assert shown(load(tmp_path / "a.pdf")) == [("text", "Some text.")]


def tiny_pdf(*objects: str) -> bytes:
    body = "".join(f"{number} 0 obj\n{content}\nendobj\n" for number, content in enumerate(objects, start=1))
    return f"%PDF-1.4\n{body}trailer\n<< /Root 1 0 R >>\n%%EOF".encode()


def test_too_many_pages_are_refused_without_reading_them(tmp_path):
    catalog, page = "<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Page /MediaBox [0 0 9 9] >>"
    claims = tiny_pdf(catalog, "<< /Type /Pages /Count 1000000 /Kids [3 0 R] >>", page)
    assert reason_of(tmp_path, claims) == "declares 1,000,000 pages; the limit is 2,000"
    shared = tiny_pdf(
        catalog, *(f"<< /Type /Pages /Count 9 /Kids [{f'{number} 0 R ' * 10}] >>" for number in range(3, 9)), page
    )
    assert len(shared) < 2000
    with pytest.raises(UnreadableDocument):
        read(tmp_path, shared)
    kids = " ".join(f"{number} 0 R" for number in range(3, 2004))
    many = tiny_pdf(catalog, f"<< /Type /Pages /Count 1 /Kids [{kids}] >>", *[page] * 2001)
    assert reason_of(tmp_path, many) == "more than 2,000 pages"
