"""Keys and values of 8 bits: how far they are off, that they stay the same wherever they are kept, and that nobody
takes them for those of the model.
"""

import json
from pathlib import Path

import pytest
import torch
from desks import finish, small_desk, write_pages
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from test_cache_disk import BIG
from test_cache_engine import QUESTION, SYSTEM, plan_of
from test_cache_store import SHAPE, TENANT, add, find
from test_cache_store import A as MODULE
from test_cache_store import rows_of as module_rows
from tiny import build, make_segment, oracle_logits, stock
from torch import Tensor

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.recomputation import EXACT
from cache.engine.request import Completion, Request
from cache.memory.arena import Arena, name_of
from cache.memory.disk import DiskTier
from cache.memory.kv_format import (
    from_bytes,
    kept_bytes_per_token,
    layer_layout,
    pack,
    packed_bytes,
    rounded,
    to_bytes,
    unpack,
)
from cache.memory.kv_shape import KVShape
from cache.memory.store import Store

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LOGITS_TOLERANCE = 0.05  # of logits between -2 and 2, of a random model without any reason to forgive rounding


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", ["model", "int8"])
@pytest.mark.parametrize("length", [1, 7])
def test_a_layer_is_the_same_as_bytes(dtype, storage, length):
    """Also where the numbers of 8 bits end at an odd byte."""
    packed = pack(torch.randn(2, 1, length, 1, 5).to(dtype), storage)
    layout = layer_layout(KVShape(layers=4, kv_heads=1, head_dim=5, dtype=name_of(dtype)), length, storage)
    again = from_bytes(to_bytes(packed), layout)
    assert again.keys() == packed.keys()
    for name, tensor in packed.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(again[name], tensor)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-12, 12), length=st.integers(1, 40))
def test_each_number_is_off_by_half_a_step_at_most_and_rounds_to_itself(dtype, seed, exponent, length):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(2, 3, length, 2, 8, generator=generator)
    rows = rows * 2.0**exponent * torch.linspace(0.01, 3, 8)  # channels differ
    rows = rows.to(dtype)
    largest = rows.abs().float()
    steps = torch.stack([largest[0].amax(1, keepdim=True).expand_as(largest[0]) / 127] * 2)
    steps[1] = largest[1].amax(-1, keepdim=True) / 127
    tensors = pack(rows, "int8")
    again = unpack(tensors, dtype)
    off = (again.float() - rows.float()).abs()
    assert again.dtype == dtype
    assert (off <= steps * 0.5001 + largest * torch.finfo(dtype).eps + torch.finfo(dtype).tiny).all()
    for name, tensor in pack(again, "int8").items():
        assert torch.equal(tensor, tensors[name]), name
    assert torch.equal(rounded(again, "int8"), again)


def test_eight_bits_take_half_the_room_and_zeros_stay_zeros():
    rows = torch.randn(2, 30, 200, 3, 64).to(torch.bfloat16)
    rows[:, 3] = 0
    tensors = pack(rows, "int8")
    assert packed_bytes(tensors) < 0.54 * packed_bytes(pack(rows, "model")) == 0.54 * rows.nbytes
    assert unpack(tensors, torch.bfloat16)[:, 3].abs().max() == 0
    shape = KVShape(layers=30, kv_heads=3, head_dim=64, dtype="bfloat16")
    scales = tensors["key_scales"].nbytes
    assert packed_bytes(tensors) == 200 * kept_bytes_per_token(shape, "int8") + scales
    assert kept_bytes_per_token(shape, "model") == shape.bytes_per_token
    assert torch.equal(rounded(rows, "model"), rows)


def store_of(folder: Path | None = None, storage: str = "int8", slots: int = 20, host: int = 0) -> Store:
    disk = None if folder is None else DiskTier(folder, BIG)
    arena = Arena(SHAPE, slots, torch.device("cpu"))
    return Store(arena, "model", disk, host_memory=host, kv_storage=storage)  # type: ignore[arg-type]


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_module_of_eight_bits_is_the_same_in_every_tier(tmp_path, tier):
    store = store_of(tmp_path if tier == "disk" else None, host=BIG if tier == "host" else 0)
    expected = rounded(module_rows(MODULE), "int8")
    assert not torch.equal(expected, module_rows(MODULE))
    add(store, MODULE)
    key = store.key(MODULE)
    for _ in range(3):
        assert torch.equal(store.rows(key), expected)
        assert store.device.evict(key)
        store.flush()
        assert torch.equal(store.rows(key), expected)
        assert find(store, MODULE).source == tier
    store.check_integrity()
    store.close()


def test_neither_kind_is_taken_for_the_other(tmp_path):
    for storage, other in (("model", "int8"), ("int8", "model")):
        first = store_of(tmp_path / storage, storage)
        add(first, MODULE)
        first.close()
        second = store_of(tmp_path / storage, other)
        assert first.key(MODULE) != second.key(MODULE)
        assert find(second, MODULE).reason == "model or template changed"
        second.close()


# --- the engine -------------------------------------------------------------------------------------------------

PAGE = make_segment("page", "Returns take 30 days from delivery, and gift cards none. " * 2, SYSTEM)


def answer(engine: Engine, **options: object) -> Completion:
    plan = plan_of(SYSTEM, PAGE, QUESTION)
    request = Request(plan=plan, sampling=Sampling(max_tokens=4), **options)  # type: ignore[arg-type]
    return engine.submit(request).completion


def test_an_answer_of_eight_bits_is_close_to_one_full_pass_the_same_from_every_tier_and_approximate(tmp_path):
    sources, seen = [], list[Tensor]()
    for _ in range(2):
        model, logits = build(), list[Tensor]()
        forward = model.forward
        model.forward = lambda *args, f=forward, out=logits: (out.append(f(*args)), out[-1])[1]  # type: ignore
        disk = DiskTier(tmp_path, BIG)
        engine = Engine(model, memory=4 << 20, host_memory=4 << 20, disk=disk, kv_storage="int8").start()
        for evicts in (False, True):
            completion = answer(engine, reuse="on")
            assert not completion.exact
            sources.append({use.source for use in completion.modules})
            seen.append(next(one for one in logits if len(one))[0])
            if not evicts:
                engine.call(lambda store: [store.device.evict(key) for key in [*store.device.entries]])
                engine.call(lambda store: store.device.drop_prefixes(TENANT))
                logits.clear()
        engine.call(Store.check_integrity)
        engine.close()
    assert sources == [{"computed"}, {"host"}, {"disk"}, {"host"}]
    expected = oracle_logits(stock(), plan_of(SYSTEM, PAGE, QUESTION))
    for found in seen:
        assert torch.equal(found, seen[1]), "an answer does not depend on where its modules come from"
        assert 1e-5 < (found - expected).abs().max() < LOGITS_TOLERANCE
    assert 0.2 * (expected.max() - expected.min()) > LOGITS_TOLERANCE


def test_what_accounting_calls_exact_is_so_without_rounded_modules_only(tmp_path):
    """The system text at the beginning of a prompt is an exact module, unless it is rounded."""
    plan = plan_of(SYSTEM, QUESTION)
    for storage, uses_module in (("model", True), ("int8", False)):
        engine = Engine(build(), memory=4 << 20, kv_storage=storage).start()  # type: ignore[arg-type]
        for _ in range(2):
            completion = engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=1))).completion
        assert completion.exact == uses_module
        exact = engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=1), recomputation=EXACT)).completion
        assert exact.exact
        assert (exact.usage.module > 0) == uses_module, "the policy exact computes what is rounded"
        for reuse in ("prefix", "off"):
            assert answer(engine, reuse=reuse).exact
        engine.close()


def test_a_desk_keeps_its_passages_in_eight_bits(tmp_path):
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), kv_storage="int8") as desk:
        desk.prepare()
        row = next(row for row in desk.overview().modules if row.document.endswith("returns.md"))
        before = finish(desk, "How long do returns take?")
        assert not before.exact
        assert desk.module_care.verify(row.id).largest_difference == pytest.approx(0, abs=1e-3)
        desk.module_care.evict(row.id)
        assert desk.module_care.verify(row.id).largest_difference == pytest.approx(0, abs=1e-3)
        assert {one.id: one.num_bytes for one in desk.overview().modules}[row.id] < row.num_bytes / 2
        assert finish(desk, "How long do returns take?").answer == before.answer
        desk.engine.store.flush()
        file = next(desk.settings.modules_folder.iterdir())
        with safe_open(file, framework="pt") as opened:
            assert "keys" in opened.keys()  # noqa: SIM118
            assert json.loads(opened.metadata()["header"])["fingerprint"] != desk.engine.model.info.fingerprint
    with small_desk(tmp_path / "desk") as desk:
        assert {module.miss_reason for module in finish(desk, "How long do returns take?").modules} == {
            "model or template changed"
        }
