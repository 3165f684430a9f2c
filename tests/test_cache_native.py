"""Passes in compiled code against the oracle, and what happens where that code cannot be had."""

import gc
import logging
import os
import platform
import random
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Recorder, answer, running
from test_cache_engine import plan_of
from tiny import ByteTokenizer, make_segment, oracle_logits, stock
from transformers import AutoModelForCausalLM, GemmaConfig, LlamaConfig, Qwen2Config, Qwen3Config

from cache.attention.forward_pass import PassGivenUp, never
from cache.attention.items import Chunk, KVView, ScoredChunk, VisibleRange
from cache.engine.recomputation import SelectiveRecomputation
from cache.engine.request import Request
from cache.memory.arena import Arena, Extent
from cache.model import loading
from cache.model.language_model import LanguageModel
from cache.native.decoder import FLAGS, load_library, rounded
from durable import load_compiled, processor

ROWS = 300
SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 1024}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "yarn": lambda: LlamaConfig(**SHAPE, rope_parameters=YARN),
    "tied": lambda: LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "qwen2, with biases": lambda: Qwen2Config(**SHAPE),
    "qwen3, with norms of queries and keys": lambda: Qwen3Config(**SHAPE, head_dim=64),
}
SYSTEM = make_segment("system", "You answer from the documents. ")
A = make_segment("a", "Returns take 30 days from delivery. " * 9, SYSTEM)
B = make_segment("b", "Gift cards cannot be returned at all, sorry.", SYSTEM)
PLAN = plan_of(SYSTEM, B, A, "Can I return a gift card?")


@pytest.fixture(scope="session")
def compiled(models):
    return models


def weights(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A random model whose numbers are all bfloat16, as those of most models are."""
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.12)
            parameter.copy_(parameter.bfloat16())
    return hf.to(dtype)


def build(hf: Any, compiled: Path | None) -> LanguageModel:
    return LanguageModel(hf, ByteTokenizer(), name="m", fingerprint="m", compiled=compiled)


def counted(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    assert model.native is not None
    passes: list[int] = []
    forward = model.native.forward

    def counting(chunks: Any, *others: Any) -> Any:
        passes.append(sum(len(chunk.tokens) for chunk in chunks))
        return forward(chunks, *others)

    monkeypatch.setattr(model.native, "forward", counting)
    return passes


@pytest.mark.parametrize("family", CONFIGS)
def test_placed_modules_equal_one_forward_with_the_block_mask(family, compiled, monkeypatch):
    model = build(weights(family), compiled)
    passes, recorder = counted(model, monkeypatch), Recorder(model)
    with running(model) as engine:
        engine.encode(list(PLAN.segments())).result()
        answer(engine, PLAN)
    assert passes[-1] == len("Can I return a gift card?")
    expected = oracle_logits(weights(family), PLAN)
    assert (recorder.logits[-1] - expected).abs().max() < 2e-4


@pytest.mark.parametrize("family", CONFIGS)
def test_an_answer_equals_transformers_own_forward(family, compiled, monkeypatch):
    model = build(weights(family), compiled)
    passes, recorder = counted(model, monkeypatch), Recorder(model)
    prompt = b"What came before is gone, unless a layer below has carried it on. Or not?"
    with running(model) as engine:
        at_once = answer(engine, plan_of(prompt.decode()), 12)
    assert passes == [len(prompt)]
    monkeypatch.setattr(model, "decode", lambda *_: None)
    recorder.logits.clear()
    with running(model) as engine:
        completion = answer(engine, plan_of(prompt.decode()), 12)
    assert completion.tokens is not None
    assert passes[-5:] == [1] * 5
    assert at_once.tokens == completion.tokens
    with torch.no_grad():
        whole = weights(family)(input_ids=torch.tensor([[*prompt, *completion.tokens]])).logits[0]
    for row, logits in enumerate(recorder.logits):
        assert (logits - whole[len(prompt) - 1 + row]).abs().max() < 2e-4


SAME = make_segment("the same", bytes(A.tokens).decode(), SYSTEM)


@pytest.mark.parametrize("rows", [16, 430])
@pytest.mark.parametrize("second", [SAME, A], ids=["of another name", "at two places"])
def test_a_question_behind_the_same_passage_twice(second, rows, compiled):
    """Was wrong once where its rows took more than one window. What it leaves behind is right for the next one."""
    model = build(weights("llama"), compiled)
    recorder = Recorder(model)
    begin = ("Is what stands there twice true? " * 14)[:rows]
    first, later = plan_of(SYSTEM, A, second, begin), plan_of(SYSTEM, A, second, begin + " And if not?")
    with running(model) as engine:
        answer(engine, first)
        assert (recorder.logits[-1] - oracle_logits(weights("llama"), first)).abs().max() < 2e-4
        assert answer(engine, later).usage.prefix >= rows
        assert (recorder.logits[-1] - oracle_logits(weights("llama"), later)).abs().max() < 2e-4


def test_rows_computed_again_in_the_same_passage_twice(compiled):
    """Each place has rows of its own that are computed again and hidden, and a question of more than one window."""
    model = build(weights("llama"), compiled)
    recorder = Recorder(model)
    plan, plans = plan_of(SYSTEM, A, SAME, "Is what stands there twice true? " * 5), []
    with running(model) as engine:
        finish = engine._core.row_selector.finish
        engine._core.row_selector.finish = lambda *given: plans.append(finish(*given)) or plans[-1]  # type: ignore[method-assign, func-returns-value]
        engine.submit(Request(plan=plan, recomputation=SelectiveRecomputation(share=0.1)))
        engine.settle()
    (run,) = plans
    assert len(run.spans) > len(plan.spans)
    assert (recorder.logits[0] - oracle_logits(weights("llama"), run)).abs().max() < 2e-4


def chunk(rows: int, first: int, own: Extent, views: list[KVView], position: int) -> Chunk:
    return Chunk([100 + row % 200 for row in range(rows)], list(range(position, position + rows)), first, [own], views)


PARTLY_VISIBLE = KVView(Extent(600, 100), 3, 1, (VisibleRange(0, 40, 1), VisibleRange(60, 100, 3)))
TWICE = [KVView(Extent(580, 3)), KVView(Extent(580, 3), offset=40)]
PACKED = [
    chunk(1, 9, Extent(1100, 64), [KVView(Extent(0, 550), offset=5), *TWICE], 800),
    chunk(1, 19, Extent(1200, 64), [KVView(Extent(0, 550), offset=90)], 900),
    chunk(6, 2, Extent(1300, 64), [PARTLY_VISIBLE, KVView(Extent(0, 550), offset=90)], 900),
    chunk(ROWS - 8, 0, Extent(1400, 400), [], 0),
]


def filled(model: LanguageModel) -> Arena:
    arena = Arena(model.info.kv, 1800, model.device)
    numbers = torch.Generator().manual_seed(1)
    for layer in (*arena.keys, *arena.values):
        layer.copy_(torch.randn(layer.shape, generator=numbers).bfloat16())
    return arena


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.float() - other.float()).abs().max())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_conversations_packed_in_one_pass(threads, compiled):
    """Shared documents, rows hidden from some, chunks of prompts: as through transformers, keys and values too."""
    hf = weights("llama")
    fast, slow = build(hf, compiled), build(hf, None)
    assert slow.native is None
    ours, theirs = filled(fast), filled(slow)
    outputs = [0, 1, 4, 31, ROWS - 1]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        logits = fast.forward(PACKED, ours, outputs)
    finally:
        torch.set_num_threads(before)
    assert distance(logits, slow.forward(PACKED, theirs, outputs)) < 5e-4
    for mine, other in zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True):
        assert distance(mine, other) < 5e-4
    assert torch.equal(ours.positions, theirs.positions)
    assert fast.forward(PACKED, ours, []).shape == (0, 320)


def test_passes_at_once_and_in_a_fork(compiled):
    """The threads belong to one pass at a time, and a fork has none of them: the others run in their caller's."""
    model = build(weights("llama"), compiled)
    once = partial(model.forward, PACKED, outputs=[0, ROWS - 1])
    expected = once(arena=filled(model))
    arenas = [filled(model) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for logits in pool.map(lambda arena: once(arena=arena), arenas):
            assert torch.equal(logits, expected)
    if not (pid := os.fork()):
        os._exit(0 if torch.equal(once(arena=arenas[0]), expected) else 3)
    assert os.waitpid(pid, 0)[1] == 0


@st.composite
def passes(draw: st.DrawFn) -> list[Chunk]:
    """Requests whose rows lie on both sides of the 128th, the 256th ..., that read the same keys at several places, all
    or some of them.
    """
    chunks: list[Chunk] = []
    for i in range(draw(st.integers(1, 4))):
        rows, first = draw(st.sampled_from([1, 9, 126, 150])), draw(st.sampled_from([0, 5]))
        views = [
            KVView(extent, 40 * place, draw(st.integers(0, 8)), draw(PARTS) if extent.length == 100 else ())
            for place, extent in enumerate(draw(st.lists(st.sampled_from(EXTENTS), max_size=4)))
        ]
        chunks.append(chunk(rows, first, Extent(800 + 200 * i, 160), views, 900))
    return chunks


PARTS = st.sampled_from([(), PARTLY_VISIBLE.visible_ranges, (VisibleRange(20, 90, 130),)])


@pytest.fixture(scope="module")
def pair(compiled):
    return build(weights("llama"), compiled), build(weights("llama"), None)


@settings(max_examples=8, deadline=None)
@given(chunks=passes())
def test_any_pass_is_as_through_transformers(chunks, pair):
    fast, slow = pair
    ours, theirs = filled(fast), filled(slow)
    outputs = [*range(sum(len(one.tokens) for one in chunks))]
    assert distance(fast.forward(chunks, ours, outputs), slow.forward(chunks, theirs, outputs)) < 5e-4
    for mine, other in zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True):
        assert distance(mine, other) < 5e-4


EXTENTS = [Extent(0, 550), Extent(580, 3), Extent(600, 100)]
PLACED = [(EXTENTS[0], 5), (EXTENTS[0], 90), (EXTENTS[1], 0), (EXTENTS[1], 40), (EXTENTS[2], 3)]
SCORED = [(0, 1), (2, 4), (3, 0)]
"""Chunks of PACKED, and how many of their last rows are scored; the others read the same extents and are not."""


def squares(model: LanguageModel, passes: list[tuple[list[Chunk], list[tuple[int, int]]]]) -> list[torch.Tensor]:
    arena, layers = filled(model), len(model.info.scored_layers)
    sums = [{placed: torch.zeros(layers, placed[0].length) for placed in PLACED} for _ in SCORED]
    for chunks, scored in passes:
        given = [ScoredChunk(i, rows, sums[n]) for n, (i, rows) in enumerate(scored)]
        model.forward(chunks, arena, [], never, given)
    return [one for sum_ in sums for one in sum_.values()]


@pytest.mark.parametrize("family", CONFIGS)
def test_rows_score_the_keys_that_they_read(family, compiled):
    fast, slow = build(weights(family), compiled), build(weights(family), None)
    for mine, other in zip(squares(fast, [(PACKED, SCORED)]), squares(slow, [(PACKED, SCORED)]), strict=True):
        assert torch.allclose(mine, other, rtol=1e-3, atol=1e-9)
    assert [float(one.sum()) > 0 for one in squares(fast, [(PACKED, SCORED)])[:5]] == [True, False, True, True, False]


def test_rows_score_the_same_in_one_pass_and_in_two(compiled):
    fast = build(weights("llama"), compiled)
    whole = replace(PACKED[2], views=[KVView(Extent(0, 550), offset=90), PARTLY_VISIBLE])
    first, second = replace(whole, tokens=whole.tokens[:4], positions=whole.positions[:4]), whole.last_rows(2)
    in_one = squares(fast, [([whole], [(0, 4)])])
    in_two = squares(fast, [([first], [(0, 2)]), ([second], [(0, 2)])])
    assert any(float(one.sum()) > 0 for one in in_one)
    for one, other in zip(in_one, in_two, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-9)


def test_a_pass_for_scores_alone_ends_behind_the_last_scored_layer(compiled):
    fast = build(weights("llama"), compiled)
    arena = filled(fast)
    before = [layer.clone() for layer in arena.keys]
    nothing = {PLACED[0]: torch.zeros(1, 550)}
    fast.forward(PACKED[:1], arena, [], never, [ScoredChunk(0, 1, nothing)])
    written = [not torch.equal(one, other) for one, other in zip(before, arena.keys, strict=True)]
    assert written == [True, True, False]


@pytest.fixture(params=["native", "x86-64", "x86-64-v3"])
def processors(request, compiled, monkeypatch):
    """Where code for this processor and for older ones is compiled: vectors of 4, 8 and 16 numbers."""
    if request.param != "native" and platform.machine() != "x86_64":
        pytest.skip("another kind of processor")
    if request.param == "x86-64-v3" and "avx512vl" not in processor():
        pytest.skip("a processor with vectors of 8 numbers itself")
    flags = [f"-march={request.param}" if flag == "-march=native" else flag for flag in FLAGS]
    monkeypatch.setattr("cache.native.decoder.FLAGS", flags)
    return compiled / request.param


def test_float32_on_older_processors(processors):
    fast, slow = build(weights("llama"), processors), build(weights("llama"), None)
    assert fast.native is not None
    logits = fast.forward(PACKED, filled(fast), [0, 1, 31, ROWS - 1])
    assert distance(logits, slow.forward(PACKED, filled(slow), [0, 1, 31, ROWS - 1])) < 5e-4


def test_bfloat16_is_no_further_off_than_transformers(processors):
    exact = build(weights("llama"), None)
    expected = exact.forward(PACKED, filled(exact), list(range(ROWS)))
    off = []
    for folder in (processors, None):
        model = build(weights("llama", torch.bfloat16), folder)
        assert (model.native is None) == (folder is None)
        off.append(float((model.forward(PACKED, filled(model), list(range(ROWS))) - expected).abs().mean()))
    ours, theirs = off
    assert 0 < ours < theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_of_8_bits_are_a_little_off(dtype, processors):
    """And another model: what it computes is never taken for what the weights as they are compute."""
    exact, plain = build(weights("tied"), None), build(weights("tied", dtype), processors)
    fast = LanguageModel(
        weights("tied", dtype), ByteTokenizer(), name="m", fingerprint="m", compiled=processors, weights="int8"
    )
    assert fast.native is not None
    logits = fast.forward(PACKED, filled(fast), list(range(ROWS)))
    expected = exact.forward(PACKED, filled(exact), list(range(ROWS)))
    off = (logits - expected).norm() / expected.norm()
    assert 0 < off < (0.06 if dtype == torch.float32 else 0.1)  # rounding the same way in transformers: 0.043
    assert len({model.info.fingerprint for model in (exact, plain, fast)}) == (3 if dtype == torch.bfloat16 else 2)


def test_weights_are_rounded_by_blocks():
    weights = torch.randn(32, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    weights[9, 32:64] = 0
    packed = rounded(weights).view(2, 3, 2, 272).transpose(1, 2).reshape(4, 3, 272)  # pairs of 8 outputs, by 32 inputs
    scales = packed[..., :16].contiguous().view(torch.float16).transpose(1, 2).reshape(32, 3, 1).float()
    numbers = packed[..., 16:].reshape(4, 3, 8, 8, 4).permute(0, 3, 1, 2, 4).reshape(32, 3, 32).view(torch.int8)
    off = numbers * scales - weights.view(32, 3, 32).float()
    assert (off.abs() <= scales * 0.5001).all()
    assert numbers.abs().max() <= 127


def test_a_covered_model_is_loaded_in_bfloat16(compiled, monkeypatch):
    """Also where PyTorch is slow with it, and after an adapter was merged. Was float32 there once: half as fast."""

    def merged() -> Any:
        hf = weights("llama")
        hf.model.layers[1].self_attn.o_proj.weight.data.mul_(1.0001)
        return hf

    monkeypatch.setattr(loading, "load_stock", lambda name, **options: (merged(), None, "m"))
    monkeypatch.setattr(loading, "wrap_tokenizer", lambda tokenizer, name: ByteTokenizer())
    model = loading.load_model("some/model", device="cpu", converted=compiled)
    assert isinstance(model, LanguageModel)
    assert model.native is not None
    assert model.info.kv.dtype == "bfloat16"
    exact = loading.load_model("a/b", device="cpu", converted=compiled, dtype=torch.float32)
    assert exact.info.kv.dtype == "float32"
    assert isinstance(exact, LanguageModel)
    assert exact.native is None  # its weights would be rounded


def test_biases_of_some_layers_stay_with_them(compiled):
    hf = weights("qwen2, with biases")
    for layer, without in zip(hf.model.layers, ("q_proj", "k_proj", "v_proj"), strict=True):
        getattr(layer.self_attn, without).bias = None
    fast, slow = build(hf, compiled), build(hf, None)
    assert fast.native is not None
    assert distance(fast.forward(PACKED, filled(fast), [0, 31]), slow.forward(PACKED, filled(slow), [0, 31])) < 5e-4


def test_the_weights_are_in_memory_once(compiled):
    """Was wrong once: those that the compiled code had packed stayed in transformers' classes as well."""
    hf = weights("llama")
    given_up = weakref.ref(hf)
    model = build(hf, compiled)
    assert model.native is not None
    del hf
    gc.collect()
    assert given_up() is None


def test_a_long_pass_is_given_up_at_its_next_layer(compiled):
    model, asked = build(weights("llama"), compiled), iter([False, True])
    arena = filled(model)
    before = [layer.clone() for layer in arena.keys]
    with pytest.raises(PassGivenUp):
        model.forward(PACKED, arena, [0], lambda: next(asked))
    written = [not torch.equal(one, other) for one, other in zip(before, arena.keys, strict=True)]
    assert written == [True, False, False]
    model.forward(PACKED[:3], arena, [0], lambda: True)  # over sooner than it could be given up


@pytest.mark.parametrize("family", ["gpt2", "gemma", "qwen2", "not bfloat16"])
def test_models_that_are_not_covered_run_without(family, compiled):
    if family == "not bfloat16":
        hf = weights("llama")
        hf.get_input_embeddings().weight.data.mul_(1.0001)
    else:
        hf = AutoModelForCausalLM.from_config(GemmaConfig(**SHAPE)) if family == "gemma" else stock(family)
    assert build(hf, compiled).native is None


def test_it_is_compiled_once_and_a_damaged_one_once_more(tmp_path, monkeypatch, caplog):
    """As a power cut leaves files. Was wrong once: answers were written slowly from then on."""
    source, number = tmp_path / "one.c", random.randrange(10**9)
    source.write_text(f"int number(void) {{ return {number}; }}")  # never compiled before

    def compiled(folder: Path) -> int:
        library = load_compiled(source, ["-shared", "-fPIC"], folder, "")
        return -1 if library is None else library.number()

    assert compiled(tmp_path / "whole") == number
    (kept,) = (tmp_path / "whole").iterdir()
    for left in (b"", bytes(100_000)):
        cut = tmp_path / str(len(left))
        cut.mkdir()
        (cut / kept.name).write_bytes(left)
        assert compiled(cut) == number
    assert caplog.text == ""
    monkeypatch.setattr("durable.compile_library", None)
    assert compiled(tmp_path / "whole") == number
    assert list((tmp_path / "whole").iterdir()) == [kept]


@pytest.mark.parametrize(("compiler", "said"), [("false", "are slower"), ("no-such", "are slower"), (None, "gcc")])
def test_a_compiler_that_fails_leaves_nothing_behind(
    compiler,
    said,
    tmp_path,
    monkeypatch,
    caplog,
):
    monkeypatch.setattr(shutil, "which", lambda _: compiler)
    with caplog.at_level(logging.WARNING):
        assert load_library(tmp_path / str(compiler), torch.float32) is None
    assert said in caplog.text
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
