"""Tables from text files and spreadsheets: separators, headers, and how values look."""

import datetime
from pathlib import Path

import pytest
from made_files import Cells, old_workbook, open_document_sheet, put, workbook

from retrieval.documents import Document
from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import load
from retrieval.loaders.records import is_header, parted, row_line

PEOPLE = [["Name", "Age"], ["Alice", "30"], ["Bob", "25"]]
PEOPLE_LINES = "Name: Alice; Age: 30\nName: Bob; Age: 25"


def shown(document: Document) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in document.blocks]


def lines_of(path: Path, text: str) -> list[str]:
    return [line for block in load(put(path, text.encode())).blocks for line in block.text.split("\n")]


def reason(path: Path, data: bytes) -> str:
    with pytest.raises(UnreadableDocument) as caught:
        load(put(path, data))
    return caught.value.reason


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|", "^", "~"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_separator_and_line_end(tmp_path, delimiter, end):
    text = end.join(delimiter.join(row) for row in PEOPLE)
    assert lines_of(tmp_path / "a.csv", text) == PEOPLE_LINES.split("\n")


def test_separators_inside_answers_do_not_count(tmp_path):
    path = tmp_path / "a.csv"
    quoted = 'id,text\n1,"How, then; do I, |pay|?"\n2,"With a, b; c"\n'
    assert lines_of(path, quoted) == ["id: 1; text: How, then; do I, |pay|?", "id: 2; text: With a, b; c"]
    bare = "term;meaning\ncash;coins, notes, cheques\ncard;debit, credit\n"
    assert lines_of(path, bare) == ["term: cash; meaning: coins, notes, cheques", "term: card; meaning: debit, credit"]
    three = "term;kind;meaning\ncash;a, b;coins\ncard;c, d;debit\n"
    assert lines_of(path, three)[0] == "term: cash; kind: a, b; meaning: coins"
    cut = 'id;text\n1;"Hello, dear ""friend"",\nline two, three"\n2;"a, b"\n'
    assert lines_of(path, cut) == ['id: 1; text: Hello, dear "friend", line two, three', "id: 2; text: a, b"]
    money = "item,price\npen,3;50\nink,2;80\n"
    assert lines_of(path, money) == ["item: pen; price: 3;50", "item: ink; price: 2;80"]
    assert lines_of(tmp_path / "a.tsv", "a, b\tc, d\n1, 2\t3, 4\n") == ["a, b: 1, 2; c, d: 3, 4"]


def test_tables_without_header_or_with_one_column(tmp_path):
    path = tmp_path / "a.csv"
    assert lines_of(path, "1,2\n3,4\n") == ["1; 2", "3; 4"]
    assert lines_of(path, "City\nOslo\nLima\n") == ["City: Oslo", "City: Lima"]
    assert lines_of(path, "Just one line.") == ["Just one line."]
    assert lines_of(path, "a,b\n1\n1,2,3\n\n,,\n") == ["a: 1", "a: 1; b: 2; 3"]


def test_tables_are_read_in_old_encodings(tmp_path):
    text = "Größe;Länge\nfünf Fuß;über zwölf Meter\n"
    assert shown(load(put(tmp_path / "a.csv", text.encode("cp1252")))) == [
        ("table", "Größe: fünf Fuß; Länge: über zwölf Meter")
    ]
    assert load(put(tmp_path / "a.csv", text.encode("utf-16"))).blocks[0].text.startswith("Größe: ")


def test_a_cell_over_a_megabyte_names_its_row(tmp_path):
    expected = "row 3 has a cell over 1 MB (a quotation mark never closed?)"
    assert reason(tmp_path / "a.csv", b'a,b\n1,2\n3,"' + b"x" * 10 * 2**20 + b'"\n') == expected
    assert reason(tmp_path / "a.csv", b'a,b\n1,2\n3,"' + b"x, y\n" * 2**20) == expected


@pytest.mark.parametrize("suffix", [".xlsx", ".xls", ".ods"])
def test_spreadsheets(tmp_path, suffix):
    makers = {".xlsx": lambda rows: workbook(One=rows), ".xls": old_workbook, ".ods": open_document_sheet}
    path = put(tmp_path / f"price_list{suffix}", makers[suffix](PEOPLE))
    assert shown(load(path)) == [("table", PEOPLE_LINES)]
    assert load(path).title == "Price list"


def test_values_of_cells(tmp_path):
    values = [3.0, 3.25, True, datetime.date(2026, 1, 31), datetime.datetime(2026, 1, 31, 8, 5), None, "a\nb"]
    rows: Cells = [[f"{letter} name" for letter in "abcdefg"], values]
    (block,) = load(put(tmp_path / "a.xlsx", workbook(One=rows))).blocks
    assert block.text == (
        "a name: 3; b name: 3.25; c name: yes; d name: 2026-01-31; e name: 2026-01-31 08:05:00; g name: a b"
    )


def test_sheets_are_sections_and_empty_ones_are_left_out(tmp_path):
    rows: Cells = [[], ["Prices of 2026"], [], [None, "Name", None, "Age"], [], [None, "Alice", None, 30]]
    data = workbook(Prices=rows, Empty=[], More=PEOPLE)
    assert shown(load(put(tmp_path / "a.xlsx", data))) == [
        ("heading", "Prices"),
        ("text", "Prices of 2026"),
        ("table", "Name: Alice; Age: 30"),
        ("heading", "More"),
        ("table", PEOPLE_LINES),
    ]


def test_what_is_a_header():
    assert is_header(["", "First name", "Age"])
    assert not is_header(["1.5", "2,000 €", "x"])
    assert not is_header(["How do I pay?", "With your card."])
    assert not is_header(["x" * 61, "b", ""])


def test_captions_stand_above_the_table():
    assert parted([["T", ""], ["a", "b"], ["c", "d"]]) == (["T"], [["a", "b"], ["c", "d"]])
    assert parted([["a", ""], ["", "b"]]) == ([], [["a", ""], ["", "b"]])
    assert row_line(["a", ""], ["1", "2", "3", ""]) == "a: 1; 2; 3"
