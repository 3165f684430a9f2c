"""Models that run from a GGUF file as it is: reading it, the products of its weights, and passes against the oracle."""

import ctypes
import json
import shutil
import subprocess
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from test_cache_native import PACKED, distance, filled
from tiny import ByteTokenizer
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from cache.attention.items import Chunk
from cache.errors import ModelError
from cache.memory.arena import Arena, Extent
from cache.model import loading, source
from cache.model.dequantised import dequantised
from cache.model.gguf_file import PACKED_KINDS, GGUFFile, GGUFTensor, Values, ends_of, why_not_packed
from cache.model.language_model import LanguageModel
from cache.model.packed_model import PackedModel, rotation_of
from cache.model.source import open_gguf
from cache.native.decoder import SOURCE, load_library
from durable import FLAGS, NATIVE

SAMPLE = Path(__file__).parents[1] / "data/knowledge"
RANDOM = np.random.default_rng(0)
SCALED = {Numbers.Q6_K: (208, 1), Numbers.Q4_K: (0, 2), Numbers.Q5_K: (0, 2)}
"""Where the scales of a block are, and how many; at its begin in others."""


@pytest.fixture(scope="session")
def library(bundled_model):
    found = load_library(bundled_model.parent, torch.bfloat16)
    assert found is not None
    found.warmdesk_packed_bytes.restype = ctypes.c_size_t
    return found


def random_blocks(kind: Numbers, rows: int, columns: int) -> "np.ndarray[Any, Any]":
    """Rows of a type's blocks: random numbers under small scales."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = RANDOM.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    at, count = SCALED.get(kind, (0, 2 if kind in (Numbers.Q4_1, Numbers.Q5_1) else 1))
    scales = RANDOM.uniform(0.0001, 0.0002, (rows, columns // block, count))
    if count == 2:
        scales[..., 1] = 7.5 * scales[..., 0]  # weights on both sides of zero
    raw[..., at : at + 2 * count] = scales.astype(np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


def pointer(array: "np.ndarray[Any, Any]") -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def products(library: Any, kind: Numbers, blocks: "np.ndarray[Any, Any]", x: Any, is_plain: bool = False) -> Any:
    outputs, (rows, inputs) = len(blocks), x.shape
    sizes = ctypes.c_long(outputs), ctypes.c_long(inputs)
    weights = np.zeros(library.warmdesk_packed_bytes(int(kind), *sizes), np.uint8)
    library.warmdesk_repack(int(kind), pointer(blocks), *sizes, 0, 1, pointer(weights))
    found = np.zeros((rows, outputs), np.float32)
    shape = ctypes.c_long(rows), sizes[1]
    library.warmdesk_multiply(int(kind), pointer(weights), sizes[0], pointer(x), *shape, is_plain, pointer(found))
    return found


@pytest.mark.parametrize("rows", [1, 7, 37])
@pytest.mark.parametrize("kind", PACKED_KINDS, ids=lambda kind: kind.name)
def test_products_of_packed_weights(kind, rows, library):
    """Against float64 on what gguf reads from the blocks, with activations rounded alike; and the plain version."""
    blocks = random_blocks(kind, 64, 1024)
    exact = gguf.quants.dequantize(blocks, kind).astype(np.float64)
    x = RANDOM.standard_normal((rows, 1024)).astype(np.float32)
    scales = np.abs(x.reshape(rows, -1, 32)).max(2, keepdims=True) / 127
    rounded = (np.rint(x.reshape(rows, -1, 32) / scales) * scales).reshape(rows, 1024)
    expected = rounded.astype(np.float64) @ exact.T
    found, plain = (products(library, kind, blocks, x, is_plain) for is_plain in (False, True))
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)  # scales are of half precision
    assert np.linalg.norm(found - plain) < 1e-6 * np.linalg.norm(plain)


@pytest.mark.parametrize("processor", ["haswell", "armv8.2-a+dotprod", "armv8.2-a"])
def test_products_of_other_processors(processor, tmp_path):
    """ARM in an emulator: right, but nothing is known about their speed."""
    is_arm = processor.startswith("arm")
    compiler, emulator = ("aarch64-linux-gnu-gcc", ["qemu-aarch64"]) if is_arm else ("gcc", [])
    if not all(map(shutil.which, (compiler, *emulator))):
        pytest.skip("needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user")
    if not is_arm and " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs AVX2")
    flags = [flag for flag in FLAGS if flag not in (NATIVE, "-fPIC", "-shared", "-fopenmp")]
    where = ["-I", str(SOURCE.parent), str(Path(__file__).with_name("packed_products.c"))]
    program = str(tmp_path / "products")
    run = partial(subprocess.run, check=True, timeout=120)
    run([compiler, *flags, f"-march={processor}", "-static", *where, "-o", program, "-lm"])
    run([*emulator, program])


@pytest.mark.parametrize("number", [0, 255])
@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("kind", PACKED_KINDS, ids=lambda kind: kind.name)
def test_the_largest_numbers_do_not_overflow(kind, rows, number, library):
    """All weights and activations are as large as they can be, of either sign: sums are made in 16 bits."""
    blocks = random_blocks(kind, 64, 256)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    at, count = SCALED.get(kind, (0, 2 if kind in (Numbers.Q4_1, Numbers.Q5_1) else 1))
    is_scale = np.isin(np.arange(blocks.shape[1]) % size, range(at, at + 2 * count))
    blocks[:, ~is_scale] = 128 if kind == Numbers.Q8_0 else number
    expected = gguf.quants.dequantize(blocks, kind).astype(np.float64).sum(1)
    for sign in (1, -1):
        found = products(library, kind, blocks, np.full((rows, 256), sign, np.float32))
        assert np.allclose(found, sign * expected, rtol=2e-3, atol=1e-3), sign


@pytest.mark.parametrize("kind", [*PACKED_KINDS, Numbers.F16, Numbers.BF16, Numbers.F32], ids=lambda kind: kind.name)
def test_rows_are_read_as_gguf_reads_them(kind, library):
    if kind in PACKED_KINDS:
        rows = random_blocks(kind, 3, 512)
    else:
        rows = gguf.quants.quantize(RANDOM.standard_normal((3, 512)).astype(np.float32), kind).view(np.uint8)
    found = np.zeros((3, 512), np.float32)
    library.warmdesk_unpack_row(int(kind), pointer(rows), ctypes.c_long(3 * 512), pointer(found))
    read = rows.view({Numbers.F16: np.float16, Numbers.F32: np.float32}.get(kind, np.uint8))
    assert np.array_equal(found, gguf.quants.dequantize(read, kind))


SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
}
GEMMA = {"head_dim": 64, "attn_logit_softcapping": None, "final_logit_softcapping": None, "sliding_window": 64}
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
FAMILIES: dict[str, Any] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "phi3": partial(Phi3Config, pad_token_id=None),
    "gemma": partial(GemmaConfig, head_dim=64),
    "gemma2": partial(Gemma2Config, **GEMMA | CAPS | {"sliding_window": 4096, "query_pre_attn_scalar": 64}),
    "gemma3": partial(
        Gemma3TextConfig, **GEMMA, query_pre_attn_scalar=64, layer_types=["sliding_attention", "full_attention"]
    ),
}
VALUES: dict[str, dict[str, Any]] = {
    "gemma2": {f"gemma2.{name}": value for name, value in CAPS.items()} | {"gemma2.attention.sliding_window": 4096},
    "gemma3": {
        "gemma3.rope.freq_base": 1000000.0,
        "gemma3.attention.sliding_window": 64,
        "gemma3.attention.sliding_window_pattern": 2,
    },
}
MIXTURES = {
    "Q4_1": {"": "Q4_1", "output": "Q8_0", "token_embd": "Q8_0"},
    "Q4_K_M": {"": "Q4_K", "output": "Q6_K", "attn_v": "Q6_K", "ffn_down": "Q6_K"},
    "Q5_0, some in F16": {"": "Q5_0", "attn_k": "F16", "ffn_up": "F16", "token_embd": "F16"},
    "BF16": {"": "BF16"},
}
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
PHI = {"ffn_up": "mlp.gate_up_proj"}
SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def write(path: Path, family: str, mixture: str, **values: Any) -> Any:
    """Write a random model of a family. Returns transformers' with the same weights in float32."""
    hf = AutoModelForCausalLM.from_config(FAMILIES[family](**SHAPE), dtype=torch.float32).eval()
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(4096)
    writer.add_embedding_length(256)
    writer.add_block_count(2)
    writer.add_feed_forward_length(512)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(getattr(hf.config, "head_dim", None) or 64)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_eos_token_id(258)
    writer.add_eot_token_id(259)
    for key, value in (VALUES.get(family, {}) | values).items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    whole = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    for index in range(2):
        names = NAMES | (PHI if family == "phi3" else SANDWICH if family in ("gemma2", "gemma3") else {})
        whole |= {f"blk.{index}.{name}": f"model.layers.{index}.{module}" for name, module in names.items()}
    numbers = dict(hf.named_parameters())
    if "gemma" in family:
        hf.tie_weights()
        whole.pop("output")
    for name, module in whole.items():
        for kind in ("weight", "bias"):
            if (parameter := numbers.get(f"{module}.{kind}")) is None:
                continue
            rows = RANDOM.standard_normal(parameter.shape).astype(np.float32) * 0.1
            if parameter.dim() == 1:
                rows = rows + np.float32(1.0 if "norm" in name else 0.0)
                writer.add_tensor(f"{name}.{kind}", rows)
                rows = rows - np.float32("gemma" in family)  # which adds 1
            else:
                short = name.rsplit(".", 1)[-1]
                wanted = Numbers[MIXTURES[mixture].get(short, MIXTURES[mixture][""])]
                is_k = wanted in SCALED
                blocks = random_blocks(wanted, *rows.shape) if is_k else gguf.quants.quantize(rows, wanted)
                writer.add_tensor(f"{name}.{kind}", blocks, raw_dtype=wanted)
                rows = gguf.quants.dequantize(blocks, wanted)
                if family == "llama" and short in ("attn_q", "attn_k"):
                    rows = rows.reshape(-1, 32, 2, 256).swapaxes(1, 2).reshape(rows.shape)
            parameter.data.copy_(torch.from_numpy(np.array(rows)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return hf


def test_a_file_is_mapped_once_while_it_is_used(tmp_path):
    write(tmp_path / "m.gguf", "llama", "Q4_1")
    first = open_gguf(tmp_path / "m.gguf")
    assert open_gguf(tmp_path / "m.gguf") is first
    write(tmp_path / "m.gguf", "llama", "BF16")
    assert open_gguf(tmp_path / "m.gguf") is not first


@pytest.mark.parametrize(
    ("family", "mixture"),
    [
        *(("llama", mixture) for mixture in MIXTURES),
        *zip(sorted(FAMILIES.keys() - {"llama", "gemma3"}), cycle(MIXTURES), strict=False),
    ],
)
def test_a_pass_is_as_through_transformers_on_the_same_weights(family, mixture, library, tmp_path):
    """But for activations of 8 bits (3.7 % of the logits of random weights) and keys and values in bfloat16."""
    hf = write(tmp_path / "m.gguf", family, mixture)
    file = GGUFFile(tmp_path / "m.gguf")
    assert why_not_packed(file) == ""
    fast = PackedModel(file, ByteTokenizer(), library, name="m", fingerprint="m")
    slow = LanguageModel(hf, ByteTokenizer(), name="m", fingerprint="m")
    assert fast.info.stop_tokens == {258, 259}
    rows = [*range(sum(len(one.tokens) for one in PACKED))]
    logits = fast.forward(PACKED, filled(fast), rows)  # type: ignore[arg-type]
    expected = slow.forward(PACKED, filled(slow), rows)
    assert (logits - expected).norm() < 0.06 * expected.norm()
    assert fast.info.fingerprint != slow.info.fingerprint


def test_the_bundled_file_agrees_with_itself_in_float32(library, bundled_model):
    """By divergence in nats per token, over a page of the sample shop; the goal is .01, found were .003."""
    path = source.bundled_gguf()
    file, tokenizer = GGUFFile(path), source.find_source(None, bundled_model.parent).load_tokenizer()
    page = (SAMPLE / "returns/christmas-returns.md").read_text(encoding="utf-8")
    tokens = tokenizer(page, add_special_tokens=False)["input_ids"][:120]
    fast = PackedModel(file, tokenizer, library, name="m", fingerprint="m")
    arena, rows = Arena(fast.info.kv, 160, fast.device), range(len(tokens))
    found = fast.forward([Chunk(tokens, rows, 0, [Extent(0, len(tokens))], [])], arena, rows).log_softmax(-1)
    hf = dequantised(file, "m", torch.float32, torch.device("cpu"))
    with torch.no_grad():
        expected = hf(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
    assert (expected.exp() * (expected - found)).sum(-1).mean() < 0.01


@pytest.mark.parametrize("mixture", ["Q4_K_M", "BF16"])
def test_some_layers_see_only_a_window(mixture, library, tmp_path):
    """A prompt and a token behind it, with the angles and windows of each layer, against transformers' own forward."""
    hf = write(tmp_path / "m.gguf", "gemma3", mixture)
    file = GGUFFile(tmp_path / "m.gguf")
    assert why_not_packed(file) == ""
    fast = PackedModel(file, ByteTokenizer(), library, name="m", fingerprint="m")
    assert (fast.info.position_scheme, fast.info.max_positions) == ("none", 4096)
    tokens, own, arena = RANDOM.integers(0, 256, 151).tolist(), [Extent(40, 151)], Arena(fast.info.kv, 200, fast.device)
    first = fast.forward([Chunk(tokens[:150], range(150), 0, own, [])], arena, range(150))
    last = fast.forward([Chunk(tokens[150:], [150], 150, own, [])], arena, [0])
    with torch.no_grad():
        expected = hf(input_ids=torch.tensor([tokens])).logits[0]
    assert (torch.cat((first, last)) - expected).norm() < (0.06 if mixture == "Q4_K_M" else 0.02) * expected.norm()


@pytest.mark.parametrize("mixture", ["Q4_1", "Q5_0, some in F16"])
def test_an_adapter_is_added_to_packed_weights(mixture, library, tmp_path):
    """Its rank is no multiple of 32, and some layers have none. Beside weights that are not packed, it is merged."""
    hf = write(tmp_path / "m.gguf", "llama", mixture)
    adapter = {}
    for name, linear in hf.named_modules():
        if isinstance(linear, torch.nn.Linear) and name != "lm_head" and name != "model.layers.1.mlp.up_proj":
            outputs, inputs = linear.weight.shape
            adapter[name] = torch.randn(40, inputs) * 0.05, torch.randn(outputs, 40) * 0.05
            linear.weight.data += adapter[name][1] @ adapter[name][0]
    file = GGUFFile(tmp_path / "m.gguf")
    assert why_not_packed(file, adapter) == ""
    fast = PackedModel(file, ByteTokenizer(), library, adapter, name="m", fingerprint="m")
    slow = LanguageModel(hf, ByteTokenizer(), name="m", fingerprint="m")
    rows = [*range(sum(len(one.tokens) for one in PACKED))]
    logits, expected = (model.forward(PACKED, filled(model), rows) for model in (fast, slow))  # type: ignore[arg-type]
    assert (logits - expected).norm() < 0.06 * expected.norm()
    plain = PackedModel(file, ByteTokenizer(), library, name="m", fingerprint="m")
    assert (plain.forward(PACKED, filled(plain), rows) - expected).norm() > 0.1 * expected.norm()  # type: ignore[arg-type]
    assert "rank 65" in why_not_packed(file, {"model.layers.0.mlp.up_proj": (torch.ones(65, 256), torch.ones(512, 65))})
    assert "lm_head" in why_not_packed(file, {"lm_head": (torch.ones(8, 256), torch.ones(320, 8))})


def save_plain_adapter(folder: Path, rank: int, **config: Any) -> None:
    folder.mkdir()
    given = {"peft_type": "LORA", "bias": "none", "init_lora_weights": True, "r": rank, "lora_alpha": 2 * rank} | config
    (folder / "adapter_config.json").write_text(json.dumps(given))
    place = "base_model.model.model.layers.0.mlp.up_proj.lora_"
    tensors = {f"{place}A.weight": torch.ones(rank, 256), f"{place}B.weight": torch.ones(512, rank)}
    save_file(tensors, folder / "adapter_model.safetensors")


def test_a_file_is_loaded_as_it_is_with_adapters_one_upon_another(library, written, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "load_tokenizer", lambda name, converted: ByteTokenizer())
    monkeypatch.setattr(loading, "load_library", lambda folder, dtype: library)
    save_plain_adapter(tmp_path / "adapter", 4)
    save_plain_adapter(tmp_path / "adapter" / "base", 8)
    pairs = loading.stacked_adapters(tmp_path / "adapter")
    assert pairs is not None
    ((first, second),) = pairs.values()
    assert (first.shape, second.shape) == ((12, 256), (512, 12))
    assert second.unique().tolist() == [2.0]  # alpha / r
    load = partial(loading.load_model, str(written), device="cpu", converted=tmp_path / "models")
    plain, adapted = load(), load(adapter=tmp_path / "adapter")
    assert (type(plain), type(adapted)) == (PackedModel, PackedModel)
    assert plain.info.fingerprint != adapted.info.fingerprint
    save_plain_adapter(tmp_path / "other", 4, use_dora=True)
    assert loading.stacked_adapters(tmp_path / "other") is None
    with pytest.raises(ModelError, match="there is no adapter in"):
        load(adapter=tmp_path / "none")


def test_frequencies_have_the_factors_of_the_file(library, tmp_path):
    """As files of Llama 3.1 and later have them. Were dropped once, so that such a model answered nonsense."""
    write(tmp_path / "m.gguf", "llama", "BF16", **{"llama.rope.freq_base": 5000.0})
    file = GGUFFile(tmp_path / "m.gguf")
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    file.tensors["rope_freqs.weight"] = GGUFTensor(Numbers.F32, (32,), factors.view(np.uint8))
    assert why_not_packed(file) == ""
    expected = 5000.0 ** -(torch.arange(0, 64, 2).float() / 64) / torch.from_numpy(factors)
    assert distance(rotation_of(file, Values(file))[0], expected) < 1e-6


LONG = {"type": "longrope", "original_context_length": 256, "attn_factor": 1.19}
SCALED_ROPE: dict[str, Any] = {
    "linear": {"type": "linear", "factor": 4.0},
    "yarn": {"type": "yarn", "factor": 8.0, "original_context_length": 512},
    "longrope": LONG,
}


@pytest.mark.parametrize("kind", SCALED_ROPE)
def test_rope_is_scaled_as_transformers_scales_it(kind, library, tmp_path):
    given = SCALED_ROPE[kind]
    write(tmp_path / "m.gguf", "llama", "BF16", **{f"llama.rope.scaling.{name}": one for name, one in given.items()})
    file = GGUFFile(tmp_path / "m.gguf")
    own: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": given.get("factor", 16.0)}
    if kind != "linear":
        own["original_max_position_embeddings"] = given["original_context_length"]
    if kind == "longrope":
        factors = np.linspace(1, 8, 32, dtype=np.float32)
        assert "rope scaling 'longrope'" in why_not_packed(file)  # without its factors
        file.tensors["rope_factors_short.weight"] = GGUFTensor(Numbers.F32, (32,), factors.view(np.uint8))
        own |= {"short_factor": factors.tolist(), "long_factor": [16.0] * 32, "attention_factor": 1.19}
    config = LlamaConfig(**SHAPE, rope_parameters=own)
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=200)
    assert why_not_packed(file) == ""
    found, attention_factor = rotation_of(file, Values(file))
    assert distance(found, expected) < 1e-6
    assert attention_factor == pytest.approx(factor)
    assert Values(file).positions == (256 if kind == "longrope" else 4096)


def test_answers_end_with_every_token_that_ends_a_turn(tmp_path):
    """Was wrong once: of some files only the end of the text was known, and an answer went on through made-up turns."""
    texts, kinds = ["</s>", "<|eot_id|>", "</s>", "a"], np.array([3, 3, 4, 1], np.int32)
    given = {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.eom_token_id": 9}
    assert ends_of(given) == {0, 1, 9}  # a control token that a family knows; not a tag in ordinary text


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_file_becomes_the_model_of_transformers(family, tmp_path):
    """For GPUs and training, with the file's rope scaling, which transformers drops."""
    given: dict[str, Any] = {"type": "yarn", "factor": 8.0, "original_context_length": 512}
    expected = write(
        tmp_path / "m.gguf", family, "Q4_K_M", **{f"{family}.rope.scaling.{k}": v for k, v in given.items()}
    )
    hf = dequantised(GGUFFile(tmp_path / "m.gguf"), "m", torch.float32, torch.device("cpu"))
    numbers = dict(expected.named_parameters())
    assert dict(hf.named_parameters()).keys() == numbers.keys()
    assert all(torch.equal(one, numbers[name]) for name, one in hf.named_parameters())
    assert hf.model.rotary_emb.attention_scaling == pytest.approx(1.2079, abs=1e-4)
    assert hf(input_ids=torch.tensor([[1, 2, 3]])).logits.isfinite().all()


def test_a_file_that_is_not_covered_is_one_line_at_its_load(tmp_path):
    write(tmp_path / "m.gguf", "llama", "BF16", **{"llama.expert_count": 4})
    with pytest.raises(ModelError, match=r"cannot run: architecture 'llama'.* Supported architectures: llama, "):
        loading.load_model(str(tmp_path / "m.gguf"), device="cpu", converted=tmp_path)
    with pytest.raises(ModelError, match="cannot run: architecture 'llama'"):
        source.placement_problem(tmp_path / "m.gguf")
    write(tmp_path / "n.gguf", "gemma3", "BF16")
    assert source.placement_problem(tmp_path / "n.gguf") == "layers differ in their rotary frequencies"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"llama.rope.scaling.type": "dynamic"}, "rope scaling 'dynamic'"),
        ({"llama.expert_count": 4}, "architecture 'llama'"),
        ({"llama.attention.causal": False}, "tokens to later ones"),
    ],
)
def test_what_cannot_run_packed_is_said(values, said, tmp_path):
    write(tmp_path / "m.gguf", "llama", "BF16", **values)
    assert said in why_not_packed(GGUFFile(tmp_path / "m.gguf"))


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write(path, "llama", "Q4_1")
    return path


def test_a_file_is_read_as_gguf_reads_it(written):
    ours, theirs = GGUFFile(written), gguf.GGUFReader(written)
    assert [*ours.tensors] == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.type == tensor.tensor_type
        assert found.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert np.array_equal(found.data, tensor.data.view(np.uint8).reshape(-1))
    assert ours.metadata["general.architecture"] == "llama"
    assert ours.metadata["llama.attention.head_count_kv"] == 2


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_file_is_one_line(written, data):
    content = bytearray(written.read_bytes())
    damaged = written.with_name("damaged.gguf")
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for at in data.draw(st.lists(st.integers(0, 2000), min_size=1, max_size=8)):
            content[at] = data.draw(st.integers(0, 255))
    damaged.write_bytes(content)
    said = ""
    try:
        GGUFFile(damaged)
    except ModelError as error:
        said = str(error)
    assert not said or ("damaged.gguf' cannot be read: " in said and "\n" not in said)
