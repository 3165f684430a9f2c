"""Word, PowerPoint, OpenDocument, Rich Text, EPUB and mail: what becomes of headings, lists, tables and notes."""

from email.message import EmailMessage

import docx
import pptx
import pytest
from made_files import book, open_document_text, put, reason, saved, shown, slides, with_parts, word
from pptx.util import Inches

from retrieval.loaders.load import load


def test_word_keeps_headings_lists_and_tables(tmp_path):
    table = [["Country", "Price", "Days"], ["Norway", "9.50", "3"], ["Chile", "22", ""]]
    document = load(put(tmp_path / "a.docx", word(table=table)))
    assert document.title == "Returns"
    assert shown(document) == [
        ("heading", "Returns"),
        ("text", "You have 30 days."),
        ("list", "- Keep the box\n- Keep the bill"),
        ("table", "Country: Norway; Price: 9.50; Days: 3\nCountry: Chile; Price: 22"),
    ]


def test_word_tables_of_two_columns_and_with_headings_in_their_cells(tmp_path):
    made = docx.Document()
    table = made.add_table(rows=1, cols=2)
    table.cell(0, 0).paragraphs[0].style = made.styles["Heading 2"]
    table.cell(0, 0).paragraphs[0].text = "Phone"
    table.cell(0, 1).text = "12345"
    assert shown(load(put(tmp_path / "a.docx", saved(made)))) == [("table", "Phone: 12345")]


def test_word_tables_with_sections_and_two_header_rows(tmp_path):
    rows = [["Shop", "Hours", ""], ["", "Weekdays", "Saturday"], ["Munster", "", ""], ["Tralee", "9-17", "closed"]]
    made = docx.Document()
    table = made.add_table(rows=4, cols=3)
    for row, values in zip(table.rows, rows, strict=True):
        for cell, value in zip(row.cells, values, strict=True):
            cell.text = value
    for first, last in (((0, 0), (1, 0)), ((0, 1), (0, 2)), ((2, 0), (2, 2))):
        table.cell(*first).merge(table.cell(*last))
    line = "Munster; Shop: Tralee; Hours, Weekdays: 9-17; Hours, Saturday: closed"
    assert shown(load(put(tmp_path / "a.docx", saved(made)))) == [("table", line)]


def test_open_document_texts(tmp_path):
    styles = "<text:list-style style:name='L1'><text:list-level-style-number text:level='1'/></text:list-style>"
    row = "<table:table-row>" + "<table:table-cell><text:p>{}</text:p></table:table-cell>" * 2 + "</table:table-row>"
    data = open_document_text(
        "<text:p text:style-name='Title'>Manual</text:p><text:h text:outline-level='2'>Start</text:h>"
        "<text:p>Press<text:s/>the <text:span>green</text:span> key.<office:annotation><text:p>Why?</text:p>"
        "</office:annotation></text:p><text:list text:style-name='L1'>"
        "<text:list-item><text:p>One</text:p></text:list-item><text:list-item><text:p>Two</text:p>"
        "<text:list><text:list-item><text:p>Inner</text:p></text:list-item></text:list></text:list-item></text:list>"
        f"<table:table>{row.format('Part', 'Price')}{row.format('Pump', '9 EUR')}</table:table>",
        styles,
    )
    document = load(put(tmp_path / "a.odt", data))
    assert document.title == "Manual"
    assert shown(document) == [
        ("heading", "Manual"),
        ("heading", "Start"),
        ("text", "Press the green key."),
        ("list", "1. One\n2. Two\n  - Inner"),
        ("table", "Part: Pump; Price: 9 EUR"),
    ]


def test_rich_text(tmp_path):
    table = rb"\trowd Part\cell Price\cell\row\trowd Pump\cell 9\cell\row\pard "
    data = rb"{\rtf1\ansi\ansicpg1252 Gr\'f6\'dfe\par " + table + b"End.}"
    assert shown(load(put(tmp_path / "a.rtf", data))) == [
        ("text", "Größe"),
        ("table", "Part: Pump; Price: 9"),
        ("text", "End."),
    ]


def test_chapters_of_a_book_in_reading_order(tmp_path):
    document = load(put(tmp_path / "a.epub", book("<h1>Second</h1><p>B</p>", "<h1>First</h1><p>A</p>")))
    assert document.title == "Manual"
    assert [text for _, text in shown(document)] == ["First", "A", "Second", "B"]
    protected = with_parts(book("<p>A</p>"), {"META-INF/encryption.xml": "<encryption/>"})
    assert reason(put(tmp_path / "b.epub", protected)) == "protected against copying (DRM): it cannot be read"


def test_mail_with_attachments(tmp_path):
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["Date"] = "Ennis dépôt", "a@example.com", "Tue, 03 Feb 2026 10:00:00 +0100"
    mail.set_content("It opens on 3 February.")
    mail.add_alternative("<p>It opens <b>soon</b>.</p>", subtype="html")
    mail.add_attachment("part,price\npump,9\n", subtype="csv", filename="prices.csv")
    mail.add_attachment(b"%PDF-", maintype="application", subtype="pdf", filename="plan.pdf")
    document = load(put(tmp_path / "a.eml", mail.as_bytes()))
    assert document.title == "Ennis dépôt"
    assert shown(document) == [
        ("text", "Date: 2026-02-03"),
        ("text", "It opens on 3 February."),
        ("heading", "prices.csv"),
        ("table", "part: pump; price: 9"),
    ]
    assert document.remarks == ("attachment plan.pdf skipped: save it as a file",)


def test_bold_lines_are_the_headings_of_a_file_without_any(tmp_path):
    made = docx.Document()
    for text, is_bold in (("Returns", True), ("You have 30 days.", False), ("Mind the date.", True)):
        made.add_paragraph().add_run(text).bold = is_bold
    assert shown(load(put(tmp_path / "a.docx", saved(made)))) == [
        ("heading", "Returns"),
        ("text", "You have 30 days."),
        ("text", "Mind the date."),
    ]


def test_slides_are_sections_with_their_notes(tmp_path):
    data = slides(("Returns", ["Pack it", "Send it"], "Mention the label."), ("", [], "Only notes."), ("", [], ""))
    assert shown(load(put(tmp_path / "a.pptx", data))) == [
        ("heading", "Returns"),
        ("list", "- Pack it\n- Send it"),
        ("text", "Mention the label."),
        ("heading", "Slide 2"),
        ("text", "Only notes."),
    ]


def test_tables_and_groups_on_slides(tmp_path):
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[6])
    table = slide.shapes.add_table(2, 2, *map(Inches, (1, 1, 4, 1))).table
    for place, text in enumerate(("Country", "Price", "Norway", "9.50")):
        table.cell(*divmod(place, 2)).text = text
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(*map(Inches, (1, 3, 4, 1))).text_frame.text = "Inside a group"
    assert shown(load(put(tmp_path / "price_list.pptx", saved(deck)))) == [
        ("heading", "Slide 1"),
        ("table", "Country: Norway; Price: 9.50"),
        ("text", "Inside a group"),
    ]
    assert load(tmp_path / "price_list.pptx").title == "Price list"


@pytest.mark.parametrize("suffix", [".docx", ".pptx", ".xlsx", ".ods"])
def test_encrypted_files_and_old_ones_under_a_new_name(tmp_path, suffix):
    data = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2000)  # encryption wraps them in the old container
    expected = f"encrypted or in an old format: save it as {suffix} without a password"
    assert reason(put(tmp_path / f"a{suffix}", data)) == expected


def test_pictures_are_neither_read_nor_fetched(tmp_path, monkeypatch):
    opened: list[str] = []
    for name in ("open", "urlopen"):
        monkeypatch.setattr(f"mammoth.docx.files.{name}", lambda *names: opened.append(names[0]), raising=False)
    relations = (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId9" '
        'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/image" '
        'Target="file:///etc/passwd" TargetMode="External"/></Relationships>'
    )
    main = (
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
        'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
        'xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing" '
        'xmlns:pic="http://schemas.openxmlformats.org/drawingml/2006/picture" '
        'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"><w:body><w:p><w:r><w:t>Text'
        "</w:t></w:r><w:r><w:drawing><wp:inline><a:graphic><a:graphicData><pic:pic><pic:blipFill>"
        '<a:blip r:link="rId9"/></pic:blipFill></pic:pic></a:graphicData></a:graphic></wp:inline></w:drawing></w:r>'
        "</w:p></w:body></w:document>"
    )
    data = with_parts(word(), {"word/document.xml": main, "word/_rels/document.xml.rels": relations})
    assert shown(load(put(tmp_path / "a.docx", data))) == [("text", "Text")]
    assert opened == []
