"""Tables of questions and answers in every format: one passage a pair. Other records, and what is refused."""

import json
from pathlib import Path

import pytest
from made_files import put, workbook

from retrieval.documents import Document, split
from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import load
from retrieval.loaders.records import faq_blocks

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
    assert found is not None
    assert [block.text for block in found[0]] == ["Why?", "So.\nid: 7"]
    assert faq_blocks(names[:1], []) is None
    assert faq_blocks(["quest", "answer"], []) is None


NAMES = "question and answer, or text, content, body or context"


def reason(path: Path, text: str) -> str:
    with pytest.raises(UnreadableDocument) as caught:
        load(put(path, text.encode()))
    assert "\n" not in str(caught.value)
    return caught.value.reason


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
    assert reason(path, '{"text": "x"}\n\n{"text": }\n') == "line 3 is not JSON: expecting value"
    assert reason(path, '{"text": "x"}\n[1]\n') == "line 2 is not a JSON object"
    assert reason(path, '{"text": ' + "9" * 5000 + "}") == "line 1 contains a number that is too long"
    assert reason(path, '{"text": ' + "[" * 100_000) == "nested too deeply"
    assert reason(path, '{"id": 1}') == f"no record has {NAMES}"


def test_json_that_is_no_list_of_records(tmp_path):
    path = tmp_path / "a.json"
    assert reason(path, '{"text": "x"}') == f"not a list of objects with {NAMES}"
    assert reason(path, "[1]") == f"not a list of objects with {NAMES}"
    assert reason(path, "[\n{]") == "line 2 is not JSON: expecting property name enclosed in double quotes"
    assert reason(path, "[]") == "no text in it"
