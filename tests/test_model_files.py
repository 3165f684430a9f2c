"""Where a model's files are, of conversion: two processes that convert one file at the same time. Where weights go."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from cache.errors import ModelError
from cache.model.loading import convert_gguf, load_stock, load_tokenizer
from cache.prompt.parts import Text


class Saved:
    """Stands for a model and for a tokenizer, whose loading and saving transformers answers for."""

    def to(self, _dtype: Any) -> "Saved":
        return self

    def save_pretrained(self, folder: Path) -> None:
        (folder / "config.json").write_text("mine")


class Faster(Saved):
    """While it is saved, another process ends its conversion."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save_pretrained(self, folder: Path) -> None:
        super().save_pretrained(folder)
        self.folder.mkdir()
        (self.folder / "config.json").write_text("theirs")


def load_as(monkeypatch: pytest.MonkeyPatch, model: Saved) -> None:
    for name, loaded in (("AutoModelForCausalLM", model), ("AutoTokenizer", Saved())):
        monkeypatch.setattr(f"transformers.{name}.from_pretrained", lambda *_, loaded=loaded, **__: loaded)


def test_a_conversion_that_another_process_ended_first_is_taken(tmp_path, monkeypatch):
    folder = tmp_path / "models" / "one"
    load_as(monkeypatch, Faster(folder))
    assert convert_gguf(tmp_path / "one.gguf", folder) == folder
    assert (folder / "config.json").read_text() == "theirs"
    assert list(folder.parent.iterdir()) == [folder]  # nothing half converted is left


def test_a_conversion_that_cannot_be_kept_says_so(tmp_path, monkeypatch):
    load_as(monkeypatch, Saved())

    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="read-only"):
        convert_gguf(tmp_path / "one.gguf", tmp_path / "models" / "one")
    assert not list((tmp_path / "models").iterdir())


def test_a_conversion_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Was wrong once: after a power cut the name was there, with a cut file, and every start failed."""
    load_as(monkeypatch, Saved())
    did: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        did.append(Path(f"/proc/self/fd/{file}").readlink().name)
        fsync(file)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda old, new: (did.append("renamed"), replace(old, new)))
    convert_gguf(tmp_path / "one.gguf", tmp_path / "models" / "one")
    assert did[0] == "config.json"
    assert did[1].startswith("converting-")
    assert did[2:] == ["renamed", "models"]


def test_what_killed_conversions_left_is_removed(tmp_path, monkeypatch):
    load_as(monkeypatch, Saved())
    left, running = tmp_path / "models" / "converting-left", tmp_path / "models" / "converting-running"
    for folder in (left, running):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
    os.utime(left, (1000, 1000))
    folder = convert_gguf(tmp_path / "one.gguf", tmp_path / "models" / "one")
    assert {*folder.parent.iterdir()} == {folder, running}


def test_the_header_is_read_once(monkeypatch, tmp_path):
    read: list[str] = []
    monkeypatch.setattr("gguf.GGUFReader", lambda path: read.append(path) or object())

    def load(*_: Any, gguf_file: str, **__: Any) -> Saved:
        import gguf

        gguf.GGUFReader(gguf_file)
        return Saved()

    for name in ("AutoModelForCausalLM", "AutoTokenizer"):
        monkeypatch.setattr(f"transformers.{name}.from_pretrained", load)
    convert_gguf(tmp_path / "one.gguf", tmp_path / "models" / "one")
    assert read == ["one.gguf"]


def test_tokens_are_counted_without_the_weights(bundled_model, tmp_path):
    """Was wrong once: an ingest dequantised the whole model first, and nothing was kept if it was killed meanwhile."""
    tokenizer, positions = load_tokenizer(None, converted=tmp_path)
    other, its_positions = load_tokenizer(None, converted=bundled_model.parent)
    assert not [*tmp_path.iterdir()]
    assert (positions, tokenizer.template, tokenizer.sink_prefix) == (its_positions, other.template, other.sink_prefix)
    for is_structural in (False, True):
        run = [Text(text="A <|im_end|> of 12.5 %,\n\n  and 退款 and\tso on.", structural=is_structural)]
        assert tokenizer.encode(run) == other.encode(run)
        assert tokenizer.decode(tokenizer.encode(run)) == other.decode(other.encode(run))


def test_weights_go_straight_to_the_device(tiny_folder, monkeypatch):
    """Was wrong once: all of them were in host memory first. The device "meta" stands for a GPU."""

    def moved(*_: Any) -> None:
        raise AssertionError("they were somewhere else before")

    monkeypatch.setattr(PreTrainedModel, "to", moved)
    for device in (torch.device("meta"), torch.device("cpu")):
        hf, _, _ = load_stock(str(tiny_folder), device=device, converted=tiny_folder.parent, dtype=torch.float32)
        assert {one.device for one in (*hf.parameters(), *hf.buffers())} == {device}
        assert hf.dtype == torch.float32


def test_a_model_that_does_not_fit_is_said(tiny_folder, monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 14.00 GiB.")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", full)
    with pytest.raises(ModelError, match=r"does not fit into the device's memory \(CUDA out of memory.* smaller model"):
        load_stock(str(tiny_folder), device=torch.device("cpu"), converted=tiny_folder.parent)
