"""JSON records with texts, and which JSON is refused; pairs of question and answer are in test_retrieval_faq."""

from pathlib import Path

import pytest
from made_files import put

from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import load

NAMES = "question and answer, or text, content, body or context"


def reason(path: Path, text: str) -> str:
    with pytest.raises(UnreadableDocument) as caught:
        load(put(path, text.encode()))
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_texts_with_and_without_titles(tmp_path: Path) -> None:
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


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert reason(path, '{"text": "x"}\n\n{"text": }\n') == "line 3 is not JSON: expecting value"
    assert reason(path, '{"text": "x"}\n[1]\n') == "line 2 is not a JSON object"
    assert reason(path, '{"text": ' + "9" * 5000 + "}") == "line 1 contains a number that is too long"
    assert reason(path, '{"text": ' + "[" * 100_000) == "nested too deeply"
    assert reason(path, '{"id": 1}') == f"no record has {NAMES}"


def test_json_that_is_no_list_of_records(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert reason(path, '{"text": "x"}') == f"not a list of objects with {NAMES}"
    assert reason(path, "[1]") == f"not a list of objects with {NAMES}"
    assert reason(path, "[\n{]") == "line 2 is not JSON: expecting property name enclosed in double quotes"
    assert reason(path, "[]") == "no text in it"
