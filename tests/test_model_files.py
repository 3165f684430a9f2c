"""Where a model's files are, their digests and tokenizers, and where weights go."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel

from cache.errors import ModelError
from cache.memory.keys import file_digest
from cache.model import source
from cache.model.loading import load_stock
from cache.model.source import ModelSource, load_positions, load_tokenizer, stored_digest
from cache.prompt.parts import Text


def test_a_tokenizer_needs_no_model_code(bundled_model):
    """Was wrong once: the pages' process imported 50 MB of it."""
    source = ModelSource(str(bundled_model), True, "")
    assert type(source.load_tokenizer()) is type(source.load(AutoTokenizer))


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A large file that was written a while ago, and how often it was read."""
    monkeypatch.setattr(source, "LARGE", 4)
    monkeypatch.setattr(source, "SETTLED_S", -60.0)
    read: list[Path] = []
    monkeypatch.setattr(source, "file_digest", lambda path: read.append(path) or file_digest(path))
    file = tmp_path / "large.gguf"
    file.write_bytes(b"content")
    return file, read


def test_a_large_file_is_read_once(large, tmp_path):
    """Was wrong once: each start read all of a model twice, in two processes."""
    file, read = large
    (tmp_path / "small.json").write_text("{}")
    first = [stored_digest(file, tmp_path / "models") for _ in range(3)]
    assert first == [file_digest(file)] * 3
    assert read == [file]
    for _ in range(2):
        stored_digest(tmp_path / "small.json", tmp_path / "models")
    assert len(read) == 3
    assert [*(tmp_path / "models").iterdir()] == [tmp_path / "models" / source.DIGESTS]


def test_another_file_of_the_same_size_and_time_is_read(large, tmp_path):
    file, read = large
    before = file.stat()
    stored_digest(file, tmp_path)
    file.write_bytes(b"CONTENT")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert stored_digest(file, tmp_path) == file_digest(file)
    assert len(read) == 2


def test_a_digest_is_not_stored_for_a_file_that_has_just_changed(large, tmp_path, monkeypatch):
    file, read = large
    monkeypatch.setattr(source, "SETTLED_S", 60.0)
    for _ in range(2):
        stored_digest(file, tmp_path)
    assert len(read) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"large.gguf": 1}', '{"large.gguf": [[1], "x", "y"]}', "\x00"])
def test_damaged_digests_are_read_again(large, tmp_path, content):
    file, read = large
    (tmp_path / source.DIGESTS).write_text(content)
    assert [stored_digest(file, tmp_path) for _ in range(2)] == [file_digest(file)] * 2
    assert read == [file]


def test_digests_that_cannot_be_stored_do_no_harm(large, tmp_path):
    file, read = large
    (tmp_path / "models").write_text("a file in its place")
    assert [stored_digest(file, tmp_path / "models") for _ in range(2)] == [file_digest(file)] * 2
    assert len(read) == 2


TOKENS = [
    49, 1761, 282, 216, 33, 34, 30, 37, 2471, 28, 8866, 284, 216, 24838, 218, 177, 122, 139, 284, 197, 559, 335, 30
]  # fmt: skip
"""By transformers, which converts the bundled file for seven seconds; `test_cache_gguf_tokenizer` compares others."""


def test_tokens_are_counted_without_the_weights(tmp_path):
    """Was wrong once: an ingest dequantised the whole model first, and nothing was kept if it was killed meanwhile."""
    tokenizer = load_tokenizer(None, converted=tmp_path)
    assert load_positions(None, converted=tmp_path) == 8192
    assert not any(one.is_dir() for one in tmp_path.iterdir())
    text = "A line of 12.5 %,\n\n  and 退款 and\tso on."
    assert [*tokenizer.encode([Text(text=text)])] == TOKENS
    assert tokenizer.decode(TOKENS) == text


@pytest.mark.parametrize(
    "content", [b"GGUF and nothing else", b"GGUF\3\0\0\0" + b"\xff\xff\xff\xff\0\0\0\0" * 2 + b"abcdefgh"]
)
@pytest.mark.parametrize("load", [load_tokenizer, load_positions, partial(load_stock, device=torch.device("cpu"))])
def test_a_damaged_file_is_one_line(tmp_path, load, content):
    """Was wrong once: a file that ends early was a stack trace."""
    file = tmp_path / "damaged.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"'.*damaged\.gguf' cannot be (loaded|read)"):
        load(str(file), converted=tmp_path / "models")


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
