"""What the doctor says of a model in a folder, which is not loaded, and of a disk that is nearly full."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import FalconConfig, LlamaConfig, MistralConfig

from app.desk.doctor import examine, free_space, language_model
from app.domain.errors import DeskError
from app.domain.settings import Settings
from cache.errors import ModelError


def folder_of(config: object, path: Path) -> Path:
    config.save_pretrained(path)  # type: ignore[attr-defined]
    return path


def test_a_model_that_places_modules_needs_no_remark(tmp_path: Path) -> None:
    folder = folder_of(LlamaConfig(), tmp_path / "llama")
    assert language_model(Settings(data_dir=tmp_path, model=str(folder))) == str(folder)


def test_a_model_with_a_window_is_named_with_its_reason(tmp_path: Path) -> None:
    folder = folder_of(MistralConfig(sliding_window=4096, max_position_embeddings=32_768), tmp_path / "mistral")
    detail = language_model(Settings(data_dir=tmp_path, model=str(folder)))
    assert detail == f"{folder}: exact prefix reuse only, attention is limited to a sliding window of 4096 tokens"


def test_what_cannot_be_served_is_an_error(tmp_path: Path) -> None:
    falcon = folder_of(FalconConfig(), tmp_path / "falcon")
    with pytest.raises(ModelError, match="is of type 'falcon'"):
        language_model(Settings(data_dir=tmp_path, model=str(falcon)))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match="cannot be loaded"):
        language_model(Settings(data_dir=tmp_path, model=str(empty)))


def test_too_little_room_is_told_with_what_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.desk.service.free_bytes", lambda folder: 3 << 30)
    assert free_space(Settings(data_dir=tmp_path)) == "3 GB free"
    monkeypatch.setattr("app.desk.service.free_bytes", lambda folder: 300 << 20)
    with pytest.raises(DeskError, match="300 MB are free; a desk wants 2048 MB"):
        free_space(Settings(data_dir=tmp_path))
    found = {check.name: check for check in examine(Settings(data_dir=tmp_path / "none"))}
    assert not found["free space"].ok
    assert found["python"].ok
