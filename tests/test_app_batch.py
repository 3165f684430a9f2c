"""Many questions at once: order, groups, counting, errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from desks import finish, small_desk, write_pages

from app.batch import read_questions
from app.errors import DeskError
from app.history import PastMessage
from app.reports import batch_json, print_batch

LINES = """{"id": "r", "question": "How long do returns take?"}
{"question": "Can gift cards be returned?"}

"What does standard shipping cost?"
{"id": 7, "question": "And gift cards?", "history": [["How long do returns take?", "Thirty days."]]}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "questions.jsonl"
    path.write_text(text)
    return path


def test_lines_of_every_kind_are_read(tmp_path: Path) -> None:
    questions = read_questions(write(tmp_path, LINES))
    assert [(q.id, q.question) for q in questions] == [
        ("r", "How long do returns take?"),
        ("2", "Can gift cards be returned?"),
        ("4", "What does standard shipping cost?"),
        ("7", "And gift cards?"),
    ]
    assert [(m.role, m.text) for m in questions[3].past] == [
        ("user", "How long do returns take?"),
        ("assistant", "Thirty days."),
    ]
    assert isinstance(questions[3].past[0], PastMessage)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no questions"),
        ("{}", "line 1: each line is"),
        ('"fine"\nnot json', "line 2: each line is"),
        ('{"question": 7}', "line 1: each line is"),
        ('{"question": "x", "history": ["y"]}', "line 1: each line is"),
        ("[1]", "line 1: each line is"),
    ],
)
def test_a_bad_file_is_one_clear_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DeskError, match=message):
        read_questions(write(tmp_path, text))


def test_answers_come_in_order_and_equal_those_asked_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = read_questions(write(tmp_path, LINES))
    progress: list[tuple[int, int]] = []
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([write_pages(tmp_path / "pages")])
        result = desk.batch(questions, lambda done, total: progress.append((done, total)))
        alone = [finish(desk, question.question).answer for question in questions[:3]]
        assert len(desk.conversations()) == 3, "a batch leaves no conversations"
    document = batch_json(result)
    assert [answer["id"] for answer in document["answers"]] == ["r", "2", "4", "7"]
    assert [answer["answer"] for answer in document["answers"][:3]] == alone
    assert sorted(id_ for members in document["groups"] for id_ in members) == ["2", "4", "7", "r"]
    tokens = document["tokens"]
    assert tokens["computed"] < tokens["prompt"]
    assert 0 < tokens["computed_cold_grouped"] <= tokens["computed_cold_ungrouped"] <= tokens["prompt"]
    assert progress[-1] == (4, 4)
    print_batch(result)
    out = capsys.readouterr().out
    assert "4 answers in" in out
    assert "from a cold start" in out


def test_refused_questions_are_answers_too(tmp_path: Path) -> None:
    questions = read_questions(write(tmp_path, '"What is the capital of Peru?"'))
    with small_desk(tmp_path / "desk", refuse_below=1.0) as desk:
        desk.ingest([write_pages(tmp_path / "pages")])
        result = desk.batch(questions, lambda done, total: None)
    assert result.answers[0].refused
    assert result.groups == ()


def test_a_question_that_cannot_be_asked_is_named(tmp_path: Path) -> None:
    questions = read_questions(write(tmp_path, '{"id": "long", "question": "  "}'))
    with small_desk(tmp_path / "desk") as desk, pytest.raises(DeskError, match=r"question 'long': .*empty"):
        desk.batch(questions, lambda done, total: None)
