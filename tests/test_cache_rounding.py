"""Weights of 8 bits through torchao, on a processor: how far logits are off, and what cannot be had."""

from typing import Any

import pytest
import torch
from recording import running
from test_cache_engine import SYSTEM, plan_of
from tiny import ByteTokenizer, build, make_segment, stock

from cache.engine.request import Request
from cache.errors import ModelError
from cache.memory.keys import digest
from cache.model import loading
from cache.model.language_model import LanguageModel
from cache.model.loading import check_rounding, round_weights

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PLAN = plan_of(SYSTEM, make_segment("a", "Returns take a month.", SYSTEM), "Gift?")


@pytest.fixture
def torchao():
    pytest.importorskip("torchao", reason="needs pip install -e '.[gpu]'")


def rounded_model(weights: Any, dtype: torch.dtype = torch.float32) -> LanguageModel:
    hf = stock("llama", dtype=dtype)
    mark = round_weights(hf, weights)
    return LanguageModel(hf, ByteTokenizer(), name="llama", fingerprint=digest("llama", mark))


@pytest.mark.usefixtures("torchao")
@pytest.mark.parametrize(("weights", "allowed"), [("int8", 0.03), ("fp8", 0.1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_are_a_little_off(weights, allowed, dtype):
    """Behind a placed module."""
    logits = []
    for model in (build(dtype=dtype), rounded_model(weights, dtype)):
        with running(model) as engine:
            completion = engine.submit(Request(plan=PLAN, teacher_forced=(1, 2, 3))).completion
        assert completion.logits is not None
        logits.append(completion.logits)
    off = (logits[1] - logits[0]).norm() / logits[0].norm()
    assert 0 < off < allowed


@pytest.mark.usefixtures("torchao")
def test_only_linear_layers_before_the_head_are_rounded():
    hf, exact = stock("llama"), stock("llama")
    round_weights(hf, "int8")
    changed = {
        name.rsplit(".", 2)[-2]
        for (name, new), old in zip(hf.named_parameters(), exact.parameters(), strict=True)
        if type(new.data) is not torch.Tensor or not torch.equal(new, old)
    }
    assert changed == {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
    assert hf.dtype == exact.dtype
    with pytest.raises(ModelError, match="models of type 'gpt2' have no weights to round"):
        round_weights(stock("gpt2"), "int8")


def test_a_model_on_a_gpu_is_rounded_and_another_one(tiny_folder, monkeypatch):
    """On a device that is no processor; nothing is computed there."""
    rounded: list[str] = []

    def note(hf: Any, weights: str) -> str:
        rounded.append(weights)
        return weights

    monkeypatch.setattr(loading, "check_rounding", lambda weights, device: None)
    monkeypatch.setattr(loading, "round_weights", note)
    prints = {
        loading.load_model(
            str(tiny_folder), device="meta", converted=tiny_folder.parent, dtype=torch.float32, weights=weights
        ).info.fingerprint
        for weights in ("model", "int8", "fp8")
    }
    assert rounded == ["int8", "fp8"]
    assert len(prints) == 3


def test_what_cannot_be_had_is_one_line_before_the_model_is_loaded(tiny_folder, monkeypatch):
    with pytest.raises(ModelError, match=r'weights = "fp8" needs a GPU, not cpu: .*"int8"'):
        loading.load_model(str(tiny_folder / "no"), device="cpu", converted=tiny_folder.parent, weights="fp8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    check_rounding("model", CUDA)
    check_rounding("int8", CPU)
    monkeypatch.setattr(loading, "find_spec", lambda name: object())
    check_rounding("int8", CUDA)
    with pytest.raises(ModelError, match=r'capability 8\.9 or higher, cuda:0 has 8\.6: set weights = "int8"'):
        check_rounding("fp8", CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    check_rounding("fp8", CUDA)
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="needs torchao on a GPU: pip install torchao"):
        check_rounding("int8", CUDA)
