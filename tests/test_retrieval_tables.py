"""Tables of text files and spreadsheets, tables of questions and answers, other records, and what is refused."""

import datetime
import io
import json
import zipfile
from pathlib import Path

import openpyxl
import pytest
import xlwt
from made_files import Cells, old_workbook, open_document_sheet, put, reason, saved, shown, with_parts, workbook

from retrieval.documents import Document, split
from retrieval.loaders.load import load
from retrieval.loaders.records import faq_blocks
from retrieval.loaders.spreadsheets import displayed
from retrieval.loaders.tables import is_header, parted, row_line

PEOPLE = [["Name", "Age"], ["Alice", "30"], ["Bob", "25"]]
PEOPLE_LINES = "Name: Alice; Age: 30\nName: Bob; Age: 25"


def lines_of(path: Path, text: str) -> list[str]:
    return [line for block in load(put(path, text.encode())).blocks for line in block.text.split("\n")]


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
    expected = "row 3 has a cell over 1 MB (is a quotation mark unclosed?)"
    assert reason(put(tmp_path / "a.csv", b'a,b\n1,2\n3,"' + b"x" * 10 * 2**20 + b'"\n')) == expected
    assert reason(put(tmp_path / "a.csv", b'a,b\n1,2\n3,"' + b"x, y\n" * 2**20)) == expected


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
        "a name: 3; b name: 3.25; c name: yes; d name: 2026-01-31; e name: 2026-01-31 08:05; g name: a b"
    )


def lines(path: Path) -> list[str]:
    return [line for block in load(path).blocks if block.kind != "heading" for line in block.text.split("\n")]


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.15, "0%", "15%"),
        (1200, '"EUR" #,##0.00', "EUR 1,200.00"),
        (1234.5, "#,##0.00 [$€-407]", "1,234.50 €"),
        (datetime.date(2026, 5, 3), "d mmm yyyy", "3 May 2026"),
        (datetime.date(2026, 5, 3), 'yyyy"年"m"月"d"日"', "2026年5月3日"),
        (datetime.date(2026, 5, 3), "[$-809]dd/mm/yyyy;@", "2026-05-03"),  # 3 May or 5 March
        (datetime.datetime(2026, 5, 3, 9, 5), "m/d/yy h:mm", "2026-05-03 09:05"),
        (datetime.time(9, 30), "h:mm AM/PM", "9:30 AM"),
        (7, "00000", "00007"),
        (36, "bogus [[", "36"),
        (0.1 + 0.2, "General", "0.3"),
        (True, "General", "yes"),
        ("#DIV/0!", "General", ""),
    ],
)
def test_values_are_told_as_displayed(value, form, text):
    assert displayed(value, form) == text


def test_what_is_hidden_is_skipped_and_named(tmp_path):
    made = openpyxl.load_workbook(io.BytesIO(workbook(Prices=[["Part", "Cost", "Price"], *PARTS], Internal=PEOPLE)))
    made["Internal"].sheet_state = "hidden"
    made["Prices"].column_dimensions["B"].hidden = True
    made["Prices"].row_dimensions[3].hidden = True
    document = load(put(tmp_path / "a.xlsx", saved(made)))
    assert shown(document) == [("table", "Part: Pump; Price: 9 EUR\nPart: Hose; Price: 7 EUR")]
    assert document.remarks == ("hidden sheet Internal skipped", "1 hidden row and 1 hidden column skipped")
    old = xlwt.Workbook()
    for number, name in enumerate(("Prices", "Internal")):
        sheet = old.add_sheet(name)
        sheet.visibility = number
        for row, cells in enumerate([["Part", "Cost", "Price"], *PARTS]):
            for column, value in enumerate(cells):
                sheet.write(row, column, value)
        sheet.col(1).hidden = sheet.row(2).hidden = True
    assert load(put(tmp_path / "a.xls", saved(old))).blocks == document.blocks
    data = open_document_sheet([["Part", "Cost", "Price"], *PARTS])
    columns = "<table:table-column/><table:table-column table:visibility='collapse'/><table:table-row>"
    content = zipfile.ZipFile(io.BytesIO(data)).read("content.xml").decode()
    data = with_parts(data, {"content.xml": content.replace("<table:table-row>", columns, 1)})
    assert lines(put(tmp_path / "a.ods", data)) == [
        "Part: Pump; Price: 9 EUR",
        "Part: Seal; Price: 8 EUR",
        "Part: Hose; Price: 7 EUR",
    ]


PARTS = [["Pump", "4.10", "9 EUR"], ["Seal", "3.10", "8 EUR"], ["Hose", "2.10", "7 EUR"]]


def test_formulas_without_a_stored_value_are_named(tmp_path):
    document = load(put(tmp_path / "a.xlsx", workbook(One=[["Level", "Points"], ["Gold", 3], ["Sum", "=B2*2"]])))
    assert document.remarks == ("1 formula has no stored value: open and save the file in a spreadsheet program",)


ZONES = [
    ["Weight", "Standard", "Express"],
    ["Zone 1: Ireland", "", ""],
    ["up to 2 kg", "4.90", "9.90"],
    ["Zone 2: Europe", "", ""],
    ["up to 2 kg", "12.40", ""],
    ["Prices without tax.", "", ""],
]
ZONE_LINES = [
    "Zone 1: Ireland; Weight: up to 2 kg; Standard: 4.90; Express: 9.90",
    "Zone 2: Europe; Weight: up to 2 kg; Standard: 12.40",
    "Prices without tax.",
]
HOURS = [
    ["Shop", "Opening hours", ""],
    ["", "Weekdays", "Saturday"],
    ["Sligo", "9-17", "9-13"],
    ["Tralee", "10-19", "-"],
]
HOUR_LINES = [
    "Shop: Sligo; Opening hours, Weekdays: 9-17; Opening hours, Saturday: 9-13",
    "Shop: Tralee; Opening hours, Weekdays: 10-19; Opening hours, Saturday: -",
]


@pytest.mark.parametrize("is_merged", [True, False])
@pytest.mark.parametrize(("rows", "areas", "expected"), [
    (ZONES, ["A2:C2", "A4:C4", "A6:C6"], ZONE_LINES),
    (HOURS, ["A1:A2", "B1:C1"], HOUR_LINES),
    ([["Size", "Price"], ["(cm)", "(EUR)"], ["30", "4"]], [], ["Size (cm): 30; Price (EUR): 4"]),
    ([["Name", "Benefit"], ["Gold", "lounge"], ["Silver", ""]], [], ["Name: Gold; Benefit: lounge", "Name: Silver"]),
    ([["Name", "Benefit"], ["Silver", ""], ["Gold", "lounge"]], [], ["Name: Silver", "Name: Gold; Benefit: lounge"]),
])  # fmt: skip
def test_sections_header_rows_and_notes(tmp_path, rows, areas, expected, is_merged):
    made = openpyxl.load_workbook(io.BytesIO(workbook(One=rows)))
    for area in areas if is_merged else ():
        made.active.merge_cells(area)
    assert lines(put(tmp_path / "a.xlsx", saved(made))) == expected
    text = "\n".join(",".join(row) for row in rows)
    assert lines_of(tmp_path / "a.csv", text) == expected


def test_merged_cells_count_in_every_place(tmp_path):
    made = openpyxl.load_workbook(io.BytesIO(workbook(One=[["Range", "Part"], ["Garden", "Pump"], ["", "Hose"]])))
    made.active.merge_cells("A2:A3")
    assert lines(put(tmp_path / "a.xlsx", saved(made))) == ["Range: Garden; Part: Pump", "Range: Garden; Part: Hose"]


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


ROWS = [
    ["Question", "Answer", "Category", "Link"],
    ["How do I pay?", "By card.\n\nOr by bill.", "Payment", "/pay"],
    ["Can I pay later?", "Yes.", "Payment", ""],
    ["Where is it?", "Look at your orders.", "", ""],
]
PASSAGES = [
    (("Faq", "Payment", "How do I pay?"), "By card.\n\nOr by bill.\nLink: /pay"),
    (("Faq", "Payment", "Can I pay later?"), "Yes."),
    (("Faq", "Where is it?"), "Look at your orders."),
]


def words(text: str) -> int:
    return len(text.split())


def passages(document: Document, limit: int = 400) -> list[tuple[tuple[str, ...], str]]:
    assert document.is_faq
    return [(passage.heading_path, passage.text) for passage in split(document, words, limit)]


def table(delimiter: str) -> bytes:
    return "\r\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in ROWS).encode()


def records() -> list[dict[str, str]]:
    return [dict(zip(ROWS[0], row, strict=True)) for row in ROWS[1:]]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".xlsx", ".jsonl", ".json"])
def test_each_pair_is_one_passage_in_every_format(tmp_path, suffix):
    data = {
        ".csv": table(","),
        ".tsv": table("\t"),
        ".xlsx": workbook(One=ROWS),
        ".jsonl": "\n".join(map(json.dumps, records())).encode(),
        ".json": json.dumps(records()).encode(),
    }[suffix]
    document = load(put(tmp_path / f"faq{suffix}", data))
    assert passages(document) == PASSAGES
    assert document.remarks == ()
    assert [block.text for block in document.blocks].count("Payment") == 1


def test_pairs_that_are_not_whole_are_left_out_with_a_remark(tmp_path):
    rows = "question,answer\nWhere?,Here.\nWhy?,\n,Because.\n,\nWho?,You.\n"
    document = load(put(tmp_path / "a.csv", rows.encode()))
    assert [path[-1] for path, _ in passages(document)] == ["Where?", "Who?"]
    assert document.remarks == ("2 rows skipped, without question or answer: 3, 4",)
    document = load(put(tmp_path / "a.jsonl", b'{"q": "Why?", "a": null}\n{"q": "Who?", "a": "You."}'))
    assert document.remarks == ("record 1 skipped: no question or no answer",)
    rows_of_sheet = [[], ["Question", "Answer"], ["Where?", "Here."], [], ["Why?", None]]
    document = load(put(tmp_path / "a.xlsx", workbook(One=rows_of_sheet, Two=[["a", "b"], [1, 2]])))
    assert document.remarks == ("sheet One: row 5 skipped: no question or no answer",)
    many = "q,a\n" + "Why?,\n" * 30
    assert load(put(tmp_path / "b.csv", (many + "Who?,You.").encode())).remarks == (
        "30 rows skipped, without question or answer: 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …",
    )


def test_only_long_answers_are_cut(tmp_path):
    long = ". ".join(f"Sentence number {number}" for number in range(30))
    document = load(put(tmp_path / "a.csv", f"question,answer\nWhy?,{long}\nWho?,You.\nWhen?,Now.\n".encode()))
    found = passages(document, 50)
    assert {path for path, _ in found[:-2]} == {("A", "Why?")}
    assert len(found) == 4
    assert found[-2:] == [(("A", "Who?"), "You."), (("A", "When?"), "Now.")]


def test_a_question_is_never_lost(tmp_path):
    long = "How " + "very " * 40 + "long may a question be?"
    document = load(put(tmp_path / "who.csv", f"question,answer\nWho,You.\n{long},So long.\nWhen?,Now.\n".encode()))
    first, second, third = passages(document, 100)
    assert first == (("Who", "Who"), "You.")  # though it is the title as well
    assert second[0][-1] == "How " + "very " * 22 + "very…"
    assert second[1] == f"{long}\n\nSo long."
    assert third == (("Who", "When?"), "Now.")


@pytest.mark.parametrize(
    "header",
    ["QUESTION|Answers", " q |A", "Frage|Antwort", "Pregunta|Respuesta", "问题|答案", "標準問|回答", "FAQ:|Response"],
)
def test_names_of_columns(header):
    names = header.split("|")
    found = faq_blocks(["id", *names], [["7", "Why?", "So."]])
    assert [block.text for block in found[0]] == ["Why?", "So.\nid: 7"]
    assert faq_blocks(names[:1], []) is None
    assert faq_blocks(["quest", "answer"], []) is None


NAMES = "question and answer, or text, content, body or context"


def reason_of(path: Path, text: str) -> str:
    return reason(put(path, text.encode()))


def test_texts_with_and_without_titles(tmp_path):
    lines = '\ufeff{"title": "Returns", "text": "30 days.", "id": 7}\n \r\n{"Body": ["One", "Two"]}\r\n{"id": 8}\n'
    document = load(put(tmp_path / "a.jsonl", lines.encode()))
    assert [(block.kind, block.level, block.text) for block in document.blocks] == [
        ("heading", 1, "Returns"),
        ("text", 0, "30 days."),
        ("text", 0, "One\nTwo"),
    ]
    assert not document.is_faq
    assert document.remarks == ("1 of 3 records skipped: no text",)
    same = load(put(tmp_path / "a.json", b'[{"title": "Returns", "content": "30 days."}]'))
    assert [block.text for block in same.blocks] == ["Returns", "30 days."]


def test_a_line_that_is_not_json_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    assert reason_of(path, '{"text": "x"}\n\n{"text": }\n') == "line 3 is not JSON: expecting value"
    assert reason_of(path, '{"text": "x"}\n[1]\n') == "line 2 is not a JSON object"
    assert reason_of(path, '{"text": ' + "9" * 5000 + "}") == "line 1 contains a number that is too long"
    assert reason_of(path, '{"text": ' + "[" * 100_000) == "nested too deeply"
    assert reason_of(path, '{"id": 1}') == f"no record has {NAMES}"


def test_json_that_is_no_list_of_records(tmp_path):
    path = tmp_path / "a.json"
    assert reason_of(path, '{"text": "x"}') == f"not a list of objects with {NAMES}"
    assert reason_of(path, "[1]") == f"not a list of objects with {NAMES}"
    assert reason_of(path, "[\n{]") == "line 2 is not JSON: expecting property name enclosed in double quotes"
    assert reason_of(path, "[]") == "no text in it"


PUBLISHED = {"title": "Refunds", "body": "<h2>Time</h2><p>5 <b>days</b>.</p>", "draft": False, "state": "published"}


@pytest.mark.parametrize("name", ["articles", "data"])
@pytest.mark.parametrize("mark", [{"draft": True}, {"state": "draft"}])
def test_exports_of_help_desks(tmp_path, name, mark):
    export = {"count": 2, name: [PUBLISHED, {**PUBLISHED, **mark}]}
    document = load(put(tmp_path / "export.json", json.dumps(export).encode()))
    assert shown(document) == [("heading", "Refunds"), ("heading", "Time"), ("text", "5 days.")]
    assert document.remarks == ("1 of 2 records skipped: not published",)
