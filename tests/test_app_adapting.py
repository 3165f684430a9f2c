"""`adapt`: lessons from the desk's own passages or from files, taught to a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from desks import small_desk, small_settings, write_pages
from tiny import ByteTokenizer, stock

import app.training.adapt
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.training.adapt import MINUTES, STEPS, adapt, schedule_of
from cache.errors import ModelError
from cache.model.adapters import merge_adapter
from cache.training.examples import Lesson


@pytest.fixture
def taught(monkeypatch: pytest.MonkeyPatch) -> list[Lesson]:
    """The tiny model in place of the one that the settings name; the lessons that were taught."""
    lessons: list[Lesson] = []

    class Training(app.training.adapt.AdapterTraining):
        def __init__(self, hf: Any, lesson_at: Any, *more: Any, **named: Any) -> None:
            super().__init__(hf, lambda step: lessons.append(lesson_at(step)) or lessons[-1], *more, **named)  # type: ignore[func-returns-value]

    monkeypatch.setattr(app.training.adapt, "load_stock", lambda *_, **__: (stock(), None, "tiny"))
    monkeypatch.setattr(app.training.adapt, "ModelTokenizer", lambda _: ByteTokenizer())
    monkeypatch.setattr(app.training.adapt, "AdapterTraining", Training)
    return lessons


def test_a_desk_teaches_from_its_own_passages(tmp_path: Path, taught: list[Lesson]) -> None:
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([write_pages(tmp_path / "pages")])
    settings = small_settings(tmp_path / "desk", adapter="none")
    result = adapt(settings, [], tmp_path / "adapter", steps=3, minutes=None, seed=0, report=lambda progress: None)
    assert (result["steps"], result["documents"], result["files"]) == (3, 4, [])
    assert result["schedule"]["objective"] == "distil"
    assert result["held_out_moved"] >= 0
    asked = {bytes(branch.question).decode() for lesson in taught for branch in lesson.branches}
    assert any("repair" in question for question in asked)
    assert len(taught) == 6, "two a step"
    assert all(lesson.branches and all(len(branch.answer) > 5 for branch in lesson.branches) for lesson in taught)
    texts = [b" ".join(map(bytes, lesson.modules)) for lesson in taught]
    said = [(bytes(b.answer[:-1]), text) for lesson, text in zip(taught, texts, strict=True) for b in lesson.branches]
    assert all(answer in text for answer, text in said), "beginnings of sentences"
    assert any(left_context for lesson in taught for left_context in lesson.left_contexts)
    assert all(len(lesson.modules) > 1 for lesson in taught), "one alone is read as with full attention"
    merge_adapter(stock(), tmp_path / "adapter")


def test_files_bring_their_answers(tmp_path: Path, taught: list[Lesson]) -> None:
    file = tmp_path / "qa.jsonl"
    file.write_text(
        '{"title": "T", "context": "Cups cost 4.", "qas": [{"question": "What do cups cost?", "answers": ["4"]}]}\n'
    )
    settings = small_settings(tmp_path / "desk", adapter="none")
    result = adapt(settings, [file], tmp_path / "adapter", steps=2, minutes=None, seed=0, report=lambda progress: None)
    assert result["schedule"]["objective"] == "answers"
    assert result["held_out_moved"] is None, "full attention is held to nothing"
    answers = {bytes(branch.answer[:-1]).decode() for lesson in taught for branch in lesson.branches}
    assert "Cups cost 4." in answers


def test_how_long_it_takes_unless_told() -> None:
    own, labelled = (schedule_of(labelled=labelled, steps=None, minutes=None, seed=0) for labelled in (False, True))
    assert (own.steps, own.minutes, labelled.steps, labelled.minutes) == (None, MINUTES, STEPS, None)
    for is_labelled in (False, True):
        told = schedule_of(labelled=is_labelled, steps=None, minutes=5.0, seed=0)
        assert (told.steps, told.minutes) == (None, 5.0)
        told = schedule_of(labelled=is_labelled, steps=7, minutes=None, seed=0)
        assert (told.steps, told.minutes) == (7, None)


def test_without_documents_there_is_nothing_to_learn(tmp_path: Path, taught: list[Lesson]) -> None:
    settings = small_settings(tmp_path / "desk", adapter="none")
    with pytest.raises(DeskError, match="ingest documents first, or give --data"):
        adapt(settings, [], tmp_path / "adapter", steps=1, minutes=None, seed=0, report=lambda progress: None)
    assert not taught


def test_files_without_anything_to_teach_are_no_desk(tmp_path: Path, taught: list[Lesson]) -> None:
    long, good = (
        {"title": "T", "context": text, "qas": [{"question": "What do cups cost?", "answers": ["4"]}]}
        for text in ("Cups cost 4. " * 200, "Cups cost 4.")
    )
    file = tmp_path / "qa.jsonl"
    file.write_text(json.dumps(long))
    settings = small_settings(tmp_path / "desk", adapter="none")
    with pytest.raises(DeskError, match=r"none of the 1 documents can be taught: .* 300 tokens at most"):
        adapt(settings, [file], tmp_path / "adapter", steps=1, minutes=None, seed=0, report=lambda progress: None)
    file.write_text(json.dumps(long) + "\n" + json.dumps(good))
    result = adapt(settings, [file], tmp_path / "adapter", steps=1, minutes=None, seed=0, report=lambda progress: None)
    assert (result["documents"], result["left_out"], result["held_out_documents"]) == (1, 1, 0)


def test_the_adapter_in_use_is_not_trained_over(tmp_path: Path, taught: list[Lesson]) -> None:
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([write_pages(tmp_path / "pages")])
    settings, folder = small_settings(tmp_path / "desk", adapter="none"), tmp_path / "adapter"

    def run(settings: Settings, folder: Path) -> dict[str, Any]:
        return adapt(settings, [], folder, steps=1, minutes=None, seed=0, report=lambda progress: None)

    run(settings, folder)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    using = small_settings(tmp_path / "desk", adapter=str(folder))
    with pytest.raises(DeskError, match="holds the adapter in use: --output another folder"):
        run(using, folder)
    run(using, tmp_path / "next")
    on_top = small_settings(tmp_path / "desk", adapter=str(tmp_path / "next"))
    with pytest.raises(ModelError, match="of another model or adapter"):
        run(on_top, folder)
    base = small_settings(tmp_path / "desk", adapter=str(tmp_path / "next" / "base"))
    with pytest.raises(DeskError, match="holds the adapter in use"):
        run(base, tmp_path / "next")
    assert before == {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert run(settings, folder)["steps"] == 1, "its own training is over"
