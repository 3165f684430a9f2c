"""`adapt`: examples from the desk's own passages or from files, and a tiny model trained on them."""

import json
from pathlib import Path
from typing import Any

import pytest
from desks import small_desk, write_pages
from tiny import ByteTokenizer, stock
from tiny_desk import small_settings

import app.training.adapt
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.training.adapt import MINUTES, STEPS, adapt, schedule_of
from cache.errors import ModelError
from cache.model.loading import merge_adapter
from cache.training.examples import TrainingExample


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[TrainingExample]:
    """The tiny model in place of the one that the settings name; the examples that were trained on."""
    examples: list[TrainingExample] = []

    class Training(app.training.adapt.AdapterTraining):
        def __init__(self, hf: Any, example_at: Any, *more: Any, **named: Any) -> None:
            super().__init__(hf, lambda step: examples.append(example_at(step)) or examples[-1], *more, **named)  # type: ignore[func-returns-value]

    monkeypatch.setattr(app.training.adapt, "load_stock", lambda *_, **__: (stock(), None, "tiny"))
    monkeypatch.setattr(app.training.adapt, "ModelTokenizer", lambda _: ByteTokenizer())
    monkeypatch.setattr(app.training.adapt, "AdapterTraining", Training)
    return examples


def test_a_desk_trains_on_its_own_passages(tmp_path: Path, trained_on: list[TrainingExample]) -> None:
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([write_pages(tmp_path / "pages")])
    settings = small_settings(tmp_path / "desk", adapter="none")
    result = adapt(settings, [], tmp_path / "adapter", steps=3, minutes=None, seed=0, report=lambda progress: None)
    assert (result["steps"], result["documents"], result["files"]) == (3, 4, [])
    assert result["schedule"]["objective"] == "distil"
    written = json.loads((tmp_path / "adapter" / "training.json").read_text())["schedule"]
    assert written == result["schedule"]
    assert written["lessons"] == written["batch_size"] == 2, "the key has an older name"
    assert result["held_out_moved"] >= 0
    asked = {bytes(query.question).decode() for example in trained_on for query in example.queries}
    assert any("repair" in question for question in asked)
    assert len(trained_on) == 6, "two a step"
    assert all(example.queries and all(len(query.answer) > 5 for query in example.queries) for example in trained_on)
    texts = [b" ".join(map(bytes, example.modules)) for example in trained_on]
    said = [
        (bytes(query.answer[:-1]), text)
        for example, text in zip(trained_on, texts, strict=True)
        for query in example.queries
    ]
    assert all(answer in text for answer, text in said), "beginnings of sentences"
    assert any(left_context for example in trained_on for left_context in example.left_contexts)
    assert all(len(example.modules) > 1 for example in trained_on), "one alone is read as with full attention"
    merge_adapter(stock(), tmp_path / "adapter")


def test_files_bring_their_answers(tmp_path: Path, trained_on: list[TrainingExample]) -> None:
    file = tmp_path / "qa.jsonl"
    file.write_text(
        '{"title": "T", "context": "Cups cost 4.", "qas": [{"question": "What do cups cost?", "answers": ["4"]}]}\n'
    )
    settings = small_settings(tmp_path / "desk", adapter="none")
    result = adapt(settings, [file], tmp_path / "adapter", steps=2, minutes=None, seed=0, report=lambda progress: None)
    assert result["schedule"]["objective"] == "answers"
    assert result["held_out_moved"] is None, "full attention is held to nothing"
    answers = {bytes(query.answer[:-1]).decode() for example in trained_on for query in example.queries}
    assert "Cups cost 4." in answers


def test_how_long_it_takes_unless_told() -> None:
    own, labelled = (schedule_of(labelled=labelled, steps=None, minutes=None, seed=0) for labelled in (False, True))
    assert (own.steps, own.minutes, labelled.steps, labelled.minutes) == (None, MINUTES, STEPS, None)
    for is_labelled in (False, True):
        told = schedule_of(labelled=is_labelled, steps=None, minutes=5.0, seed=0)
        assert (told.steps, told.minutes) == (None, 5.0)
        told = schedule_of(labelled=is_labelled, steps=7, minutes=None, seed=0)
        assert (told.steps, told.minutes) == (7, None)


def test_without_documents_there_is_nothing_to_learn(tmp_path: Path, trained_on: list[TrainingExample]) -> None:
    settings = small_settings(tmp_path / "desk", adapter="none")
    for match in ("ingest documents first, or set --data", "is not there yet, or empty: ingest documents first"):
        with pytest.raises(DeskError, match=match):
            adapt(settings, [], tmp_path / "adapter", steps=1, minutes=None, seed=0, report=lambda progress: None)
        settings.data_dir.mkdir(exist_ok=True)
    assert not list(settings.data_dir.iterdir())
    assert not trained_on


def test_files_without_anything_to_train_on_are_no_desk(tmp_path: Path, trained_on: list[TrainingExample]) -> None:
    long, good = (
        {"title": "T", "context": text, "qas": [{"question": "What do cups cost?", "answers": ["4"]}]}
        for text in ("Cups cost 4. " * 200, "Cups cost 4.")
    )
    file = tmp_path / "qa.jsonl"
    file.write_text(json.dumps(long))
    settings = small_settings(tmp_path / "desk", adapter="none")
    with pytest.raises(DeskError, match=r"none of the 1 documents can be trained on: .* 300 tokens at most"):
        adapt(settings, [file], tmp_path / "adapter", steps=1, minutes=None, seed=0, report=lambda progress: None)
    file.write_text(json.dumps(long) + "\n" + json.dumps(good))
    result = adapt(settings, [file], tmp_path / "adapter", steps=1, minutes=None, seed=0, report=lambda progress: None)
    assert (result["documents"], result["left_out"], result["held_out_documents"]) == (1, 1, 0)


def test_the_adapter_in_use_is_not_trained_over(tmp_path: Path, trained_on: list[TrainingExample]) -> None:
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
