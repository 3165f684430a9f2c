"""Questions with their right answers, in the forms in which they come, and which statements are these answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.domain.documents import StoredPassage
from app.domain.errors import DeskError
from evals.answers.questions import LabelledQuestion, read_labelled
from retrieval.statements.grouping import Statement

TEXT = "Returns take ten days. Keep the receipt. 退款需要五天。"


def labelled(folder: Path, *rows: dict[str, Any]) -> list[LabelledQuestion]:
    file = folder / "questions.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return read_labelled(file)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "a?"}, LabelledQuestion(question="a?")),
        ({"question": "a?", "answer": "A."}, LabelledQuestion(question="a?", answers=("A.",))),
        ({"question": "a?", "answer": None}, LabelledQuestion(question="a?")),
        ({"question": "a?", "answers": ["A", "B"]}, LabelledQuestion(question="a?", answers=("A", "B"))),
        ({"question": "a?", "answers": []}, LabelledQuestion(question="a?")),
        (
            {"question": "a?", "answers": ["A"], "articles": ["a.md"]},
            LabelledQuestion(question="a?", answers=("A",), articles=("a.md",)),
        ),
        (
            {"question": "a?", "answers": ["A"], "earlier": "b?"},
            LabelledQuestion(question="a?", earlier="b?", answers=("A",)),
        ),
        (
            {"question": "a?", "facts": ["x", ["y", "z"]], "answer": "for people", "kind": "plain"},
            LabelledQuestion(question="a?", facts=(("x",), ("y", "z"))),
        ),
        ({"question": "a?", "facts": [], "answer": None}, LabelledQuestion(question="a?")),
        (
            {"question": "a?", "facts": ["x"], "history": [["b?", "B."], ["c?", "C."]]},
            LabelledQuestion(question="a?", earlier="c?", facts=(("x",),)),
        ),
        (
            {"question": "a?", "facts": ["x"], "history": [{"question": "b?", "answer": "B."}]},
            LabelledQuestion(question="a?", earlier="b?", facts=(("x",),)),
        ),
    ],
)
def test_every_form_of_a_line(tmp_path, row, expected):
    assert labelled(tmp_path, row) == [expected]
    assert expected.is_answerable == bool(row.get("answers") or row.get("facts") or row.get("answer"))


def test_a_line_of_a_collection_has_many_questions_and_small_talk_is_none(tmp_path):
    rows = (
        {
            "title": "t",
            "context": "c",
            "qas": [{"question": "a?", "answers": ["A"]}, {"question": "b?", "answers": []}],
        },
        {"question": "Hello!", "kind": "smalltalk"},
        {"question": "c?"},
    )
    assert [(one.question, one.answers) for one in labelled(tmp_path, *rows)] == [
        ("a?", ("A",)),
        ("b?", ()),
        ("c?", ()),
    ]


@pytest.mark.parametrize("text", ["{", "5", '{"answer": "x"}', '{"qas": [{"question": "x"}]}', '["a"]'])
def test_another_file_is_one_clear_error(tmp_path, text):
    file = tmp_path / "questions.jsonl"
    file.write_text(text)
    with pytest.raises(DeskError, match=r"questions\.jsonl, line 1 is not a question") as caught:
        read_labelled(file)
    assert caught.value.code == "bad-questions"
    with pytest.raises(DeskError, match=r"none\.jsonl"):
        read_labelled(tmp_path / "none.jsonl")


PASSAGE = StoredPassage(
    id=1,
    document="d.md",
    title="Returns",
    ordinal=0,
    heading_path=("Returns",),
    text=TEXT,
    content_hash="",
    num_tokens=9,
    module_key=None,
)


def right(question: LabelledQuestion) -> list[str]:
    """The statements that are its answer. They are shown with a line that governs them, which does not count."""
    found = []
    for said in ("Returns take ten days.", "Keep the receipt.", "退款需要五天。"):
        start = TEXT.index(said)
        statement = Statement(f"Everything about zebras: {said}", start, start + len(said), "sentence")
        if question.is_answered_by(statement, PASSAGE):
            found.append(said)
    return found


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Returns take ten days.", ["Returns take ten days."]),
        ("ten days", ["Returns take ten days."]),
        ("TEN  days!", ["Returns take ten days."]),
        ("en day", []),  # parts of words are none of the answer
        ("Returns take ten days. Keep the receipt.", ["Returns take ten days.", "Keep the receipt."]),
        ("退款需要五天", ["退款需要五天。"]),
        ("五天", ["退款需要五天。"]),
        ("A return takes ten days", []),  # too few words in common
        ("All returns take ten days.", ["Returns take ten days."]),
        ("zebras", []),
        ("", []),
    ],
)
def test_statements_that_hold_the_answer_or_a_part_of_it_are_right(answer, expected):
    assert right(LabelledQuestion(question="?", answers=(answer,))) == expected


def test_one_of_several_answers_is_enough():
    question = LabelledQuestion(question="?", answers=("Keep the receipt", "ten days"))
    assert right(question) == ["Returns take ten days.", "Keep the receipt."]
    assert right(LabelledQuestion(question="?")) == []


def test_statements_with_one_of_the_facts_are_right():
    assert right(LabelledQuestion(question="?", facts=(("10 days", "ten days"), ("receipt",)))) == [
        "Returns take ten days.",
        "Keep the receipt.",
    ]
    assert right(LabelledQuestion(question="?", facts=(("zebras",),))), "facts are looked for in what is shown"


def test_other_documents_than_those_named_do_not_answer():
    question = LabelledQuestion(question="q?", answers=("ten days",), articles=("other.md",))
    assert right(question) == []
    assert right(LabelledQuestion(question="q?", answers=("ten days",), articles=("d.md",))) == [
        "Returns take ten days."
    ]
