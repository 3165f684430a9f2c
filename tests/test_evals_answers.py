"""The end-to-end check of answers: what counts as right, contradicted, cited and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from desks import small_desk, write_pages

from app.domain.errors import DeskError
from evals.answers import measure_answers


def questions(folder: Path, *rows: dict[str, Any]) -> Path:
    file = folder / "questions.jsonl"
    file.write_text("\n".join(json.dumps({"facts": [], "history": [], **row}) for row in rows))
    return file


def test_every_answer_is_judged_and_no_conversation_is_left(tmp_path: Path) -> None:
    file = questions(
        tmp_path,
        {"question": "Can gift cards be returned?", "article": "gift-cards.md", "facts": ["cannot be returned"]},
        {"question": "How long do returns take?", "article": "returns.md", "facts": ["thirty days", "forty weeks"]},
        {"question": "And the receipt?", "article": "returns.md", "facts": ["receipt"], "history": [["Returns?", ""]]},
        {"question": "Who is the king of Norway?", "article": None},
    )
    said: list[str] = []
    with small_desk(
        tmp_path / "desk", pages=write_pages(tmp_path / "pages"), answer_mode="quote", passages=1, answer_tokens=200
    ) as desk:
        result: Any = measure_answers(desk, file, limit=None, report=said.append)
        assert measure_answers(desk, file, limit=1, report=said.append)["rows"][0]["answerable"] == 1  # type: ignore[index]
        assert desk.conversations() == []
    (row,) = result["rows"]
    assert [answer["verdict"] for answer in result["answers"]] == ["right", "FACTS MISSING", "right", "ANSWERED"]
    assert (row["answerable"], row["unanswerable"], row["facts_right"]) == (3, 1, 0.6667)
    assert (row["cited"], row["contradicted"], row["quoted"]) == (1.0, 0.0, 1.0)
    assert (row["refused_wrong"], row["refused_right"]) == (0.0, 0.0)
    assert said[0].startswith("1/4 right: Can gift cards")


def test_refusals_are_counted_apart(tmp_path: Path) -> None:
    file = questions(
        tmp_path,
        {"question": "How long do returns take?", "article": "returns.md", "facts": ["thirty days"]},
        {"question": "Who is the king of Norway?", "article": None},
    )
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), refuse_below=1.0) as desk:
        result: Any = measure_answers(desk, file, limit=None, report=lambda _: None)
    assert [answer["verdict"] for answer in result["answers"]] == ["REFUSED", "refused"]
    assert (result["rows"][0]["refused_wrong"], result["rows"][0]["refused_right"]) == (1.0, 1.0)


def test_without_questions_or_documents_nothing_is_measured(tmp_path: Path) -> None:
    with small_desk(tmp_path / "desk") as desk:
        with pytest.raises(DeskError, match="there is no file"):
            measure_answers(desk, tmp_path / "none.jsonl", limit=None, report=print)
        with pytest.raises(DeskError, match="no documents"):
            measure_answers(desk, questions(tmp_path), limit=None, report=print)
