"""Many questions at once: order, groups, counting, errors."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from desks import finish, small_desk, write_pages

from app.cli.main import main
from app.cli.reports import print_batch
from app.desk import batch
from app.desk.batch import read_questions, still_to_answer
from app.desk.output import batch_json
from app.desk.service import Service
from app.domain.answers import Answer
from app.domain.errors import DeskError
from cache.errors import CapacityError

LINES = """{"id": "r", "question": "How long do returns take?"}
{"question": "Can gift cards be returned?"}

"What does standard shipping cost?"
{"id": 7, "question": "And gift cards?", "history": [["How long do returns take?", "Thirty days."]]}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "questions.jsonl"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_lines_of_every_kind_are_read(tmp_path):
    only_feeds_end_one = read_questions(write(tmp_path, '"one\u2028two\x85three"\r\n"four"'))
    assert [question.question for question in only_feeds_end_one] == ["one\u2028two\x85three", "four"]
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
    labelled = '{"question": "b", "facts": [["x"]], "history": [{"question": "a", "answer": "Yes."}]}'
    assert [m.text for m in read_questions(write(tmp_path, labelled))[0].past] == ["a", "Yes."]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no questions"),
        ("{}", "line 1 is not a question: write "),
        ('"fine"\nnot json', "line 2 is not a question: write "),
        ('{"question": 7}', "line 1 is not a question: write "),
        ('{"question": "x", "history": ["y"]}', "line 1 is not a question: write "),
        ('{"question": "x", "history": ["ab"]}', "line 1 is not a question: write "),
        ('{"question": "x", "history": [["a", 7]]}', "line 1 is not a question: write "),
        ("[1]", "line 1 is not a question: write "),
        ("[" * 100_000, "line 1 is not a question: write "),
    ],
)
def test_a_bad_file_is_one_clear_line(text, message, tmp_path):
    with pytest.raises(DeskError, match=message):
        read_questions(write(tmp_path, text))


def test_answers_come_in_order_and_equal_those_asked_alone(tmp_path, capsys):
    questions = read_questions(write(tmp_path, LINES))
    progress: list[tuple[int, int]] = []
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages")) as desk:
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
    for entry in document["answers"]:
        times = entry["timings_ms"]
        assert times["total"] >= times["ttft"] >= times["retrieve"] > 0
        assert not {"conversation_id", "message_id"} & set(entry), "it belongs to no conversation"
    print_batch(batch_json(result))
    out = capsys.readouterr().out
    assert "4 answers in" in out
    assert "from a cold start" in out


def test_a_question_that_fails_takes_no_other_along(tmp_path, capsys):
    long = json.dumps({"id": "big", "question": "Returns? " + "word " * 150})
    path = write(
        tmp_path, f'{{"id": "none", "question": "  "}}\n{long}\n{{"id": "r", "question": "Returns?"}}\n"Hello"'
    )
    progress: list[tuple[int, int]] = []
    with small_desk(
        tmp_path / "desk", pages=write_pages(tmp_path / "pages"), disk=0, device_memory=170 << 10, system_text="Answer."
    ) as desk:
        result = desk.batch(read_questions(path), lambda done, total: progress.append((done, total)))
    none, big, fine, hello = batch_json(result)["answers"]
    assert hello["outcome"] == "smalltalk", "which needs no model"
    times = hello["timings_ms"]
    assert times["total"] >= times["ttft"] >= times["retrieve"] > 0
    assert none == {
        "id": "none",
        "question": "  ",
        "error": {"code": "question-empty", "message": "the question is empty: write one"},
    }
    assert set(big) == {"id", "question", "error"}
    assert big["error"]["code"] == "engine"
    assert isinstance(fine["answer"], str)
    assert result.groups == (("r",),)
    assert result.cold_grouped == result.cold_ungrouped == fine["usage"]["prompt_tokens"]
    assert progress == [(done, 4) for done in range(1, 5)]
    print_batch(batch_json(result))
    out = capsys.readouterr().out
    assert "not answered: the question is empty" in out
    assert "2 not answered" in out


def test_a_batch_asks_no_more_at_once_than_the_desk_answers(tmp_path):
    """Was wrong once: 16, of which a desk with lower limits refused some."""
    questions = read_questions(write(tmp_path, LINES))
    with small_desk(
        tmp_path / "desk", pages=write_pages(tmp_path / "pages"), questions_at_once=1, questions_waiting=0
    ) as desk:
        assert desk.batch(questions, lambda done, total: None).failed == 0


def test_totals_that_cannot_be_counted_lose_no_answers(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise CapacityError("too little")

    monkeypatch.setattr("cache.analysis.memory_plan.count_tokens", fail)
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages")) as desk:
        result = desk.batch(read_questions(write(tmp_path, LINES)), lambda done, total: None)
    assert len(result.answers) == 4
    tokens = batch_json(result)["tokens"]
    assert tokens["computed_cold_grouped"] is tokens["computed_cold_ungrouped"] is None
    print_batch(batch_json(result))


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs `warmdesk batch` on a small desk with documents; returns its status."""

    @contextmanager
    def open_small(settings: object, purpose: str, *, answers: bool) -> Iterator[Service]:
        with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages")) as desk:
            yield desk

    def run(*arguments: str | Path) -> int:
        monkeypatch.setattr("sys.argv", ["warmdesk", "batch", *map(str, arguments), "--data-dir", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code

    monkeypatch.setattr("app.cli.answers.open_service", open_small)
    return run


def test_the_command_fails_if_a_question_did(command, tmp_path, capsys):
    assert command(write(tmp_path, '"Returns?"\n" "'), "--json") == 1
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert ["error" in answer for answer in answers] == [False, True]
    assert command(write(tmp_path, '"Returns?"')) == 0


def test_an_interrupted_batch_goes_on_from_its_output(command, tmp_path, capsys, monkeypatch):
    questions, output = write(tmp_path, LINES), tmp_path / "answers.jsonl"
    collected = batch.answer_of
    calls: list[object] = []

    def interrupted(*arguments: Any) -> Answer:
        calls.append(arguments)
        if len(calls) % 3 == 0:
            raise KeyboardInterrupt
        return collected(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(batch, "answer_of", interrupted)
        assert command(questions) == 130
        assert capsys.readouterr().err == "error: interrupted\n"
        assert command(questions, "--output", output) == 130
        assert "run the same command again" in capsys.readouterr().err
    kept = output.read_text()
    assert kept.count("\n") == 2
    output.write_text(kept + '{"id": "cut')
    assert command(questions, "--output", output, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["skipped"] == len(document["answers"]) == 2
    assert output.read_text().startswith(kept)
    assert sorted(json.loads(line)["id"] for line in output.read_text().splitlines()) == ["2", "4", "7", "r"]
    assert command(questions, "--output", output) == 0
    assert "4 skipped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("notes\n", "line 1 is not an answer"),
        ('{"id": "1", "question": "other", "answer": "x"}\n', "answers an unknown question"),
        ("notes", "lines that are not answers"),
    ],
)
def test_an_output_of_something_else_is_left_alone(text, message, tmp_path):
    output = tmp_path / "notes"
    output.write_text(text)
    with pytest.raises(DeskError, match=message):
        still_to_answer(read_questions(write(tmp_path, '"Returns?"')), output)
    assert output.read_text() == text
    same_ids = read_questions(write(tmp_path, '{"id": 2, "question": "a"}\n"b"'))
    with pytest.raises(DeskError, match="same id"):
        still_to_answer(same_ids, tmp_path / "new")
