"""Word and PowerPoint files: what becomes of headings, lists, tables and notes."""

import docx
import pptx
import pytest
from made_files import put, reason, saved, shown, slides, with_parts, word
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
